package shim

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// answer is a server that reads all, then answers with it and says bye: it
// needs both half-closes.
func answer(t *testing.T, l net.Listener) {
	t.Helper()
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b, _ := io.ReadAll(c)
				io.WriteString(c, strings.ToUpper(string(b)))
				io.WriteString(c, ", bye")
			}()
		}
	}()
}

func TestForward(t *testing.T) {
	dir := tempDir(t)
	ul, err := net.Listen("unix", filepath.Join(dir, "u"))
	if err != nil {
		t.Fatal(err)
	}
	answer(t, ul)
	tl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answer(t, tl)
	socket := serve(t, Options{Env: []string{"HOME=" + dir}})
	for _, tt := range []struct {
		name, network, addr string
	}{
		{"unix", "unix", ul.Addr().String()},
		{"unix, relative to HOME", "unix", "u"},
		{"tcp", "tcp", tl.Addr().String()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := plain(t, socket).Dial(tt.network, tt.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			big := strings.Repeat("hello ", 100000)
			go func() {
				io.WriteString(c, big)
				c.(interface{ CloseWrite() error }).CloseWrite()
			}()
			got, err := io.ReadAll(c)
			if want := strings.ToUpper(big) + ", bye"; err != nil || string(got) != want {
				t.Errorf("got %d bytes, %v, want %d", len(got), err, len(want))
			}
		})
	}
}

// TestForwardServerSpeaksFirst has the other half-close: the server has said
// all, the client goes on.
func TestForwardServerSpeaksFirst(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(tempDir(t), "u"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	rest := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.WriteString(c, "hello")
		c.(*net.UnixConn).CloseWrite()
		b, _ := io.ReadAll(c)
		rest <- string(b)
	}()
	c, err := plain(t, serve(t, Options{})).Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v, want hello", got, err)
	}
	io.WriteString(c, "and on")
	c.Close()
	if got := <-rest; got != "and on" {
		t.Errorf("the server got %q, want %q", got, "and on")
	}
}

func TestForwardRefused(t *testing.T) {
	c := dial(t, serve(t, Options{}))
	for _, tt := range []struct {
		name, typ string
		data      []byte
		reason    ssh.RejectionReason
	}{
		{"no such socket", "direct-streamlocal@openssh.com", ssh.Marshal(struct {
			Path, Reserved string
			Port           uint32
		}{"/no/such", "", 0}), ssh.ConnectionFailed},
		{"no such port", "direct-tcpip", ssh.Marshal(struct {
			Host   string
			Port   uint32
			Origin string
			P      uint32
		}{"127.0.0.1", 1, "", 0}), ssh.ConnectionFailed},
		{"port out of range", "direct-tcpip", ssh.Marshal(struct {
			Host   string
			Port   uint32
			Origin string
			P      uint32
		}{"127.0.0.1", 65536 + 22, "", 0}), ssh.ConnectionFailed},
		{"garbage", "direct-tcpip", []byte("garbage"), ssh.ConnectionFailed},
		{"garbage, unix", "direct-streamlocal@openssh.com", nil, ssh.ConnectionFailed},
		{"other type", "x11", nil, ssh.UnknownChannelType},
		{"remote forward", "forwarded-tcpip", nil, ssh.UnknownChannelType},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := c.OpenChannel(tt.typ, tt.data)
			refused, ok := err.(*ssh.OpenChannelError)
			if !ok || refused.Reason != tt.reason {
				t.Errorf("got %v, want it refused for %v", err, tt.reason)
			}
		})
	}
}
