package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
)

// What `ssh -O proxy -S SOCKET x` of OpenSSH 9.2p1 says, recorded: HELLO, the
// request for proxy mode, and a channel of type session.
const opensshProxy = "000000080000000100000004" + "000000081000000f00000000" +
	"00000019005a0000000773657373696f6e000000000020000000008000"

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestServerTakesOpenSSH(t *testing.T) {
	a, b := socketpair(t, 0)
	defer a.Close()
	a.Write(unhex(t, opensshProxy))
	conn, chans, reqs, err := Server(b)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go ssh.DiscardRequests(reqs)
	if nc := <-chans; nc.ChannelType() != "session" {
		t.Errorf("got channel type %q, want session", nc.ChannelType())
	}
	got := make([]byte, 24)
	want := unhex(t, "000000080000000100000004"+"000000088000000f00000000")
	if _, err := io.ReadFull(a, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got answer %x, %v, want %x", got, err, want)
	}
}

func TestHandshakeRefuses(t *testing.T) {
	hello := muxMessage(muxHello, muxVersion)
	refusal := append(unhex(t, "00000016800000020000000000000008"), "go away!"...)
	refusal[3] = byte(len(refusal) - 4)
	for _, tt := range []struct {
		name string
		end  makeEnd
		in   []byte
		want string // in the error; empty: there is none
	}{
		{"server, good", Server, greeting(0), ""},
		{"server, other id", Server, greeting(7), ""},
		{"server, extension in hello", Server, append([]byte("\x00\x00\x00\x12\x00\x00\x00\x01\x00\x00\x00\x04\x00\x00\x00\x01a\x00\x00\x00\x01b"), muxMessage(muxProxy, 0)...), ""},
		{"server, old version", Server, append(muxMessage(muxHello, 3), muxMessage(muxProxy, 0)...), "version 3"},
		{"server, no hello", Server, muxMessage(muxProxy, 0), "instead of hello"},
		{"server, session asked for", Server, append(bytes.Clone(hello), muxMessage(0x10000002, 0)...), "instead of proxy mode"},
		{"server, no request id", Server, append(bytes.Clone(hello), 0, 0, 0, 4, 0x10, 0, 0, 0xf), "without an id"},
		{"server, http", Server, []byte("GET / HTTP/1.1\r\n\r\n"), "bytes long"},
		{"server, encrypted ssh", Server, []byte("SSH-2.0-OpenSSH_9.2\r\n"), "bytes long"},
		{"server, huge", Server, []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1}, "bytes long"},
		{"server, short", Server, []byte{0, 0, 0, 3, 0, 0, 0, 1}, "bytes long"},
		{"server, nothing", Server, nil, "EOF"},
		{"server, cut off", Server, greeting(0)[:20], "EOF"},
		{"client, good", Client, append(bytes.Clone(hello), muxMessage(muxProxyAnswer, 0)...), ""},
		{"client, old version", Client, append(muxMessage(muxHello, 2), muxMessage(muxProxyAnswer, 0)...), "version 2"},
		{"client, other id", Client, append(bytes.Clone(hello), muxMessage(muxProxyAnswer, 1)...), "instead of proxy mode"},
		{"client, refused", Client, append(bytes.Clone(hello), refusal...), `refused proxy mode: "go away!"`},
		{"client, refused without reason", Client, append(bytes.Clone(hello), muxMessage(muxFailure, 0)...), "no reason given"},
		{"client, cut off", Client, hello, "EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := socketpair(t, 0)
			defer a.Close()
			a.Write(tt.in)
			a.CloseWrite()
			conn, chans, reqs, err := tt.end(b)
			if err == nil {
				go end{conn, chans, reqs}.refuse()
				conn.Close()
			}
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got %v, want no error", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want an error with %q", err, tt.want)
			case tt.want != "" && !errors.Is(err, hpcexec.ErrUnavailable):
				t.Errorf("got %v, want kind %v", err, hpcexec.ErrUnavailable)
			}
		})
	}
}

