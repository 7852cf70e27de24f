package sshmux

import (
	"errors"
	"math/bits"
	"sync"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

// exec serves cExec: it starts a command in the background, which answers when
// it has ended.
func (c *muxClient) exec(id uint32, body []byte) error {
	m, err := parseExecMsg(body)
	if err != nil {
		c.conn.closeFDs()
		return err
	}
	fds, err := c.conn.take(bits.OnesCount32(m.Flags & (execStdin | execStdout | execStderr)))
	if err != nil {
		c.answer(id, hpcexec.Errorf(hpcexec.ErrInvalid, "exec: %w", err))
		c.flush()
		return err
	}
	e, err := wire.ParseExec(m.Body)
	if err == nil && c.busy() {
		err = hpcexec.Errorf(hpcexec.ErrInvalid, "a command runs on this connection already")
	}
	if err != nil {
		closeFDs(fds)
		c.answer(id, err)
		return nil
	}
	t := &execTask{c: c, id: id, e: e, flags: m.Flags}
	t.open(fds)
	c.task = t
	c.work.Add(1)
	go t.run()
	return nil
}

var _ task = (*execTask)(nil)

// An execTask is a command that a client of ours asked for.
type execTask struct {
	c     *muxClient
	id    uint32
	e     wire.Exec
	flags uint32
	s     stdio
	fds   []*fdStream

	mu    sync.Mutex
	p     proc // nil until it runs
	ended bool
}

// open makes streams of the descriptors, which come in the order of the flags.
func (t *execTask) open(fds []int) {
	next := func() *fdStream {
		s := newFDStream(fds[len(t.fds)], t.c.s.master.poller)
		t.fds = append(t.fds, s)
		return s
	}
	if t.flags&execStdin != 0 {
		t.s.in = next()
	}
	if t.flags&execStdout != 0 {
		t.s.out = next()
	}
	if t.flags&execStderr != 0 {
		t.s.err = next()
	}
	t.e.HasStdin = t.s.in != nil
}

func (t *execTask) run() {
	defer t.c.work.Done()
	x, err := t.exec()
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	if err != nil {
		resp, _ := x.Response()
		x = wire.ExitOf(resp, err)
	}
	// The client's pipes end before it hears of the command's end.
	for _, s := range t.fds {
		s.Close()
	}
	t.c.send(exitMsg{x, t.c.s.place}.append(nil, t.id))
	t.c.flush()
	t.c.finish()
}

func (t *execTask) exec() (wire.Exit, error) {
	ctx := t.c.ctx
	h, err := t.c.s.host(ctx)
	if err != nil {
		return wire.Exit{}, err
	}
	p, err := h.start(ctx, &t.e, t.s)
	if errors.Is(err, errConnEnded) && closedWithin(h.Done(), time.Second) {
		// Nothing was sent: once more, on a new connection.
		if h, err = t.c.s.host(ctx); err == nil {
			p, err = h.start(ctx, &t.e, t.s)
		}
	}
	if err != nil {
		return wire.Exit{}, err
	}
	t.mu.Lock()
	t.p = p
	t.mu.Unlock()
	if t.flags&execStarted != 0 {
		t.c.send(appendRequest(nil, sStarted, t.id, nil))
		t.c.flush()
	}
	x, err := p.wait()
	if err != nil && ctx.Err() != nil && t.c.s.master.ctx.Err() != nil {
		err = hpcexec.Errorf(hpcexec.ErrUnknownEnd, "the master was ended while the command ran")
	}
	return x, err
}

func (t *execTask) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

func (t *execTask) running() (proc, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended:
		return nil, errEnded
	case t.p == nil:
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "the command doesn't run yet")
	}
	return t.p, nil
}

func (t *execTask) signal(name string) error {
	p, err := t.running()
	if err != nil {
		return err
	}
	return p.signal(name)
}

func (t *execTask) resize(cols, rows int) error {
	p, err := t.running()
	if err != nil {
		return err
	}
	return p.resize(cols, rows)
}
