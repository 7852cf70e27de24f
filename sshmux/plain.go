package sshmux

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/hpcexec/hpcexec"
)

// A PlainSession is a session as OpenSSH's client asks for it: a line for the
// shell of the host, or a subsystem, on three descriptors. On the socket of a
// master it goes straight to the SSH server there, without a shim in between:
// it is the shortest way for much data. It keeps no clause of the contract:
// nobody ends its processes, but that their streams end.
type PlainSession struct {
	Command   string // or the name of the subsystem
	Subsystem bool

	Stdin, Stdout, Stderr *os.File // all needed; the caller closes them, at once if it wants to
}

// A Plain is a PlainSession that was started.
type Plain struct {
	conn *muxConn
}

// StartPlain starts a plain session. ctx bounds the start alone; the caller
// must call Close. Errors are of kind hpcexec.ErrUnavailable, or those that
// the master answers.
func (c *Client) StartPlain(ctx context.Context, s PlainSession) (*Plain, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*Plain, error) {
		conn.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%w", err)
	}
	var fds []int
	for _, f := range []*os.File{s.Stdin, s.Stdout, s.Stderr} {
		fd, err := fileFD(f)
		if err != nil {
			return fail(err)
		}
		fds = append(fds, fd)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	m := newSession{Subsystem: s.Subsystem, Escape: noEscape, Command: s.Command}
	if _, err := conn.Write(m.append(hello{muxVersion}.append(nil), 1)); err != nil {
		return fail(err)
	}
	for _, fd := range fds { // as OpenSSH does: one byte with each
		if err := sendFDs(conn, []byte{0}, []int{fd}); err != nil {
			return fail(err)
		}
	}
	runtime.KeepAlive(s) // its files have been used by number
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
		return nil, err
	}
	return &Plain{mc}, nil
}

// Wait returns the exit code of the session. Where its end isn't known, or it
// was closed before, the error is of kind hpcexec.ErrUnknownEnd.
func (p *Plain) Wait() (code int, err error) {
	for {
		typ, _, body, err := p.conn.nextRequest()
		if err != nil {
			if err == io.EOF || errors.Is(err, net.ErrClosed) {
				err = errors.New("connection lost")
			}
			return 0, hpcexec.Errorf(hpcexec.ErrUnknownEnd, "session: %w", err)
		}
		if typ == sExitMessage {
			n, err := parseUint32(body)
			if err != nil {
				return 0, hpcexec.Errorf(hpcexec.ErrUnknownEnd, "session: %w", err)
			}
			return int(n), nil
		}
	}
}

// Close hangs up. A session that hasn't ended loses its streams.
func (p *Plain) Close() error { return p.conn.c.Close() }
