package sshmux

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

const (
	// doubtAfter is how long a master may say nothing before it is asked
	// whether it is there.
	doubtAfter = 15 * time.Second

	// cancelLimit bounds the end of a cancelled command: the master's own
	// limits and some time.
	cancelLimit = flushWait + cancelWait + closeWait + 5*time.Second
)

// Run runs one command, as the contract of hpcexec.Executor says. Files among
// the streams are passed to the master as they are.
func (c *Client) Run(ctx context.Context, req hpcexec.Request) (hpcexec.Response, error) {
	p, err := c.send(ctx, &req, 0)
	if err != nil {
		return hpcexec.Response{}, err
	}
	return p.Wait()
}

// Start starts one command, as the contract of hpcexec.Starter says.
func (c *Client) Start(ctx context.Context, req hpcexec.Request) (hpcexec.Process, error) {
	p, err := c.send(ctx, &req, execStarted)
	if err != nil {
		return nil, err
	}
	if err := p.awaitStart(); err != nil {
		return nil, err
	}
	return p, nil
}

// send sends the request with its descriptors, without waiting for anything.
func (c *Client) send(ctx context.Context, req *hpcexec.Request, flags uint32) (*clientProcess, error) {
	if err := req.Check(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	id := req.ID
	if id == "" {
		id = hpcexec.NewID()
	}
	e := wire.ExecOf(req)
	e.ID = id
	e.Merged = oneStream(req)
	body := e.Marshal()
	if len(body) > wire.MaxExec {
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "arguments and environment are %d bytes, more than %d", len(body), wire.MaxExec)
	}
	conn, err := c.connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	p := &clientProcess{c: c, ctx: ctx, conn: newMuxConn(conn), id: id, tty: req.TTY != nil}
	fds, more, err := p.streams.open(req, e.Merged)
	if err == nil {
		msg := execMsg{Flags: flags | more, Body: body}.append(hello{muxVersion}.append(nil), 1)
		err = sendFDs(conn, msg, fds)
		runtime.KeepAlive(req) // its files have been used by number
		if err != nil {
			// The last byte of the message was never sent.
			err = hpcexec.Errorf(hpcexec.ErrUnavailable, "master at %s: %w", c.socket, err)
		}
	}
	p.streams.sent()
	if err != nil {
		p.streams.finish(true)
		conn.Close()
		return nil, err
	}
	p.unwatch = context.AfterFunc(ctx, p.cancel)
	return p, nil
}

// A clientProcess is a command that a master runs.
type clientProcess struct {
	c       *Client
	ctx     context.Context // of the command, as Start got it
	conn    *muxConn
	id      string
	tty     bool
	unwatch func() bool
	streams clientStreams

	greeted bool
	began   bool // the command is known to have started
	exit    *wire.Exit
	place   string
	failure error

	mu        sync.Mutex
	waited    bool
	over      bool
	cancelled bool
	told      bool // more than the request was sent
}

// cancel has the master end the command: it does so when the connection ends.
// Its answer still comes.
func (p *clientProcess) cancel() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.cancelled {
		return
	}
	p.cancelled = true
	p.conn.c.CloseWrite()
	p.conn.c.SetReadDeadline(time.Now().Add(cancelLimit))
}

// awaitStart returns once the command runs, or can't.
func (p *clientProcess) awaitStart() error {
	for !p.began && p.exit == nil && p.failure == nil {
		p.read()
	}
	var err error
	switch {
	case p.failure != nil && !p.began:
		err = p.failure
	case p.exit != nil && p.exit.ErrKind != "" && !p.began:
		_, err = p.exit.Response()
		if p.ctx.Err() != nil {
			err = context.Cause(p.ctx)
		}
	default:
		return nil
	}
	p.finish()
	return err
}

// read reads the next message that matters into exit, failure or began.
func (p *clientProcess) read() {
	typ, id, body, err := p.next()
	if err == nil {
		err = refusalError(typ, body)
		if err != nil {
			p.failure = err
			return
		}
	}
	switch {
	case err != nil:
		p.failure = p.lost(err)
	case typ == sStarted:
		p.began = true
	case typ == sExit && id == 1:
		m, err := parseExitMsg(body)
		if err != nil {
			p.failure = p.lost(err)
			return
		}
		p.exit, p.place = &m.Exit, m.Place
	}
}

