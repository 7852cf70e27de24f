package wire

import (
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// socketpair is two connected unix sockets with buffers of about size bytes;
// 0 leaves the default.
func socketpair(t testing.TB, size int) (*net.UnixConn, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("socketpair: %v", err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatalf("FileConn: %v", err)
		}
		ends[i] = c.(*net.UnixConn)
		if size > 0 {
			ends[i].SetWriteBuffer(size)
			ends[i].SetReadBuffer(size)
		}
	}
	return ends[0], ends[1]
}

// end is one end of a connection as Client and Server return it.
type end struct {
	conn  ssh.Conn
	chans <-chan ssh.NewChannel
	reqs  <-chan *ssh.Request
}

type makeEnd func(io.ReadWriteCloser) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error)

// connect makes both ends over a socket pair.
func connect(t testing.TB, size int, client, server makeEnd) (end, end) {
	t.Helper()
	a, b := socketpair(t, size)
	type result struct {
		end
		err error
	}
	done := make(chan result, 1)
	go func() {
		conn, chans, reqs, err := server(b)
		done <- result{end{conn, chans, reqs}, err}
	}()
	conn, chans, reqs, err := client(a)
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	r := <-done
	if r.err != nil {
		t.Fatalf("server: %v", r.err)
	}
	return end{conn, chans, reqs}, r.end
}

// echo serves an end whose channels echo stdin.
func (e end) echo() {
	go ssh.DiscardRequests(e.reqs)
	for nc := range e.chans {
		go func() {
			ch, reqs, err := nc.Accept()
			if err != nil {
				return
			}
			go ssh.DiscardRequests(reqs)
			io.Copy(ch, ch)
			ch.CloseWrite()
			ch.Close()
		}()
	}
}

// refuse serves an end that takes no channels.
func (e end) refuse() {
	go ssh.DiscardRequests(e.reqs)
	for nc := range e.chans {
		nc.Reject(ssh.Prohibited, "no channels here")
	}
}

func TestClientServer(t *testing.T) {
	c, s := connect(t, 0, Client, Server)
	defer s.conn.Close()
	defer c.conn.Close()
	go s.echo()
	go c.refuse()
	ch, reqs, err := c.conn.OpenChannel("session", nil)
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(reqs)
	if _, err := ch.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	ch.CloseWrite()
	got, err := io.ReadAll(ch)
	if err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v, want %q", got, err, "hello")
	}
}
