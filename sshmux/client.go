package sshmux

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
)

const (
	// answerWait is how long a living master may take to answer what needs
	// no connection: a round trip on this machine.
	answerWait = 10 * time.Second

	// freshFor is how long the connection that Open made waits for its use.
	freshFor = 2 * time.Second
)

// ErrNoMaster says that nobody serves a socket, or who does is ending. Errors
// that match it are of kind hpcexec.ErrUnavailable.
var ErrNoMaster = errors.New("no master there")

// A Client runs commands through the socket of a master, or of one of its
// endpoints. It is safe for concurrent use: each command has a connection of
// its own.
type Client struct {
	socket string

	mu    sync.Mutex
	ready *net.UnixConn // made by Open, not used yet
	stale *time.Timer   // closes ready
	facts *info
}

var (
	_ hpcexec.Starter   = (*Client)(nil)
	_ hpcexec.Describer = (*Client)(nil)
)

// Open connects to a socket. The error matches ErrNoMaster where nobody
// listens there.
func Open(socket string) (*Client, error) {
	c := &Client{socket: socket}
	conn, err := c.dial(context.Background())
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ready = conn
	c.stale = time.AfterFunc(freshFor, func() { c.Close() })
	return c, nil
}

// Close gives up what Open has made. Commands that run go on, and the Client
// may still be used.
func (c *Client) Close() error {
	if conn := c.takeReady(); conn != nil {
		return conn.Close()
	}
	return nil
}

// takeReady is the connection that Open made, if it is still there.
func (c *Client) takeReady() *net.UnixConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.ready
	if conn != nil {
		c.ready = nil
		c.stale.Stop()
	}
	return conn
}

func (c *Client) dial(ctx context.Context) (*net.UnixConn, error) {
	var d net.Dialer
	for pause := time.Millisecond; ; pause *= 2 {
		conn, err := d.DialContext(ctx, "unix", c.socket)
		if err == nil {
			return conn.(*net.UnixConn), nil
		}
		if errors.Is(err, syscall.EAGAIN) && pause < time.Second && ctx.Err() == nil {
			time.Sleep(pause) // the backlog is full: many connect at once
			continue
		}
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
			err = &noMasterError{err}
		}
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%w", err)
	}
}

// A noMasterError has the text of its cause and matches ErrNoMaster.
type noMasterError struct{ error }

func (e *noMasterError) Unwrap() []error { return []error{ErrNoMaster, e.error} }

// hungUp makes an error of a connection that the master ended without an
// answer match ErrNoMaster: it has accepted it and died, or was about to leave.
func hungUp(err error) error {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return &noMasterError{err}
		}
	}
	return err
}

// connect gives a connection for one command or request.
func (c *Client) connect(ctx context.Context) (*net.UnixConn, error) {
	if conn := c.takeReady(); conn != nil {
		return conn, nil
	}
	return c.dial(ctx)
}

// ask makes one request that a living master answers at once, and gives the
// answer's type and body. It is bounded by ctx and answerWait. Errors are of
// kind hpcexec.ErrUnavailable, or those that the master answers.
func (c *Client) ask(ctx context.Context, request []byte) (typ uint32, body []byte, err error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(answerWait))
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	failed := func(err error) (uint32, []byte, error) {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else {
			err = hungUp(err)
		}
		return 0, nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "master at %s does not answer: %w", c.socket, err)
	}
	if _, err := conn.Write(append(hello{muxVersion}.append(nil), request...)); err != nil {
		return failed(err)
	}
	mc := newMuxConn(conn)
	if err := readHello(mc); err != nil {
		return failed(err)
	}
	typ, _, body, err = mc.nextRequest()
	if err != nil {
		return failed(err)
	}
	if err := refusalError(typ, body); err != nil {
		return 0, nil, err
	}
	return typ, body, nil
}

// readHello reads the greeting of a server.
func readHello(mc *muxConn) error {
	typ, body, err := mc.next()
	if err != nil {
		return err
	}
	if typ != msgHello {
		return errMalformed
	}
	m, err := parseHello(body)
	if err == nil && m.Version != muxVersion {
		err = errors.New("it speaks another version of the mux protocol")
	}
	return err
}

// refusalError is the error that an answer is, or nil.
func refusalError(typ uint32, body []byte) error {
	switch typ {
	case sError:
		m, err := parseErrorMsg(body)
		if err != nil {
			return hpcexec.Errorf(hpcexec.ErrUnavailable, "master: %w", err)
		}
		return m.error()
	case sFailure, sPermissionDenied:
		reason, _ := parseString(body)
		kind := hpcexec.ErrUnavailable
		if typ == sPermissionDenied {
			kind = hpcexec.ErrDenied
		}
		return hpcexec.Errorf(kind, "master refused: %s", reason)
	}
	return nil
}

// askOK is ask for requests that are answered with yes or an error.
func (c *Client) askOK(ctx context.Context, request []byte) error {
	typ, _, err := c.ask(ctx, request)
	if err == nil && typ != sOK {
		err = hpcexec.Errorf(hpcexec.ErrUnavailable, "master at %s gave answer %#x", c.socket, typ)
	}
	return err
}

