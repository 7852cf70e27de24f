package sshmux

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hpcexec/hpcexec"
)

const (
	// staleAfter is how long a connection may have been silent before it is
	// asked for an answer, ahead of the next command: a command sent into a
	// dead connection has no known end.
	staleAfter = 30 * time.Second

	// staleWait is how long that answer may take.
	staleWait = 5 * time.Second

	// dialWait bounds the making of a connection.
	dialWait = 60 * time.Second
)

// A link is a connection that is made when it is needed, and made anew when it
// has died. Who asks while it is being made waits for the same attempt.
type link struct {
	dial func(ctx context.Context) (*Host, error)

	// budget makes failed attempts rarer: 1 s after the first one, then twice
	// as long each time, up to a minute. Sites ban users who try too often.
	budget bool

	mu       sync.Mutex
	host     *Host
	current  *attempt
	failed   int // attempts in a row
	notUntil time.Time
	lastErr  error
	closed   bool
}

var errLinkClosed = hpcexec.Errorf(hpcexec.ErrUnavailable, "the connection is being closed")

type attempt struct {
	cancel context.CancelFunc
	done   chan struct{}
	host   *Host
	err    error
}

// get gives a live connection. Errors are those of dial, of ctx, and
// hpcexec.ErrUnavailable once the link is closed.
func (l *link) get(ctx context.Context) (*Host, error) {
	l.mu.Lock()
	h := l.host
	if h != nil && !h.ended() && h.pulse.silence() < staleAfter {
		l.mu.Unlock()
		return h, nil
	}
	a, err := l.attemptLocked()
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-a.done:
		return a.host, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// attemptLocked is the attempt that is under way, or a new one.
func (l *link) attemptLocked() (*attempt, error) {
	switch {
	case l.closed:
		return nil, errLinkClosed
	case l.current != nil:
		return l.current, nil
	case l.budget && time.Now().Before(l.notUntil):
		return nil, l.lastErr
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialWait)
	a := &attempt{cancel: cancel, done: make(chan struct{})}
	l.current = a
	go l.try(ctx, a, l.host)
	return a, nil
}

func (l *link) try(ctx context.Context, a *attempt, old *Host) {
	defer close(a.done)
	defer a.cancel()
	if old != nil && !old.ended() {
		pingCtx, cancel := context.WithTimeout(ctx, staleWait)
		err := old.Ping(pingCtx)
		cancel()
		if err == nil {
			a.host = old
		}
	}
	if a.host == nil {
		if old != nil {
			old.Close()
		}
		a.host, a.err = l.dial(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = nil
	switch {
	case a.err != nil:
		l.host = nil
		l.failed++
		l.lastErr = a.err
		l.notUntil = time.Now().Add(min(time.Second<<min(l.failed-1, 6), time.Minute))
	case l.closed:
		a.host.Close()
		a.host, a.err = nil, errLinkClosed
	default:
		l.host, l.failed = a.host, 0
	}
}

// now is the connection if there is one, without making one.
func (l *link) now() *Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.host != nil && l.host.ended() {
		return nil
	}
	return l.host
}

// close ends the connection and every attempt to make one.
func (l *link) close() {
	l.mu.Lock()
	l.closed = true
	h, a := l.host, l.current
	l.host = nil
	l.mu.Unlock()
	if a != nil {
		a.cancel()
		<-a.done
	}
	if h != nil {
		h.Close()
	}
}

// kindEnding is the kind of errEnding on its way over the wire.
const kindEnding = "ending"

// asError is err on its way over the wire.
func asError(err error) errorMsg {
	m := errorMsg{Kind: hpcexec.KindName(err), Text: err.Error(), Hint: hpcexec.Hint(err)}
	if errors.Is(err, errEnding) {
		m.Kind = kindEnding
	}
	return m
}

// error is the error that came over the wire.
func (m errorMsg) error() error {
	if m.Kind == kindEnding {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "%w", &noMasterError{errors.New(m.Text)})
	}
	kind := hpcexec.KindByName(m.Kind)
	if kind == nil {
		return errors.New(m.Text)
	}
	err := hpcexec.Errorf(kind, "%s", m.Text)
	if m.Hint != "" {
		err = err.WithHint("%s", m.Hint)
	}
	return err
}
