package sshmux

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/shell"
)

// dialUnix connects to a unix socket on the host, through the SSH server.
func (h *Host) dialUnix(ctx context.Context, path string) (io.ReadWriteCloser, error) {
	// OpenSSH's PROTOCOL, section 2.4: path, a reserved string, a reserved
	// number.
	return h.dialChannel(ctx, "direct-streamlocal@openssh.com", ssh.Marshal(struct {
		Path, Reserved string
		Zero           uint32
	}{Path: path}))
}

// dialTCP connects to a port as the host sees it (RFC 4254, section 7.2).
func (h *Host) dialTCP(ctx context.Context, host string, port uint32) (io.ReadWriteCloser, error) {
	return h.dialChannel(ctx, "direct-tcpip", ssh.Marshal(struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}{host, port, "127.0.0.1", 0}))
}

func (h *Host) dialChannel(ctx context.Context, kind string, payload []byte) (io.ReadWriteCloser, error) {
	ch, reqs, err := h.openChannel(ctx, kind, payload)
	if err != nil {
		return nil, openError(h.opts.Place, err)
	}
	return newChannelStream(ch, reqs), nil
}

// A channelStream is a channel that carries a connection.
type channelStream struct {
	ssh.Channel
	closed chan struct{} // by the peer, both directions
}

func newChannelStream(ch ssh.Channel, reqs <-chan *ssh.Request) *channelStream {
	c := &channelStream{ch, make(chan struct{})}
	go func() {
		defer close(c.closed)
		ssh.DiscardRequests(reqs)
	}()
	return c
}

// closedByPeer is closed once the peer takes nothing more either.
func (c *channelStream) closedByPeer() <-chan struct{} { return c.closed }

// command runs argv on the host and gives its stdin and stdout as a stream.
// Closing it ends the session; what argv does then is its own matter, as its
// stdin has ended.
func (h *Host) command(ctx context.Context, argv []string) (io.ReadWriteCloser, error) {
	ch, reqs, done, err := h.session(ctx)
	if err != nil {
		return nil, err
	}
	c := &commandStream{ReadWriter: ch, name: argv[0]}
	c.close = func() error {
		err := ch.Close()
		done()
		return err
	}
	go func() {
		for r := range reqs {
			if r.Type == "exit-status" && len(r.Payload) >= 4 {
				c.setEnd(fmt.Sprintf("exit status %d", binary.BigEndian.Uint32(r.Payload)))
			}
			r.Reply(false, nil)
		}
		done()
	}()
	go io.Copy(c.tail(), ch.Stderr())
	// exec: one process less, and no builtin of the login shell.
	ok, err := ch.SendRequest("exec", true, ssh.Marshal(struct{ Line string }{"exec " + shell.Join(argv)}))
	if err == nil && !ok {
		err = errors.New("the SSH server refused the command")
	}
	if err != nil {
		c.Close()
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s on %s: %w", argv[0], h.opts.Place, err)
	}
	return c, nil
}

// localCommand runs argv here and gives its stdin and stdout as a stream.
// Closing it ends the process.
func localCommand(argv []string) (io.ReadWriteCloser, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: %w", argv[0], err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: %w", argv[0], err)
	}
	c := &commandStream{name: argv[0]}
	c.ReadWriter = struct {
		io.Reader
		io.Writer
	}{out, in}
	cmd.Stderr = c.tail()
	// A process in the background may hold stderr open.
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%w", err)
	}
	ended := make(chan struct{})
	c.close = func() error {
		in.Close()
		if !closedWithin(ended, 2*time.Second) {
			cmd.Process.Kill()
		}
		out.Close() // a process in the background may hold it open, too
		return nil
	}
	go func() {
		defer close(ended)
		// Not cmd.Wait, which would close out under its reader.
		st, err := cmd.Process.Wait()
		if err == nil {
			c.setEnd(st.String())
		}
	}()
	return c, nil
}

// A commandStream is the stdin and stdout of a command.
type commandStream struct {
	io.ReadWriter
	name  string
	close func() error
	once  sync.Once

	mu     sync.Mutex
	stderr []byte // its last bytes
	end    string // how it ended
}

func (c *commandStream) Close() (err error) {
	c.once.Do(func() { err = c.close() })
	return err
}

func (c *commandStream) setEnd(s string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end = s
}

// tail is a Writer that keeps the end of what is written.
func (c *commandStream) tail() io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		const keep = 2 << 10
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stderr = append(c.stderr, p...)
		if n := len(c.stderr) - keep; n > 0 {
			c.stderr = append(c.stderr[:0], c.stderr[n:]...)
		}
		return len(p), nil
	})
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// explain adds to err what the command said and how it ended.
func (c *commandStream) explain(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var why []string
	if text := printable(string(bytes.TrimSpace(c.stderr))); text != "" {
		why = append(why, text)
	}
	if c.end != "" {
		why = append(why, c.end)
	}
	if len(why) == 0 {
		return err
	}
	return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: %w: %s", c.name, err, strings.Join(why, ", "))
}

// halfCloser is a stream whose writing end can be closed alone.
type halfCloser interface {
	CloseWrite() error
}

// splice copies between two streams, in both directions and each to its end,
// and closes them then. Where the peer of one of them has gone altogether, not just
// stopped to send, the other one isn't read from any more.
func splice(a, b io.ReadWriteCloser) {
	toA, toB := make(chan struct{}), make(chan struct{})
	one := func(dst, src io.ReadWriteCloser, done chan<- struct{}, other <-chan struct{}) {
		copyOut(dst, src, func() { src.Close() }, nil)
		if c, ok := dst.(halfCloser); ok {
			c.CloseWrite()
		} else {
			dst.Close()
		}
		close(done)
		if c, ok := src.(interface{ closedByPeer() <-chan struct{} }); ok {
			select {
			case <-c.closedByPeer():
				dst.Close()
			case <-other:
			}
		}
	}
	go one(a, b, toA, toB)
	one(b, a, toB, toA)
	<-toA
	a.Close()
	b.Close()
}

var _ halfCloser = (*net.UnixConn)(nil)
