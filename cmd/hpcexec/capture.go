package main

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// captureLimit is how much of a stream the output of --json has.
const captureLimit = 1 << 20

// A capture collects the two output streams of a command for --json, in
// bounded memory: of each, and of both in order, the beginning and the end are
// kept. What doesn't fit goes whole to a log file, which is made only then.
type capture struct {
	limit int
	open  func() (*os.File, error) // makes the log

	mu             sync.Mutex
	out, err, both bounded
	log            *os.File
	logOut, logErr *redactor
	logFailed      error
	early          []earlyWrite // all that was written, until there is a log
	secrets        []string
}

// earlyWrite is a write that came before the log: each stream is redacted on
// its own, so the log must know whose it was.
type earlyWrite struct {
	stderr bool
	n      int
}

func newCapture(limit int, secrets []string, open func() (*os.File, error)) *capture {
	c := &capture{limit: limit, open: open, secrets: secrets}
	c.out.limit, c.err.limit, c.both.limit = limit, limit, limit
	return c
}

func (c *capture) stdout() io.Writer { return captureStream{c, &c.out, false} }
func (c *capture) stderr() io.Writer { return captureStream{c, &c.err, true} }

type captureStream struct {
	c      *capture
	own    *bounded
	stderr bool
}

// Write never fails: a full disk must not end the command.
func (s captureStream) Write(p []byte) (int, error) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log == nil && c.logFailed == nil && c.both.total+int64(len(p)) > int64(c.limit) {
		c.startLogLocked()
	}
	s.own.Write(p)
	c.both.Write(p)
	if c.log == nil {
		if n := len(c.early); n > 0 && c.early[n-1].stderr == s.stderr {
			c.early[n-1].n += len(p)
		} else {
			c.early = append(c.early, earlyWrite{s.stderr, len(p)})
		}
		return len(p), nil
	}
	c.toLogLocked(s.stderr, p)
	return len(p), nil
}

func (c *capture) startLogLocked() {
	c.log, c.logFailed = c.open()
	if c.logFailed != nil {
		c.log, c.early = nil, nil
		return
	}
	c.logOut, c.logErr = newRedactor(c.log, c.secrets), newRedactor(c.log, c.secrets)
	whole := c.both.bytes()
	for _, w := range c.early {
		c.toLogLocked(w.stderr, whole[:w.n])
		whole = whole[w.n:]
	}
	c.early = nil
}

func (c *capture) toLogLocked(stderr bool, p []byte) {
	to := c.logOut
	if stderr {
		to = c.logErr
	}
	if _, err := to.Write(p); err != nil && c.logFailed == nil {
		c.logFailed = err
	}
}

// finish closes the log and says where it is; empty where everything fitted.
func (c *capture) finish() (logPath string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log == nil {
		return "", c.logFailed
	}
	for _, step := range []func() error{c.logOut.Close, c.logErr.Close, c.log.Close} {
		if err := step(); err != nil && c.logFailed == nil {
			c.logFailed = err
		}
	}
	return c.log.Name(), c.logFailed
}

func (c *capture) truncated() bool { return c.both.total > int64(c.limit) }

// bounded keeps the first and the last half of its limit.
type bounded struct {
	limit      int
	head, tail []byte
	total      int64
}

func (b *bounded) Write(p []byte) {
	b.total += int64(len(p))
	if room := b.limit/2 - len(b.head); room > 0 {
		n := min(room, len(p))
		b.head = append(b.head, p[:n]...)
		p = p[n:]
	}
	b.tail = append(b.tail, p...)
	// Trimmed at twice its size, so that each byte is moved once at most.
	if keep := b.limit - b.limit/2; len(b.tail) > 2*keep {
		b.tail = append(b.tail[:0], b.tail[len(b.tail)-keep:]...)
	}
}

// bytes is all of it while that is within the limit.
func (b *bounded) bytes() []byte { return append(append([]byte(nil), b.head...), b.tail...) }

// text is what is kept, as safe text, with a line in between that says how
// much is left out.
func (b *bounded) text() string {
	if b.total <= int64(b.limit) {
		return safeText(b.bytes())
	}
	tail := b.tail[max(0, len(b.tail)-(b.limit-b.limit/2)):]
	left := b.total - int64(len(b.head)+len(tail))
	return safeText(b.head) + fmt.Sprintf("\n[… %d bytes left out …]\n", left) + safeText(tail)
}
