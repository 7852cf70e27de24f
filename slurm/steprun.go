package slurm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hpcexec/hpcexec"
)

// linger is how long srun may take to end after the command's output is
// complete. It takes longer where a background process holds the output.
const linger = 300 * time.Millisecond

var (
	errLinger  = errors.New("the command has ended")
	errNoStart = errors.New("the step didn't begin in time")
	errOverdue = errors.New("the command's time was over long ago")
)

// run sees the step to its end.
func (s *step) run(ctx context.Context) (hpcexec.Response, error) {
	defer close(s.over)
	inner, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	var signals sync.WaitGroup
	defer signals.Wait()
	defer stop(nil)
	done := make(chan error, 1)
	go func() { done <- s.runBase(inner) }()

	noStart := time.NewTimer(s.a.opt.StartTimeout)
	defer noStart.Stop()
	var lingering, overdue <-chan time.Time
	started, complete, cancelled, pipe := s.started, s.complete, ctx.Done(), s.pipe
	for {
		select {
		case err := <-done:
			return s.judge(ctx, err)
		case <-started:
			started = nil
			noStart.Stop()
			if s.req.Timeout > 0 {
				// The node keeps the time; this is for a node that is stuck.
				t := time.NewTimer(s.req.Timeout + max(0, s.a.opt.Grace) + 30*time.Second)
				defer t.Stop()
				overdue = t.C
			}
		case <-complete:
			complete = nil
			t := time.NewTimer(linger)
			defer t.Stop()
			lingering = t.C
		case <-lingering:
			stop(errLinger)
			lingering = nil
		case <-noStart.C:
			if !s.hasStarted() {
				stop(errNoStart)
			}
		case <-overdue:
			stop(errOverdue)
			overdue = nil
		case <-pipe:
			pipe = nil
			signals.Go(func() { s.a.signal(inner, s.word, s.nodeName(), "PIPE") })
		case <-cancelled:
			cancelled = nil
			if s.kill(ctx) {
				s.cancel(ctx, stop, done)
			}
		}
	}
}

func (s *step) nodeName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node != "" {
		return s.node
	}
	return s.a.opt.Node
}

// runBase runs srun. With a terminal it is started, so that it can be resized.
func (s *step) runBase(ctx context.Context) error {
	starter, ok := s.a.base.(hpcexec.Starter)
	if s.req.TTY == nil || !ok {
		_, err := s.a.base.Run(ctx, s.base)
		return err
	}
	p, err := starter.Start(ctx, s.base)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()
	_, err = p.Wait()
	return err
}

// kill says whether ctx ends the command: one that has ended has ended.
func (s *step) kill(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end {
		return false
	}
	s.killed = context.Cause(ctx)
	return true
}

// cancel ends the command and then srun. A step is made for it, since srun
// kills its own at once, without SIGTERM, without those that left the process
// tree, and without the last line of output.
func (s *step) cancel(ctx context.Context, stop context.CancelCauseFunc, done chan error) {
	inner, release := context.WithTimeout(context.WithoutCancel(ctx), max(0, s.a.opt.Grace)+20*time.Second)
	defer release()
	select {
	case <-s.started:
	case err := <-done:
		done <- err
		return
	case <-time.After(2 * time.Second):
		// It hangs on its way. An srun that is ended just when it launches
		// leaves the command running, so it is looked for afterwards.
		stop(context.Cause(ctx))
		err := <-done
		done <- err
		s.a.signal(inner, s.word, s.nodeName(), "END")
		return
	}
	if err := s.a.signal(inner, s.word, s.nodeName(), "END"); err != nil {
		s.a.c.log.Warn("the command couldn't be ended gently, so its step is killed", "job", s.a.id.String(), "err", err)
		stop(context.Cause(ctx))
		return
	}
	select {
	case err := <-done:
		done <- err
	case <-s.complete:
	case <-inner.Done():
		stop(context.Cause(ctx))
	case <-time.After(3 * time.Second):
		stop(context.Cause(ctx))
	}
}

// judge says how the step ended. err is the base's.
func (s *step) judge(ctx context.Context, err error) (hpcexec.Response, error) {
	s.stdout.flush()
	s.stderr.flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := hpcexec.Response{
		Place: s.a.place(), ID: s.id, Started: s.begun, Ended: s.ended,
		ExitCode: s.code, TimedOut: s.timeout,
	}
	if resp.Ended.IsZero() {
		resp.Ended = time.Now()
	}
	log := string(s.stderr.log) + string(s.stdout.log) // with a terminal all is one
	switch {
	case s.killed != nil:
		return resp, s.killed
	case s.end && (s.out || err == nil):
		return resp, nil
	case s.dir == "denied":
		return resp, hpcexec.Errorf(hpcexec.ErrInvalid, "%s: directory %s: permission denied", s.a.place(), s.req.Dir)
	case s.dir != "":
		return resp, hpcexec.Errorf(hpcexec.ErrInvalid, "%s: directory %s: no such directory on the node", s.a.place(), s.req.Dir)
	case errors.Is(err, errNoStart):
		return resp, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: no step could be made in %v", s.a.place(), s.a.opt.StartTimeout).
			WithHint("another step may hold what the command needs: `squeue -s -j %s` lists them", s.a.id.local())
	case errors.Is(err, errOverdue):
		return resp, hpcexec.Errorf(hpcexec.ErrUnknownEnd, "%s: the node didn't end the command when its time was over", s.a.place())
	case err != nil && s.begun.IsZero():
		return resp, err
	case err != nil:
		return resp, hpcexec.Errorf(hpcexec.ErrUnknownEnd, "%s: srun was lost: %w", s.a.place(), errors.New(err.Error()))
	case s.begun.IsZero():
		return resp, s.notStarted(ctx, log)
	}
	return resp, s.lost(ctx, log)
}

// notStarted is the error of a step that never began.
func (s *step) notStarted(ctx context.Context, log string) error {
	err := classify("srun", s.srun, log, "")
	var f *Failure
	if errors.As(err, &f) && f.cause != nil {
		return err
	}
	if strings.Contains(log, "Application launch failed") || strings.Contains(log, "Unable to create step") {
		return err
	}
	// Killed or lost before the first word: the command may have begun.
	return s.lost(ctx, log)
}

// lost is the error of a step that began and didn't tell its end.
func (s *step) lost(ctx context.Context, log string) error {
	all := log + "\n" + string(s.stderr.tail)
	why := "the step was lost"
	for _, sign := range []struct{ text, why string }{
		{"DUE TO TIME LIMIT", "the job reached its time limit"},
		{"DUE TO PREEMPTION", "the job was ended in favour of one of higher priority"},
		{"DUE TO JOB REQUEUE", "the job was put back in the queue"},
		{"DUE TO NODE FAILURE", "the node failed"},
		{"Node failure on", "the node failed"},
		{"oom-kill", "the job used more memory than it had asked for"},
		{"exceeded memory limit", "the job used more memory than it had asked for"},
		{"CANCELLED AT", "the job or the step was cancelled"},
	} {
		if strings.Contains(all, sign.text) {
			why = sign.why
			break
		}
	}
	look, stop := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer stop()
	state := ""
	if st, err := s.a.c.Job(look, s.a.id); err == nil {
		state = fmt.Sprintf("; the job %s", st.State.Words())
	}
	e := hpcexec.Errorf(hpcexec.ErrUnknownEnd, "%s: %s under the command, whose end is not known%s", s.a.place(), why, state)
	if line := firstLine(log); line != "" {
		return e.WithHint("srun said: %s", plain(line))
	}
	return e
}
