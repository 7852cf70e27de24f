package wire

import (
	"io"
	"testing"

	"golang.org/x/crypto/ssh"
)

// BenchmarkStdout is the output of one command through a socket, with and
// without the queue.
func BenchmarkStdout(b *testing.B) {
	for _, bb := range []struct {
		name           string
		client, server makeEnd
	}{
		{"raw", rawClient, rawServer},
		{"queue", Client, Server},
	} {
		b.Run(bb.name, func(b *testing.B) {
			c, s := connect(b, 0, bb.client, bb.server)
			defer s.conn.Close()
			defer c.conn.Close()
			go c.refuse()
			go ssh.DiscardRequests(s.reqs)
			const piece = 64 << 10
			go func() {
				ch, reqs, err := (<-s.chans).Accept()
				if err != nil {
					b.Error(err)
					return
				}
				go ssh.DiscardRequests(reqs)
				buf := make([]byte, piece)
				for range b.N {
					ch.Write(buf)
				}
				ch.Close()
			}()
			b.SetBytes(piece)
			ch, reqs, err := c.conn.OpenChannel("session", nil)
			if err != nil {
				b.Fatal(err)
			}
			go ssh.DiscardRequests(reqs)
			buf := make([]byte, piece)
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, ch, buf)
			if err != nil || n != int64(b.N)*piece {
				b.Errorf("got %d bytes, %v, want %d", n, err, b.N*piece)
			}
		})
	}
}

// BenchmarkRequest is a round trip of a global request.
func BenchmarkRequest(b *testing.B) {
	for _, bb := range []struct {
		name           string
		client, server makeEnd
	}{
		{"raw", rawClient, rawServer},
		{"queue", Client, Server},
	} {
		b.Run(bb.name, func(b *testing.B) {
			c, s := connect(b, 0, bb.client, bb.server)
			defer s.conn.Close()
			defer c.conn.Close()
			go c.refuse()
			go s.refuse()
			for range b.N {
				if _, _, err := c.conn.SendRequest("x", true, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
