package sshmux

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
)

// newSession serves MUX_C_NEW_SESSION: a session on the host, connected to the
// client's descriptors, as OpenSSH's master makes it.
func (c *muxClient) newSession(id uint32, body []byte) error {
	m, err := parseNewSession(body)
	if err != nil {
		return err
	}
	fds, err := c.conn.takeOpenSSH(3)
	if err != nil {
		c.deny(id, sFailure, "did not receive file descriptors")
		c.flush()
		return err
	}
	if c.task != nil {
		closeFDs(fds)
		c.deny(id, sFailure, "Multiple sessions not supported")
		return nil
	}
	t := &sessionTask{c: c, id: id, m: m}
	for i, fd := range fds {
		t.fds[i] = newFDStream(fd, c.s.master.poller)
	}
	c.task = t
	c.work.Add(1)
	go t.run()
	return nil
}

var _ task = (*sessionTask)(nil)

// A sessionTask is a session of OpenSSH's client.
type sessionTask struct {
	c   *muxClient
	id  uint32
	m   newSession
	fds [3]*fdStream

	mu sync.Mutex
	ch ssh.Channel // nil until it is open, and after the end
}

func (t *sessionTask) run() {
	defer t.c.work.Done()
	defer t.c.hangUp()
	defer func() {
		t.c.s.master.forgetTerminal(t) // before its descriptor is another's
		for _, s := range t.fds {
			s.Close()
		}
	}()
	h, err := t.c.s.host(t.c.ctx)
	if err != nil {
		t.c.deny(t.id, sFailure, refusal(err))
		return
	}
	ch, reqs, done, err := h.session(t.c.ctx)
	if err != nil {
		t.c.deny(t.id, sFailure, refusal(err))
		return
	}
	defer done()
	stop := context.AfterFunc(t.c.ctx, func() {
		ch.Close()
		for _, s := range t.fds {
			s.stop()
		}
	})
	defer stop()

	h.beat.begin()
	defer h.beat.end()
	// The terminal's settings, before the client changes them: it does so at
	// this answer, so that goes out ahead of all that may bring output.
	var pty []byte
	if t.m.TTY {
		pty = ptyRequest(t.m.Term, t.fds[0].fd)
	}
	t.c.send(appendNumber(nil, sSessionOpened, t.id, t.id))
	t.c.flush()
	if err := t.setup(ch, pty); err != nil {
		// Too late for a refusal: as with OpenSSH, the client gets no exit
		// status.
		ch.Close()
		go ssh.DiscardRequests(reqs)
		fmt.Fprintf(t.fds[2], "%s\r\n", refusal(err))
		return
	}
	t.mu.Lock()
	t.ch = ch
	t.mu.Unlock()
	if code, ok := t.copy(ch, reqs); ok {
		t.c.send(appendNumber(nil, sExitMessage, t.id, code))
	}
	t.mu.Lock()
	t.ch = nil
	t.mu.Unlock()
}

// setup asks for what the session is to be, in the order of OpenSSH's client.
func (t *sessionTask) setup(ch ssh.Channel, pty []byte) error {
	if t.m.TTY {
		ok, err := ch.SendRequest("pty-req", true, pty)
		if err != nil {
			return err
		}
		if ok {
			t.c.s.master.watchTerminal(t)
		} else {
			t.c.send(appendRequest(nil, sTTYAllocFail, t.id, nil))
			t.c.flush()
		}
	}
	for _, e := range t.m.Env {
		name, value, ok := strings.Cut(e, "=")
		if !ok {
			continue
		}
		if _, err := ch.SendRequest("env", false, ssh.Marshal(struct{ Name, Value string }{name, value})); err != nil {
			return err
		}
	}
	name, payload := "shell", []byte(nil)
	switch {
	case t.m.Subsystem:
		name, payload = "subsystem", ssh.Marshal(struct{ Name string }{t.m.Command})
	case t.m.Command != "":
		name, payload = "exec", ssh.Marshal(struct{ Command string }{t.m.Command})
	}
	ok, err := ch.SendRequest(name, true, payload)
	if err == nil && !ok {
		err = errors.New(name + " request failed")
	}
	return err
}

// copy connects the session with the descriptors, to its end. ok is false
// where the end is not known.
func (t *sessionTask) copy(ch ssh.Channel, reqs <-chan *ssh.Request) (code uint32, ok bool) {
	var in io.Reader = t.fds[0]
	if t.m.TTY && t.m.Escape != noEscape {
		in = &escapeReader{r: in, escape: byte(t.m.Escape), disconnect: func() { ch.Close() }}
	}
	go copyIn(ch, in, func() { ch.CloseWrite() })
	var outputs sync.WaitGroup
	outputs.Go(func() { copyOut(t.fds[1], ch, func() { ch.SendRequest(requestEOW, false, nil) }, nil) })
	outputs.Go(func() { copyOut(t.fds[2], ch.Stderr(), nil, func() { t.signal("PIPE") }) })
	for r := range reqs {
		switch {
		case r.Type == "exit-status" && len(r.Payload) >= 4:
			code, ok = binary.BigEndian.Uint32(r.Payload), true
		case r.Type == "exit-signal":
			var m struct{ Signal, Rest string }
			d := decoder{rest: r.Payload}
			m.Signal = d.string()
			if n, known := hpcexec.SignalNumber(m.Signal); d.err == nil && known {
				code, ok = uint32(128+n), true
			}
		}
		r.Reply(false, nil)
	}
	outputs.Wait()
	return code, ok
}

// refusal is err as the reason of a MUX_S_FAILURE, which ssh shows.
func refusal(err error) string {
	if hint := hpcexec.Hint(err); hint != "" {
		return err.Error() + " (" + hint + ")"
	}
	return err.Error()
}

func (t *sessionTask) channel() (ssh.Channel, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ch == nil {
		return nil, errEnded
	}
	return t.ch, nil
}

func (t *sessionTask) signal(name string) error {
	ch, err := t.channel()
	if err != nil {
		return err
	}
	_, err = ch.SendRequest("signal", false, ssh.Marshal(struct{ Name string }{name}))
	return err
}

func (t *sessionTask) resize(cols, rows int) error {
	ch, err := t.channel()
	if err != nil {
		return err
	}
	_, err = ch.SendRequest("window-change", false, windowChange(cols, rows))
	return err
}

func (t *sessionTask) over() bool { return false } // one session a connection
