package slurm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hpcexec/hpcexec"
)

// A Match says which job is meant beyond its number: numbers are used again
// when they reach MaxJobId, so a number read from a file proves nothing.
type Match struct {
	Token     string    // the job's token; empty: any job of ours
	Submitted time.Time // when it was submitted; zero: at any time
}

// check says whether a job is the one that is meant, and ours.
func (m Match) check(s Status) error {
	switch {
	case !s.Ours():
	case m.Token != "" && s.Token != m.Token:
	case !m.Submitted.IsZero() && !s.Submitted.IsZero() && !s.Submitted.Equal(m.Submitted.Truncate(time.Second)):
	default:
		return nil
	}
	return &hpcexec.Error{Kind: hpcexec.ErrDenied, Err: ErrNotOurs,
		Text: fmt.Sprintf("job %s (%s) is not the job of hpcexec's that is meant: it is left alone", s.ID, s.Name),
		Hint: fmt.Sprintf("to cancel it all the same: scancel %s", s.ID.local())}
}

// Cancel cancels a job of ours and waits until it has ended, which is when its
// nodes are free. It asks first whether the job is the user's, carries our tag
// and is the one that is meant: others are left alone, with an ErrDenied that
// matches ErrNotOurs. A job that has ended already is no error.
//
// Where the job is still being cleaned up after a minute and a half, or ctx
// ends before that, the Status says so (COMPLETING) beside the error.
func (c *Client) Cancel(ctx context.Context, id JobID, want Match) (Status, error) {
	jobs, err := c.squeue(ctx)
	if err != nil {
		return unknown(id, err), err
	}
	s, ok := pick(jobs, id)
	if !ok {
		// Not among the user's jobs: it has ended, or it is somebody else's.
		s, err = c.elsewhere(ctx, id)
		if err != nil || s.State.Ended() {
			return s, err
		}
		site, err := c.Site(ctx)
		if err != nil {
			return s, err
		}
		if s.User != site.User {
			s.Token = "" // a tag of another user's hpcexec
		}
	}
	if s.State.Ended() {
		return s, nil
	}
	if err := want.check(s); err != nil {
		return s, err
	}
	if err := c.scancel(ctx, id); err != nil {
		return s, err
	}
	return c.waitEnd(ctx, id)
}

// scancel asks for the end of a job. It is silent for jobs that have ended.
func (c *Client) scancel(ctx context.Context, id JobID) error {
	_, err := c.run(ctx, call{prog: "scancel", args: []string{id.local()}})
	if errors.Is(err, ErrNoSuchJob) {
		return nil
	}
	return err
}

// cancelPatience is how long a job may take to end: KillWait (30 s by default)
// and an epilog.
const cancelPatience = 90 * time.Second

func (c *Client) waitEnd(ctx context.Context, id JobID) (Status, error) {
	begun := time.Now()
	var last Status
	gone := false
	for {
		s, err := c.Job(ctx, id)
		if ctx.Err() != nil {
			return last, context.Cause(ctx)
		}
		if err != nil && !canRetry(err) {
			return s, err
		}
		if s.State.Ended() && (s.State != Gone || gone) {
			return s, nil
		}
		gone = s.State == Gone
		last = s
		waited := time.Since(begun)
		if waited > cancelPatience {
			return s, hpcexec.Errorf(hpcexec.ErrUnavailable, "job %s %s %v after scancel", id, s.State.Words(), cancelPatience).
				WithHint("its node may have trouble: squeue -j %s shows when it is gone", id.local())
		}
		if err := sleep(ctx, max(c.opt.PollFloor, min(max(waited/5, 50*time.Millisecond), 3*time.Second))); err != nil {
			return last, err
		}
	}
}
