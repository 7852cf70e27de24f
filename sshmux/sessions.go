package sshmux

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
)

// sessions counts the sessions of a connection to an SSH server that allows
// only so many (MaxSessions, 10 by default, 1 on some sites). The limit is
// learned from the first refusal; from then on who wants a session waits for
// one to end.
type sessions struct {
	mu      sync.Mutex
	open    int
	limit   int             // 0: not known
	opened  int             // since the limit was set or tried
	waiting []chan struct{} // first come first
}

// tryAbove is after how many sessions a limit is tried again: a session that
// was on its way out may have made it seem lower than it is.
const tryAbove = 256

// refusalPause is the time between two tries where nobody of us will make
// room: a server frees a session a moment after it says so.
const refusalPause = 20 * time.Millisecond

// refusedFor is how long a server may refuse the only session.
const refusedFor = 3 * time.Second

// enter waits for a free slot.
func (s *sessions) enter(ctx context.Context) error {
	for {
		s.mu.Lock()
		if s.limit == 0 || s.open < s.limit {
			s.open++
			s.mu.Unlock()
			return nil
		}
		if s.opened >= tryAbove {
			s.opened = 0
			s.open++
			s.limit++
			s.mu.Unlock()
			return nil
		}
		w := make(chan struct{})
		s.waiting = append(s.waiting, w)
		s.mu.Unlock()
		select {
		case <-w:
		case <-ctx.Done():
			s.giveUp(w)
			return context.Cause(ctx)
		}
	}
}

// leave gives a slot back.
func (s *sessions) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	s.wakeLocked()
}

func (s *sessions) wakeLocked() {
	if len(s.waiting) > 0 {
		close(s.waiting[0])
		s.waiting = s.waiting[1:]
	}
}

// giveUp takes a waiter out of the queue. One that was just woken wakes the
// next instead.
func (s *sessions) giveUp(w chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, w); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	} else {
		s.wakeLocked()
	}
}

// refused notes that the server refused the session of a slot. others is how
// many sessions there are beside it.
func (s *sessions) refused() (others int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.open > 0 && (s.limit == 0 || s.open < s.limit) {
		s.limit = s.open
	}
	s.opened = 0
	return s.open
}

// max is the limit, 0 where it isn't known.
func (s *sessions) max() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limit
}

// session opens a channel of type "session", and waits for a slot where the
// server has a limit. done must be called once, when the channel is closed by
// both sides. Errors: context.Cause(ctx), and hpcexec.ErrUnavailable.
func (h *Host) session(ctx context.Context) (ch ssh.Channel, reqs <-chan *ssh.Request, done func(), err error) {
	started := time.Now()
	for {
		if err := h.sessions.enter(ctx); err != nil {
			return nil, nil, nil, err
		}
		ch, reqs, done, others, err := h.trySession(ctx)
		var refusal *ssh.OpenChannelError
		if err == nil || !errors.As(err, &refusal) {
			return ch, reqs, done, err
		}
		if others == 0 && time.Since(started) > refusedFor {
			return nil, nil, nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s refused a session: %w", h.opts.Place, err).
				WithHint("ask the site about MaxSessions and about commands over ssh")
		}
		select {
		case <-time.After(refusalPause):
		case <-ctx.Done():
			return nil, nil, nil, context.Cause(ctx)
		}
	}
}

// secondSession is session for what does without where the server allows one
// at a time. It fails at once then.
func (h *Host) secondSession(ctx context.Context) (ch ssh.Channel, reqs <-chan *ssh.Request, done func(), err error) {
	if h.sessions.max() != 1 {
		if err := h.sessions.enter(ctx); err != nil {
			return nil, nil, nil, err
		}
		ch, reqs, done, _, err := h.trySession(ctx)
		if err == nil {
			return ch, reqs, done, nil
		}
	}
	if h.sessions.max() == 1 {
		return nil, nil, nil, errOneSession
	}
	return h.session(ctx)
}

var errOneSession = errors.New("the host allows one session at a time")

// trySession opens a session in a slot that was entered; it leaves it if it
// fails. others is how many sessions there were beside one that was refused.
func (h *Host) trySession(ctx context.Context) (ch ssh.Channel, reqs <-chan *ssh.Request, done func(), others int, err error) {
	ch, reqs, err = h.openChannel(ctx, "session", nil)
	if err == nil {
		h.sessions.mu.Lock()
		h.sessions.opened++
		h.sessions.mu.Unlock()
		var once sync.Once
		return ch, reqs, func() { once.Do(func() { h.sessions.leave() }) }, 0, nil
	}
	var refusal *ssh.OpenChannelError
	if errors.As(err, &refusal) {
		others = h.sessions.refused()
	} else {
		h.sessions.leave()
	}
	return nil, nil, nil, others, openError(h.opts.Place, err)
}
