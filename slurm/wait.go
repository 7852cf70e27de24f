package slurm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

// Wait waits until a job runs and gives its Status, with its nodes and the end
// of its time. onChange, which may be nil, is called in between, by the same
// goroutine, whenever the state, the reason or the expected start changes, and
// when the controller can't be asked (State Unknown).
//
// It asks quickly at first and then ever more slowly: a tenth of the time
// waited so far, between Options.PollFloor (0.1 s without one) and
// Options.PollCeiling. So a start is noticed at most 10 % late.
//
// The error is ErrAllocationGone where the job has ended; ErrInvalid where it
// can never start, with the remedy (the job is still in the queue then);
// ErrUnavailable where the controller can't be asked for Options.Patience; and
// the cause of ctx where that ends. Wait changes nothing: [Client.WaitOrCancel]
// takes the job out of the queue as well.
func (c *Client) Wait(ctx context.Context, id JobID, onChange func(Status)) (Status, error) {
	w := waiter{c: c, id: id, onChange: onChange, begun: time.Now()}
	for {
		s, jobs, err := c.job(ctx, id)
		if ctx.Err() != nil {
			return w.last, context.Cause(ctx)
		}
		c.dropTwins(ctx, jobs, s) // a request of Submit that came very late
		if done, err := w.look(ctx, s, err); done {
			return s, err
		}
		if err := sleep(ctx, w.pause()); err != nil {
			return w.last, err
		}
	}
}

// WaitOrCancel is Wait for one who wants the job running or not at all: where
// it fails, by the end of ctx or because the job can never start, the job is
// cancelled. It has to carry want's token.
func (c *Client) WaitOrCancel(ctx context.Context, id JobID, want Match, onChange func(Status)) (Status, error) {
	s, err := c.Wait(ctx, id, onChange)
	if err == nil || errors.Is(err, hpcexec.ErrAllocationGone) {
		return s, err
	}
	inner, stop := context.WithTimeout(context.WithoutCancel(ctx), c.opt.CallTimeout)
	defer stop()
	if cancelled, cancelErr := c.Cancel(inner, id, want); cancelErr == nil {
		s = cancelled
	} else {
		c.log.Warn("a job that nobody waits for couldn't be cancelled", "job", id.String(), "err", cancelErr)
	}
	return s, err
}

// A waiter is the state of one Wait.
type waiter struct {
	c        *Client
	id       JobID
	onChange func(Status)
	begun    time.Time

	last     Status
	told     string    // what onChange was told last
	silent   time.Time // since when the controller couldn't be asked; zero: it could
	hopeless time.Time // since when the reason is one that never clears
	failures int
	gone     bool // the last look found nothing
}

// look judges one answer: done says that the wait is over.
func (w *waiter) look(ctx context.Context, s Status, err error) (done bool, _ error) {
	now := time.Now()
	if err != nil && !canRetry(err) {
		return true, err
	}
	if s.State == Unknown {
		w.tell(s)
		w.failures++
		if w.silent.IsZero() {
			w.silent = now
		}
		if now.Sub(w.silent) < w.c.opt.Patience {
			return false, nil
		}
		return true, &hpcexec.Error{Kind: hpcexec.ErrUnavailable, Err: err,
			Text: fmt.Sprintf("job %s: the controller couldn't be asked for %v: %v", w.id, w.c.opt.Patience, err),
			Hint: "the job may still be in the queue or run; try again later"}
	}
	w.silent, w.failures = time.Time{}, 0
	if s.State == Gone && !w.gone {
		w.gone = true // absence counts when it is seen twice
		return false, nil
	}
	w.gone = s.State == Gone
	w.last = s
	w.tell(s)

	switch {
	case s.State == Running:
		return true, nil
	case s.State.Ended(), s.State == Completing:
		return true, endedError(s)
	}
	if !s.State.Waiting() || s.Why.Class != ClassFix {
		w.hopeless = time.Time{}
		return false, nil
	}
	// A reason may stand there for a moment while the scheduler looks.
	if w.hopeless.IsZero() {
		w.hopeless = now
	}
	if now.Sub(w.hopeless) < 3*time.Second {
		return false, nil
	}
	return true, hpcexec.Errorf(hpcexec.ErrInvalid, "job %s never starts: it %s (%s)", s.ID, s.Why.Text, s.Reason).WithHint("%s", s.Why.Remedy)
}

// tell calls onChange where there is news. A forecast that moves by less than
// a minute is none.
func (w *waiter) tell(s Status) {
	news := strings.Join([]string{string(s.State), s.Reason, s.Expected.Truncate(time.Minute).String()}, "\x00")
	if s.State == Unknown {
		news = string(Unknown)
	}
	if news == w.told {
		return
	}
	w.told = news
	if w.onChange != nil {
		w.onChange(s)
	}
}

// pause is the time until the next look.
func (w *waiter) pause() time.Duration {
	floor := max(w.c.opt.PollFloor, 100*time.Millisecond)
	d := time.Since(w.begun) / 10
	if w.failures > 0 {
		// Don't add to a controller's trouble.
		d = max(d, min(time.Second<<min(w.failures, 6), time.Minute))
		return max(floor, d)
	}
	if !w.hopeless.IsZero() {
		d = min(d, time.Second)
	}
	return max(floor, min(d, w.c.opt.PollCeiling))
}

// endedError is the error of a job that has ended when it should run.
func endedError(s Status) error {
	text := fmt.Sprintf("job %s %s", s.ID, s.State.Words())
	if s.Started.IsZero() && s.State == Cancelled {
		text += " before it started"
	}
	if s.Why.Text != "" {
		text += fmt.Sprintf(": it %s (%s)", s.Why.Text, s.Reason)
	}
	if s.ExitKnown && (s.ExitCode != 0 || s.Signal != 0) {
		text += fmt.Sprintf(", exit code %d", s.ExitCode)
		if s.Signal != 0 {
			text += fmt.Sprintf(", signal %d", s.Signal)
		}
	}
	return hpcexec.Errorf(hpcexec.ErrAllocationGone, "%s", text).WithHint("%s", s.Why.Remedy)
}
