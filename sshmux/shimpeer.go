package sshmux

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

const (
	// flushWait is how long a cancelled command may take to end and its
	// output to reach its Writer. It is longer than the grace time of a shim.
	flushWait = 4 * time.Second

	// cancelWait is how long it may take after that.
	cancelWait = 6 * time.Second

	// closeWait is how long a peer may take to answer the close of a channel.
	closeWait = 5 * time.Second
)

// requestEOW tells the peer that nobody reads what a command writes any more:
// OpenSSH's PROTOCOL, section 2.1. The command gets SIGPIPE then.
const requestEOW = "eow@openssh.com"

// spareFor is how long a channel is used that was opened ahead. Later the round
// trip of a new one is due: the shim, or its node, may have died with nobody
// there to say so yet, and a request that is sent then has an unknown end.
const spareFor = time.Second

// A shimPeer runs commands through exec@hpcexec.
//
// It keeps one open channel ready: opening one is a round trip, and every
// command of a loop would wait for it.
type shimPeer struct {
	host *Host

	mu     sync.Mutex
	spare  *shimChannel
	opened bool // somebody is opening a spare
	closed bool
}

type shimChannel struct {
	ssh.Channel
	reqs   <-chan *ssh.Request
	opened time.Time
}

func (p *shimPeer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.spare = true, nil
}

// channel gives a session channel. spare says that it was open already.
func (p *shimPeer) channel(ctx context.Context) (c *shimChannel, spare bool, err error) {
	p.mu.Lock()
	c = p.spare
	p.spare = nil
	p.mu.Unlock()
	if c != nil && time.Since(c.opened) > spareFor {
		p.drop(c)
		c = nil
	}
	if c != nil {
		select {
		case <-c.reqs: // closed, or asking where there is nothing to ask yet
			p.drop(c)
		default:
			return c, true, nil
		}
	}
	c, err = p.open(ctx)
	return c, false, err
}

func (p *shimPeer) drop(c *shimChannel) {
	c.Close()
	go ssh.DiscardRequests(c.reqs)
}

func (p *shimPeer) open(ctx context.Context) (*shimChannel, error) {
	ch, reqs, err := p.host.openChannel(ctx, "session", nil)
	if err != nil {
		return nil, openError(p.host.opts.Place, err)
	}
	return &shimChannel{ch, reqs, time.Now()}, nil
}

// openError is the error of a channel that can't be opened: nothing ran.
func openError(place string, err error) error {
	var refused *ssh.OpenChannelError
	switch {
	case errors.As(err, &refused):
		refused.Message = printable(refused.Message)
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s refused a channel: %w", place, err)
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "connection to %s: %w", place, errConnEnded)
	}
	return err // the cause of a context
}

// errConnEnded says that a connection had ended before anything was sent.
var errConnEnded = errors.New("it has ended")

