package wire

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// The ends without a queue: what x/crypto/ssh does by itself.
func rawClient(rwc io.ReadWriteCloser) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	return ssh.NewControlClientConn(rwc.(net.Conn))
}

func rawServer(rwc io.ReadWriteCloser) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	if _, err := io.ReadFull(rwc, make([]byte, len(greeting(0)))); err != nil {
		return nil, nil, nil, err
	}
	g := newGreeted(rwc.(net.Conn))
	if _, err := rwc.Write(g.answer); err != nil {
		return nil, nil, nil, err
	}
	return ssh.NewControlClientConn(g)
}

// echoes runs n channels at once, each with size bytes to an echo and back,
// and returns how many of them came back whole. It gives up when no byte has
// moved for the time of quiet.
func echoes(t *testing.T, c end, n, size int, quiet time.Duration) int {
	t.Helper()
	var moved, whole atomic.Int64
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			ch, reqs, err := c.conn.OpenChannel("session", nil)
			if err != nil {
				return
			}
			defer ch.Close()
			go ssh.DiscardRequests(reqs)
			// Different lengths, so that channels end while others flow.
			want := bytes.Repeat([]byte(fmt.Sprintf("%07d\n", i)), size/8*(i%16+1)/16)
			go func() {
				for p := want; len(p) > 0; {
					n, err := ch.Write(p[:min(len(p), 4<<10)])
					if err != nil {
						return
					}
					moved.Add(1)
					p = p[n:]
				}
				ch.CloseWrite()
			}()
			var got bytes.Buffer
			buf := make([]byte, 4<<10)
			for {
				n, err := ch.Read(buf)
				got.Write(buf[:n])
				moved.Add(1)
				if err != nil {
					break
				}
			}
			if bytes.Equal(got.Bytes(), want) {
				whole.Add(1)
			}
		}()
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for last := int64(-1); ; {
		select {
		case <-done:
			return int(whole.Load())
		case <-time.After(quiet):
		}
		now := moved.Load()
		if now == last {
			c.conn.Close()
			<-done
			return int(whole.Load())
		}
		last = now
	}
}

func TestThousandEchoes(t *testing.T) {
	const channels, size = 1000, 64 << 10
	c, s := connect(t, 4096, Client, Server)
	defer s.conn.Close()
	defer c.conn.Close()
	go s.echo()
	go c.refuse()
	if got := echoes(t, c, channels, size, 30*time.Second); got != channels {
		t.Errorf("got %d of %d channels back whole: both ends wait for each other", got, channels)
	}
}

// TestThousandEchoesWithoutQueue holds the reason for Queue: the day that it
// fails, x/crypto/ssh needs no queue any more. Not every run of it hangs, so it
// has a few.
func TestThousandEchoesWithoutQueue(t *testing.T) {
	const channels, size, tries = 1000, 64 << 10, 20
	for range tries {
		c, s := connect(t, 4096, rawClient, rawServer)
		go s.echo()
		go c.refuse()
		got := echoes(t, c, channels, size, 2*time.Second)
		c.conn.Close()
		s.conn.Close()
		if got < channels {
			return
		}
	}
	t.Errorf("all channels came back whole %d times without a queue, want a deadlock", tries)
}

// TestCloseWhileFull is the deadlock that a queue with a blocking Write has:
// both directions are full, and each end is told of the close of a channel
// whose writer waits for room. Its reader has to answer, and needs the lock
// that the writer holds.
func TestCloseWhileFull(t *testing.T) {
	const clients, rounds = 100, 20
	c, s := connect(t, 4096, Client, Server)
	defer s.conn.Close()
	defer c.conn.Close()
	go c.refuse()
	go ssh.DiscardRequests(s.reqs)
	var serving sync.WaitGroup
	buf := make([]byte, 32<<10)
	serving.Go(func() {
		for nc := range s.chans {
			serving.Go(func() {
				ch, reqs, err := nc.Accept()
				if err != nil {
					return
				}
				go ssh.DiscardRequests(reqs)
				switch nc.ChannelType() {
				case "head": // reads little of much
					io.ReadFull(ch, make([]byte, 64))
					ch.Close()
				case "yes": // writes until its reader has gone
					for err == nil {
						_, err = ch.Write(buf)
					}
				}
			})
		}
	})
	var rest atomic.Int64
	rest.Store(clients * rounds)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for range rounds {
				typ := []string{"head", "yes"}[i%2]
				ch, reqs, err := c.conn.OpenChannel(typ, nil)
				if err != nil {
					return
				}
				go ssh.DiscardRequests(reqs)
				if typ == "yes" {
					io.ReadFull(ch, make([]byte, 64))
					ch.Close()
				}
				for err == nil && typ == "head" {
					_, err = ch.Write(buf)
				}
				rest.Add(-1)
			}
		})
	}
	stop := time.AfterFunc(time.Minute, func() { c.conn.Close() })
	wg.Wait()
	stop.Stop()
	if n := rest.Load(); n > 0 {
		t.Errorf("%d of %d channels never ended: the reader waits for a writer", n, clients*rounds)
	}
	c.conn.Close()
	s.conn.Close()
	serving.Wait()
}
