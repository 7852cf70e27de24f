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
// learned from refusals; who wants a session then waits for one to end.
//
// What is learned may be too little: a server counts a session a moment longer
// than it says. So now and then one more is tried.
type sessions struct {
	mu      sync.Mutex
	used    int             // slots: sessions and attempts to open one
	open    int             // sessions
	proven  int             // most sessions that there were at once
	limit   int             // of used; 0: not known
	streak  int             // sessions since the last refusal
	waiting []chan struct{} // for a slot, first come first
}

// tryAbove is after how many sessions without a refusal, for each that the
// limit allows, the limit is raised by one.
const tryAbove = 4

// refusalPause is the time between two tries where nobody of us will make
// room: a server frees a session a moment after it says so.
const refusalPause = 20 * time.Millisecond

// refusedFor is how long a server may refuse the only session.
const refusedFor = 3 * time.Second

// enter waits for a free slot.
func (s *sessions) enter(ctx context.Context) error {
	for {
		s.mu.Lock()
		if s.limit == 0 || s.used < s.limit {
			s.used++
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

// opened notes that a slot has become a session.
func (s *sessions) opened() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	s.proven = max(s.proven, s.open)
	s.streak++
	if s.limit > 0 && s.streak >= tryAbove*s.limit {
		s.streak = 0
		s.limit++
		s.wakeLocked()
	}
}

// closed gives the slot of a session back.
func (s *sessions) closed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	s.used--
	s.wakeLocked()
}

// leave gives a slot back that became no session.
func (s *sessions) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	s.wakeLocked()
}

// wake lets somebody else have the slot of a session that was refused.
func (s *sessions) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
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

// refused notes that the server refused the session of a slot, which is free
// again: the caller tries once more, or calls wake. others is how many sessions
// there are.
func (s *sessions) refused() (others int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	s.streak = 0
	s.limit = max(s.open, s.proven, 1)
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
	var alone time.Time // since when the server refuses although there is no other session
	for {
		if err := h.sessions.enter(ctx); err != nil {
			return nil, nil, nil, err
		}
		ch, reqs, done, others, err := h.trySession(ctx)
		var refusal *ssh.OpenChannelError
		switch {
		case err == nil || !errors.As(err, &refusal):
			return ch, reqs, done, err
		case others > 0:
			alone = time.Time{}
		case alone.IsZero():
			alone = time.Now()
		case time.Since(alone) > refusedFor:
			h.sessions.wake()
			return nil, nil, nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s refused a session: %w", h.opts.Place, err).
				WithHint("ask the site about MaxSessions and about commands over ssh")
		}
		select {
		case <-time.After(refusalPause):
		case <-ctx.Done():
			h.sessions.wake()
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
		h.sessions.wake()
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
		h.sessions.opened()
		var once sync.Once
		return ch, reqs, func() { once.Do(h.sessions.closed) }, 0, nil
	}
	var refusal *ssh.OpenChannelError
	if errors.As(err, &refusal) {
		others = h.sessions.refused()
	} else {
		h.sessions.leave()
	}
	return nil, nil, nil, others, openError(h.opts.Place, err)
}
