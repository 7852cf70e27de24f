package sshmux

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

// A liar is a shim that does what it likes: the contained side is hostile.
type liar struct {
	t *testing.T
	// session serves a channel of type session whose command has been asked
	// for.
	session func(conn ssh.Conn, ch ssh.Channel)
}

// host is a Host whose shim is the liar.
func (l liar) host() *Host {
	l.t.Helper()
	ours, theirs := net.Pipe()
	serving := make(chan struct{})
	go func() {
		defer close(serving)
		conn, chans, reqs, err := wire.Server(theirs)
		if err != nil {
			return
		}
		defer conn.Close()
		go ssh.DiscardRequests(reqs)
		for nc := range chans {
			ch, reqs, err := nc.Accept()
			if err != nil {
				return
			}
			go func() {
				for r := range reqs {
					if r.Type == wire.RequestExec {
						go l.session(conn, ch)
					}
					r.Reply(false, nil)
				}
			}()
		}
	}()
	h, err := shimHost(context.Background(), ours, HostOptions{Place: "liar"})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		h.Close()
		<-serving
	})
	return h
}

func exitMessage(code int) []byte { return (&wire.Exit{Code: code}).Marshal() }

func TestShimThatLies(t *testing.T) {
	big := strings.Repeat("x", 100<<10)
	tests := []struct {
		name    string
		session func(conn ssh.Conn, ch ssh.Channel)
		code    int
		wantErr error
	}{
		{"nothing but a close", func(_ ssh.Conn, ch ssh.Channel) { ch.Close() }, 0, hpcexec.ErrUnknownEnd},
		{"an exit that can't be read", func(_ ssh.Conn, ch ssh.Channel) {
			ch.SendRequest(wire.RequestExit, false, []byte("nonsense"))
			ch.Close()
		}, 0, hpcexec.ErrUnknownEnd},
		{"two exits", func(_ ssh.Conn, ch ssh.Channel) {
			ch.SendRequest(wire.RequestExit, false, exitMessage(3))
			ch.SendRequest(wire.RequestExit, false, exitMessage(4))
			ch.Close()
		}, 3, nil},
		{"a kind of error that is none", func(_ ssh.Conn, ch ssh.Channel) {
			x := wire.Exit{ErrKind: "harmless", ErrText: big}
			ch.SendRequest(wire.RequestExit, false, x.Marshal())
			ch.Close()
		}, 0, errAny},
		{"channels and requests of its own", func(conn ssh.Conn, ch ssh.Channel) {
			for _, kind := range []string{"session", "forwarded-tcpip", "auth-agent@openssh.com", "x11", "direct-tcpip", "direct-streamlocal@openssh.com"} {
				if _, _, err := conn.OpenChannel(kind, nil); err == nil {
					conn.Close() // a Host must refuse it; the test fails then
					return
				}
			}
			for _, kind := range []string{"tcpip-forward", "streamlocal-forward@openssh.com", "keepalive@openssh.com", wire.RequestStop} {
				if ok, _, err := conn.SendRequest(kind, true, nil); ok || err != nil {
					conn.Close()
					return
				}
			}
			for _, kind := range []string{"exec", "shell", "subsystem", "pty-req", wire.RequestExec} {
				if ok, err := ch.SendRequest(kind, true, []byte("sh")); ok || err != nil {
					conn.Close()
					return
				}
			}
			ch.SendRequest(wire.RequestExit, false, exitMessage(0))
			ch.Close()
		}, 0, nil},
		{"a thousand requests", func(_ ssh.Conn, ch ssh.Channel) {
			for range 1000 {
				ch.SendRequest("spam", false, []byte(big))
			}
			ch.SendRequest(wire.RequestExit, false, exitMessage(0))
			ch.Close()
		}, 0, nil},
		{"it hangs up", func(conn ssh.Conn, _ ssh.Channel) { conn.Close() }, 0, hpcexec.ErrUnknownEnd},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := liar{t, tt.session}.host()
			resp, err := h.Run(t.Context(), hpcexec.Request{Args: []string{"true"}})
			switch {
			case tt.wantErr == errAny && err != nil:
			case !errors.Is(err, tt.wantErr) || err == nil && resp.ExitCode != tt.code:
				t.Errorf("got %+v, error %v, want exit code %d, %v", resp, err, tt.code, tt.wantErr)
			}
		})
	}
}

// errAny stands for an error of no kind.
var errAny = errors.New("any")

// A shim that answers nothing keeps nobody who has given up, nor does it write
// to a stream after that.
func TestShimThatIgnoresCancel(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	h := liar{t, func(_ ssh.Conn, ch ssh.Channel) {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				ch.Write([]byte("more "))
			}
		}
	}}.host()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var out bytes.Buffer
	_, err := h.Run(ctx, hpcexec.Request{Args: []string{"true"}, Stdout: &out})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
	}
	n := out.Len()
	time.Sleep(50 * time.Millisecond)
	if out.Len() != n {
		t.Errorf("%d bytes were written after the return", out.Len()-n)
	}
}

// A peer that takes the connection and then says nothing is found out.
func TestSilentPeer(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	go func() {
		b := make([]byte, 100)
		for {
			if _, err := theirs.Read(b); err != nil {
				return
			}
		}
	}()
	if _, err := shimHost(ctx, ours, HostOptions{}); !errors.Is(err, hpcexec.ErrUnavailable) {
		t.Errorf("got error %v, want ErrUnavailable", err)
	}
}