// TestHandshakeIsBounded has a peer that says nothing, and one that says a
// byte a second for ever.
func TestHandshakeIsBounded(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  makeEnd
	}{
		{"client", Client},
		{"server", Server},
	} {
		for _, peer := range []string{"silent", "slow"} {
			t.Run(tt.name+", "+peer, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := net.Pipe()
					defer a.Close()
					go io.Copy(io.Discard, a)
					var wg sync.WaitGroup
					defer wg.Wait()
					if peer == "slow" {
						wg.Go(func() {
							for _, c := range greeting(0) {
								time.Sleep(time.Second)
								if _, err := a.Write([]byte{c}); err != nil {
									return
								}
							}
						})
					}
					start := time.Now()
					_, _, _, err := tt.end(b)
					if !errors.Is(err, hpcexec.ErrUnavailable) {
						t.Errorf("got %v, want kind %v", err, hpcexec.ErrUnavailable)
					}
					if d := time.Since(start); d != handshakeTime {
						t.Errorf("gave up after %v, want %v", d, handshakeTime)
					}
				})
			})
		}
	}
}

// record has what both ends of a real exchange say: a channel, a request with
// an answer, data both ways, and the ends.
func record(t testing.TB) (client, server []byte) {
	t.Helper()
	a, b := socketpair(t, 0)
	ra, rb := &recorder{Conn: a}, &recorder{Conn: b}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, chans, reqs, err := Server(rb)
		if err != nil {
			t.Error(err)
			return
		}
		end{conn, chans, reqs}.echo()
		conn.Close() // waits for what is still being written
	}()
	conn, chans, reqs, err := Client(ra)
	if err != nil {
		t.Fatal(err)
	}
	go end{conn, chans, reqs}.refuse()
	conn.SendRequest(RequestHello, true, (&Hello{Versions: []uint32{1}}).Marshal())
	ch, chReqs, err := conn.OpenChannel("session", nil)
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(chReqs)
	SendExec(ch, &Exec{ID: "x", Args: []string{"true"}})
	ch.Write([]byte("hello"))
	ch.CloseWrite()
	io.Copy(io.Discard, ch)
	ch.Close()
	conn.Close()
	<-done
	return ra.wrote.Bytes(), rb.wrote.Bytes()
}

type recorder struct {
	net.Conn
	wrote bytes.Buffer // by the one goroutine of a Queue that writes
}

func (r *recorder) Write(p []byte) (int, error) {
	r.wrote.Write(p)
	return r.Conn.Write(p)
}

func FuzzServer(f *testing.F) {
	client, _ := record(f)
	if len(client) <= len(greeting(0)) {
		f.Fatalf("the recorded exchange has %d bytes, want more than a greeting", len(client))
	}
	f.Add(client)
	f.Add(unhex(f, opensshProxy))
	f.Add(append(greeting(0), 0, 0, 0, 1, 0))
	fuzzEnd(f, Server)
}

func FuzzClient(f *testing.F) {
	_, server := record(f)
	if len(server) <= len(greeting(0)) {
		f.Fatalf("the recorded exchange has %d bytes, want more than a greeting", len(server))
	}
	f.Add(server)
	fuzzEnd(f, Client)
}

// fuzzEnd throws bytes at an end: it may not panic, and it ends when they do.
func fuzzEnd(f *testing.F, makeEnd makeEnd) {
	f.Fuzz(func(t *testing.T, in []byte) {
		a, b := net.Pipe()
		defer a.Close()
		go func() {
			a.Write(in)
			a.Close()
		}()
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			io.Copy(io.Discard, a)
		}()
		conn, chans, reqs, err := makeEnd(b)
		if err == nil {
			go end{conn, chans, reqs}.echo()
			conn.Wait()
			conn.Close()
		}
		<-drained
	})
}
