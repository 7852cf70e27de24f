package apptainer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

// stopReason says why the wrapper has ended a command.
type stopReason int

const (
	notStopped stopReason = iota
	cancelled
	timedOut
)

// watch waits until the base's run has ended. When ctx ends or the time is up
// it ends the command: SIGTERM inside, the grace time, then the end of the
// base's run, which kills what is left.
func (w *Wrapper) watch(ctx context.Context, r *run, done <-chan struct{}, cancel context.CancelCauseFunc) stopReason {
	why := notStopped
	select {
	case <-done:
		return notStopped
	case <-ctx.Done():
		why = cancelled
	case <-r.filter.seen:
		// The time is the command's, not that of the way to it.
		var timeout <-chan time.Time
		if r.orig.Timeout > 0 {
			t := time.NewTimer(r.orig.Timeout)
			defer t.Stop()
			timeout = t.C
		}
		select {
		case <-done:
			return notStopped
		case <-ctx.Done():
			why = cancelled
		case <-timeout:
			why = timedOut
		}
	}
	select {
	case <-done: // who has ended by itself has ended
		return notStopped
	default:
	}
	if r.filter.pid() != 0 {
		w.endTree(ctx, r)
	}
	cancel(errStopped)
	return why
}

// enterLimit is how long a command that has a time-out may take to begin.
const enterLimit = 20 * time.Second

// errStopped is the cause that the base's run is cancelled with.
var errStopped = errors.New("stopped by the wrapper")

func (w *Wrapper) grace() time.Duration {
	if w.Grace == 0 {
		return 2 * time.Second
	}
	return max(w.Grace, 0)
}

// endTree ends the tree of a command from inside. Whether it succeeds is no
// matter while the command lives: the base ends what it sees then.
func (w *Wrapper) endTree(ctx context.Context, r *run) {
	ctx = context.WithoutCancel(ctx)
	grace := w.grace()
	sigs := "TERM"
	if r.orig.TTY != nil {
		sigs = "HUP TERM" // what interactive shells obey
	}
	if grace > 0 {
		sctx, stop := context.WithTimeout(ctx, grace+8*time.Second)
		defer stop()
		if w.signal(sctx, r, sigs, "tree", pauses(grace)) == nil {
			return
		}
	}
	sctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	w.signal(sctx, r, "KILL", "tree", "")
}

// pauses divides a time into pauses for sleep, each twice the one before: the
// looks between them cost more the more processes there are.
func pauses(d time.Duration) string {
	var out []string
	for p := 50 * time.Millisecond; d > 0; p *= 2 {
		p = min(p, d)
		out = append(out, strconv.FormatFloat(p.Seconds(), 'f', -1, 64))
		d -= p
	}
	return strings.Join(out, " ")
}

// signal runs signalScript.
func (w *Wrapper) signal(ctx context.Context, r *run, sigs, mode, pauses string) error {
	pid := r.filter.pid()
	if pid == 0 {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "signal %s: the command isn't running", sigs)
	}
	var stderr strings.Builder
	resp, err := w.base.Run(ctx, hpcexec.Request{
		Args:   w.inst.Argv(ExecOptions{}, "/bin/sh", "-c", signalScript, "hpcexec", sigs, strconv.Itoa(pid), r.nonce(), mode, pauses),
		Env:    w.configEnv(),
		Stderr: &stderr,
	})
	switch {
	case err != nil:
		return fmt.Errorf("signal %s: %w", sigs, err)
	case resp.ExitCode == signalNobody:
		return hpcexec.Errorf(hpcexec.ErrInvalid, "signal %s: the command has ended", sigs)
	case resp.ExitCode == signalSurvivors:
		return hpcexec.Errorf(hpcexec.ErrUnknownEnd, "processes of the command survive SIGKILL")
	case resp.ExitCode != 0:
		return classify("signal "+sigs, stderr.String())
	}
	return nil
}

// configEnv says where the runtime's records are.
func (w *Wrapper) configEnv() []string {
	if rt := w.inst.rt; rt.ConfigDir != "" && rt.Flavor == Apptainer {
		return []string{"APPTAINER_CONFIGDIR=" + rt.ConfigDir}
	}
	return nil
}

// lost is the error of a command that was killed because its container ended,
// or nil where the container runs on and so somebody killed the command.
func (w *Wrapper) lost(ctx context.Context) error {
	if w.inst.Init.PID <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	// The kernel kills the processes of a container before its init has quite
	// ended, so "alive" is asked three times.
	for range 3 {
		alive, err := w.initAlive(ctx)
		if err != nil {
			return hpcexec.Errorf(hpcexec.ErrUnknownEnd, "the command was killed, and whether its container still runs is not known: %w", err)
		}
		if !alive {
			e := hpcexec.Errorf(hpcexec.ErrUnknownEnd, "instance %s ended while the command ran", w.inst.Name)
			e.Err = ErrNotFound
			return e.WithHint("what the command wrote is in the session's overlay; look at it before running it again")
		}
		if sleep(ctx, 40*time.Millisecond) != nil {
			break
		}
	}
	return nil
}

// initAlive asks the node whether the container's init runs.
func (w *Wrapper) initAlive(ctx context.Context) (bool, error) {
	var out strings.Builder
	resp, err := w.base.Run(ctx, hpcexec.Request{
		Args:   []string{"/bin/sh", "-c", aliveScript, "hpcexec", strconv.Itoa(w.inst.Init.PID)},
		Stdout: &out,
	})
	switch {
	case err != nil:
		return false, err
	case resp.ExitCode == 1:
		return false, nil
	case resp.ExitCode != 0:
		return false, errors.New(exitText(resp.ExitCode, resp.Signal))
	}
	st, err := parseStat([]byte(out.String()))
	if err != nil {
		return false, err
	}
	return st.start == w.inst.Init.Start && st.state != 'Z' && st.state != 'X', nil
}