// restock opens a spare channel, unless there is one.
func (p *shimPeer) restock() {
	p.mu.Lock()
	if p.closed || p.opened || p.spare != nil {
		p.mu.Unlock()
		return
	}
	p.opened = true
	p.mu.Unlock()
	c, err := p.open(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened = false
	if err == nil && !p.closed {
		p.spare = c
	}
}

func (p *shimPeer) start(ctx context.Context, e *wire.Exec, s stdio) (proc, error) {
	c, spare, err := p.channel(ctx)
	if err != nil {
		return nil, err
	}
	err = wire.SendExec(c, e)
	if err != nil && spare && !errors.Is(err, hpcexec.ErrInvalid) {
		// The shim had closed this one.
		p.drop(c)
		if c, err = p.open(ctx); err != nil {
			return nil, err
		}
		err = wire.SendExec(c, e)
	}
	if err != nil {
		p.drop(c)
		if errors.Is(err, hpcexec.ErrInvalid) {
			return nil, err
		}
		// The request, or the end of it, was never sent.
		return nil, openError(p.host.opts.Place, err)
	}
	r := &shimProc{peer: p, c: c, s: s, ctx: ctx, done: make(chan struct{})}
	r.left.Store(3)
	if s.in != nil && e.HasStdin {
		go copyIn(c, s.in, func() { c.CloseWrite() })
	}
	go r.output(s.out, c, func() { c.SendRequest(requestEOW, false, nil) }, nil)
	// There is no such request for stderr.
	go r.output(s.err, c.Stderr(), nil, func() { r.signal("PIPE") })
	go r.requests()
	r.unwatch = context.AfterFunc(ctx, r.cancel)
	return r, nil
}

// A shimProc is a command on a channel of a shim.
type shimProc struct {
	peer    *shimPeer
	c       *shimChannel
	s       stdio
	ctx     context.Context // of the command, as start got it
	unwatch func() bool

	left atomic.Int32  // goroutines that serve the channel
	done chan struct{} // closed by the last of them

	mu        sync.Mutex
	exit      *wire.Exit
	exitErr   error // of the parser of exit
	cancelled bool  // before its end was known
}

func (r *shimProc) finished() {
	if r.left.Add(-1) == 0 {
		close(r.done)
	}
}

func (r *shimProc) output(w io.Writer, from io.Reader, failed, unread func()) {
	defer r.finished()
	copyOut(w, from, failed, unread)
}

func (r *shimProc) requests() {
	defer r.finished()
	for req := range r.c.reqs {
		if req.Type == wire.RequestExit {
			x, err := wire.ParseExit(req.Payload)
			r.mu.Lock()
			if r.exit == nil && r.exitErr == nil {
				r.exit, r.exitErr = &x, err
			}
			r.mu.Unlock()
		}
		req.Reply(false, nil)
	}
}

// cancel has the shim end the command's tree, unless the command has ended.
func (r *shimProc) cancel() {
	r.mu.Lock()
	over := r.exit != nil || r.exitErr != nil
	r.cancelled = !over
	r.mu.Unlock()
	if !over {
		r.c.SendRequest(wire.RequestCancel, false, nil)
	}
}

func (r *shimProc) wait() (wire.Exit, error) {
	cut := false
	select {
	case <-r.done:
	case <-r.ctx.Done():
		// The shim tells the end when the tree is gone and the output is
		// delivered; a Writer that takes nothing must not keep it from that.
		if !closedWithin(r.done, flushWait) {
			cut = true
			r.s.shut()
			if !closedWithin(r.done, cancelWait) {
				r.c.Close()
				closedWithin(r.done, closeWait)
			}
		}
	}
	r.unwatch()
	r.s.shut()
	go r.peer.restock()

	r.mu.Lock()
	defer r.mu.Unlock()
	place := r.peer.host.opts.Place
	switch {
	case r.exitErr != nil:
		return wire.Exit{}, hpcexec.Errorf(hpcexec.ErrUnknownEnd, "%s told the command's end in a way that can't be read: %w", place, r.exitErr)
	case r.exit == nil && r.ctx.Err() == nil:
		return wire.Exit{}, unknownEnd(place)
	case r.exit == nil:
		return wire.Exit{}, context.Cause(r.ctx)
	}
	x := *r.exit
	x.Signal, x.ErrText, x.ErrHint = printable(x.Signal), printable(x.ErrText), printable(x.ErrHint)
	if r.cancelled || cut {
		return cancelledExit(r.ctx, x)
	}
	return x, nil
}

// cancelledExit is the end of a command that was cancelled: the cause, and
// what the peer says of processes that are left.
func cancelledExit(ctx context.Context, x wire.Exit) (wire.Exit, error) {
	cause := context.Cause(ctx)
	if x.ErrKind == hpcexec.KindName(hpcexec.ErrUnknownEnd) {
		cause = hpcexec.Errorf(hpcexec.ErrUnknownEnd, "%w, and %s", cause, x.ErrText)
	}
	x.ErrKind, x.ErrText, x.ErrHint = "", "", ""
	return x, cause
}

// closedWithin waits until c is closed, or d has passed.
func closedWithin(c <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c:
		return true
	case <-t.C:
		return false
	}
}

func unknownEnd(place string) error {
	return hpcexec.Errorf(hpcexec.ErrUnknownEnd, "connection to %s was lost while the command ran", place).
		WithHint("look at what it has done before you run it again")
}

var errEnded = hpcexec.Errorf(hpcexec.ErrInvalid, "the command has ended")

func (r *shimProc) signal(name string) error {
	if r.over() {
		return errEnded
	}
	_, err := r.c.SendRequest("signal", false, ssh.Marshal(struct{ Name string }{name}))
	if err != nil {
		return errEnded
	}
	return nil
}

func (r *shimProc) resize(cols, rows int) error {
	if r.over() {
		return errEnded
	}
	if _, err := r.c.SendRequest("window-change", false, windowChange(cols, rows)); err != nil {
		return errEnded
	}
	return nil
}

// windowChange is the payload of RFC 4254, section 6.7, without pixels.
func windowChange(cols, rows int) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(cols))
	b = binary.BigEndian.AppendUint32(b, uint32(rows))
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0)
}

func (r *shimProc) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.exit != nil || r.exitErr != nil
}