// Alive asks the master for its pid: a bounded round trip that no wedged
// master passes.
func (c *Client) Alive(ctx context.Context) (pid int, err error) {
	typ, body, err := c.ask(ctx, appendRequest(nil, cAliveCheck, 1, nil))
	if err != nil {
		return 0, err
	}
	n, err := parseUint32(body)
	if typ != sAlive || err != nil {
		return 0, hpcexec.Errorf(hpcexec.ErrUnavailable, "master at %s gave answer %#x", c.socket, typ)
	}
	return int(n), nil
}

// Attach has the master serve an endpoint. Attaching the same again changes
// nothing; another one on the same socket takes its place.
func (c *Client) Attach(ctx context.Context, e Endpoint) error {
	if err := e.check(); err != nil {
		return err
	}
	b, err := json.Marshal(e)
	if err != nil {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "endpoint: %w", err)
	}
	return c.askOK(ctx, appendText(nil, cAttach, 1, b))
}

// Detach ends the endpoint with a socket, and what runs on it.
func (c *Client) Detach(ctx context.Context, socket string) error {
	return c.askOK(ctx, appendText(nil, cDetach, 1, socket))
}

// Stop ends the master, or the endpoint, whose socket this is.
func (c *Client) Stop(ctx context.Context) error {
	return c.askOK(ctx, appendRequest(nil, cTerminate, 1, nil))
}

// Properties are the facts of the place behind the socket; the least promising
// ones where the master doesn't tell them.
func (c *Client) Properties() hpcexec.Properties {
	c.mu.Lock()
	facts := c.facts
	c.mu.Unlock()
	if facts == nil {
		typ, body, err := c.ask(context.Background(), appendRequest(nil, cInfo, 1, nil))
		if err != nil || typ != sInfo {
			return hpcexec.Properties{}
		}
		facts = &info{}
		text, err := parseString(body)
		if err != nil || json.Unmarshal([]byte(text), facts) != nil {
			return hpcexec.Properties{}
		}
		c.mu.Lock()
		c.facts = facts
		c.mu.Unlock()
	}
	return facts.Properties
}

// DialUnix connects to a unix socket in the place: on the host of a master, or
// in the container of an endpoint. Errors are of kind hpcexec.ErrUnavailable.
func (c *Client) DialUnix(ctx context.Context, path string) (net.Conn, error) {
	return c.dialThrough(ctx, stdioFwd{path, streamLocal})
}

// DialTCP connects to a port as the place sees it. Errors are of kind
// hpcexec.ErrUnavailable.
func (c *Client) DialTCP(ctx context.Context, host string, port uint16) (net.Conn, error) {
	return c.dialThrough(ctx, stdioFwd{host, uint32(port)})
}

func (c *Client) dialThrough(ctx context.Context, m stdioFwd) (net.Conn, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		conn.Close()
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%w", err)
	}
	defer unix.Close(theirs)
	fail := func(err error) (net.Conn, error) {
		conn.Close()
		ours.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else {
			err = hungUp(err)
		}
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: %w", m.Host, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := conn.Write(m.append(hello{muxVersion}.append(nil), 1)); err != nil {
		return fail(err)
	}
	for range 2 { // as OpenSSH does: one byte with each
		if err := sendFDs(conn, []byte{0}, []int{theirs}); err != nil {
			return fail(err)
		}
	}
	mc := newMuxConn(conn)
	if err := readHello(mc); err != nil {
		return fail(err)
	}
	typ, _, body, err := mc.nextRequest()
	if err != nil {
		return fail(err)
	}
	if err := refusalError(typ, body); err != nil {
		conn.Close()
		ours.Close()
		return nil, err
	}
	return &throughConn{UnixConn: ours, mux: conn}, nil
}

// A throughConn is a connection that a master carries. The master gives it up
// when mux is closed.
type throughConn struct {
	*net.UnixConn
	mux *net.UnixConn
}

func (c *throughConn) Close() error {
	// First the end of the data, then that of what carries it: the master
	// sends on what is left.
	err := c.UnixConn.Close()
	go func() {
		c.mux.SetReadDeadline(time.Now().Add(goodbye))
		io.Copy(io.Discard, c.mux)
		c.mux.Close()
	}()
	return err
}

// socketPair makes a connected pair, one end for here and one as a descriptor.
func socketPair() (*net.UnixConn, int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, os.NewSyscallError("socketpair", err)
	}
	unix.SetNonblock(fds[0], true)
	f := os.NewFile(uintptr(fds[0]), "socketpair")
	c, err := net.FileConn(f) // a duplicate
	f.Close()
	if err != nil {
		unix.Close(fds[1])
		return nil, 0, err
	}
	return c.(*net.UnixConn), fds[1], nil
}

// sendFDs sends bytes and descriptors with the first of them.
func sendFDs(c *net.UnixConn, b []byte, fds []int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(b, oob, nil)
	if err != nil {
		return err
	}
	if n < len(b) {
		_, err = c.Write(b[n:])
	}
	return err
}