// next reads a message. While the master says nothing it is asked, on another
// connection, whether it is there.
func (p *clientProcess) next() (typ, id uint32, body []byte, err error) {
	for {
		p.mu.Lock()
		if !p.cancelled {
			p.conn.c.SetReadDeadline(time.Now().Add(doubtAfter))
		}
		p.mu.Unlock()
		if !p.greeted {
			if err = readHello(p.conn); err == nil {
				p.greeted = true
				continue
			}
		} else {
			typ, id, body, err = p.conn.nextRequest()
		}
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return typ, id, body, err
		}
		p.mu.Lock()
		cancelled := p.cancelled
		p.mu.Unlock()
		if cancelled {
			return 0, 0, nil, err
		}
		if _, aliveErr := p.c.Alive(context.WithoutCancel(p.ctx)); aliveErr != nil {
			return 0, 0, nil, aliveErr
		}
	}
}

// lost is the error of a master that is gone, or talks nonsense. Whether the
// command has started isn't known: it runs a moment after the master has read
// the request.
//
// A reset tells that it does: the kernel gives it where the other end was
// closed with something unread (unix(7)), and nothing but the request was sent.
func (p *clientProcess) lost(err error) error {
	p.mu.Lock()
	told := p.told
	p.mu.Unlock()
	if errors.Is(err, syscall.ECONNRESET) && !told && !p.began {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "master at %s: %w", p.c.socket, err)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it has ended")
	}
	return hpcexec.Errorf(hpcexec.ErrUnknownEnd, "master at %s: %w", p.c.socket, err).
		WithHint("look at what the command has done before you run it again")
}

// Wait returns how the command ended.
func (p *clientProcess) Wait() (hpcexec.Response, error) {
	p.mu.Lock()
	waited := p.waited
	p.waited = true
	p.mu.Unlock()
	if waited {
		return hpcexec.Response{}, hpcexec.Errorf(hpcexec.ErrInvalid, "Wait was called before")
	}
	for p.exit == nil && p.failure == nil {
		p.read()
	}
	p.finish()
	resp := hpcexec.Response{Place: p.place, ID: p.id}
	p.mu.Lock()
	cancelled := p.cancelled
	p.mu.Unlock()
	if p.failure != nil {
		if cancelled {
			return resp, context.Cause(p.ctx)
		}
		return resp, p.failure
	}
	x := *p.exit
	if cancelled {
		var err error
		x, err = cancelledExit(p.ctx, x)
		resp, _ = p.response(x)
		return resp, err
	}
	return p.response(x)
}

func (p *clientProcess) response(x wire.Exit) (hpcexec.Response, error) {
	resp, err := x.Response()
	resp.Place, resp.ID = p.place, p.id
	return resp, err
}

// finish gives up the connection and waits for the output.
func (p *clientProcess) finish() {
	p.unwatch()
	p.mu.Lock()
	p.over = true
	hurry := p.cancelled || p.failure != nil
	p.mu.Unlock()
	p.streams.finish(hurry)
	p.conn.close()
}

// Signal sends a signal to the command's process group.
func (p *clientProcess) Signal(name string) error {
	if err := checkSignal(name); err != nil {
		return err
	}
	return p.tell(appendText(nil, cSignal, 2, name))
}

// Resize sets the size of the command's terminal.
func (p *clientProcess) Resize(cols, rows int) error {
	if err := checkResize(p.tty, cols, rows); err != nil {
		return err
	}
	return p.tell(resize{uint32(cols), uint32(rows)}.append(nil, 2))
}

// tell sends a request about the command. Its answer is read by Wait, and
// ignored.
func (p *clientProcess) tell(msg []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.cancelled {
		return errEnded
	}
	p.told = true
	if _, err := p.conn.c.Write(msg); err != nil {
		return errEnded
	}
	return nil
}

var _ net.Conn = (*throughConn)(nil)
