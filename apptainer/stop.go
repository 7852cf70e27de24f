package apptainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
)

// A StopPath says how an instance came to its end.
type StopPath string

const (
	StopGone StopPath = "gone" // it had ended before
	StopTerm StopPath = "term" // its init ended at SIGTERM
	StopKill StopPath = "kill" // it had to be killed
)

// Stopped reports a stop.
type Stopped struct {
	Path    StopPath
	Took    time.Duration
	Helpers int // FUSE helpers that were left over and had to be killed
}

// defaultGrace is how long a payload may take to end at SIGTERM.
const defaultGrace = 300 * time.Millisecond

// Stop ends the instance and all that runs in it, and returns when no process
// of it is left and the runtime doesn't list it any more: the overlay is free
// then. It is no error where it had ended before.
//
// Commands that were exec'd into it get SIGKILL without notice, so a payload
// that wants a clean end must have been asked before; a start script gets
// SIGTERM and grace (0: 300 ms).
//
// The runtime's own `instance stop` isn't used: it waits for a process to
// vanish which, where PID 1 reaps nothing, stays as a zombie, always 10 s.
func (i *Instance) Stop(ctx context.Context, grace time.Duration) (Stopped, error) {
	if err := checkName(i.Name); err != nil {
		return Stopped{}, err
	}
	l, err := i.rt.lockName(ctx, i.Name)
	switch {
	case err == nil:
		defer l.release()
	case !errors.Is(err, fs.ErrNotExist):
		return Stopped{}, err
	}
	// Where the runtime's directory was removed nobody can start one either.
	return i.stopLocked(ctx, grace)
}

// stopLocked is Stop with the name's lock held.
func (i *Instance) stopLocked(ctx context.Context, grace time.Duration) (Stopped, error) {
	if grace <= 0 {
		grace = defaultGrace
	}
	begin := time.Now()
	res := Stopped{Path: StopGone}
	parent, helpers := i.Parent, i.Helpers
	if i.Init.Alive() {
		// Helpers may have been replaced since the start; look again.
		for _, pid := range children(parent.PID) {
			if p, _, err := procOf(pid); err == nil && p.PID != i.Init.PID {
				helpers = append(helpers[:len(helpers):len(helpers)], p)
			}
		}
		res.Path = StopTerm
		if err := i.Init.signal(unix.SIGTERM); err != nil {
			return res, hpcexec.Errorf(hpcexec.ErrUnavailable, "stop instance %s: %w", i.Name, err)
		}
		if !i.Init.waitGone(ctx, grace) {
			// The end of a PID namespace's init ends all in it.
			res.Path = StopKill
			if err := i.Init.signal(unix.SIGKILL); err != nil {
				return res, hpcexec.Errorf(hpcexec.ErrUnavailable, "stop instance %s: %w", i.Name, err)
			}
			if !i.Init.waitGone(ctx, 5*time.Second) {
				return res, stopError(ctx, i.Name, i.Init)
			}
		}
	}
	// The parent sees the end, unmounts, ends its helpers and deletes the
	// record. Where it can't (it waits for a FUSE file system that hangs) it
	// is killed, and its helpers are ours to end.
	if !parent.waitGone(ctx, 2*time.Second) {
		res.Path = StopKill
		if err := parent.signal(unix.SIGKILL); err != nil {
			return res, hpcexec.Errorf(hpcexec.ErrUnavailable, "stop instance %s: %w", i.Name, err)
		}
		if !parent.waitGone(ctx, 2*time.Second) {
			return res, stopError(ctx, i.Name, parent)
		}
	}
	// Where the parent ended by itself they are on their way out.
	patience := 500 * time.Millisecond
	if res.Path == StopGone {
		patience = 20 * time.Millisecond
	}
	n, err := endHelpers(ctx, patience, append(helpers[:len(helpers):len(helpers)], sessionHelpers(parent)...))
	res.Helpers = n
	res.Took = time.Since(begin)
	if err != nil {
		return res, fmt.Errorf("stop instance %s: %w", i.Name, err)
	}
	if err := i.rt.forget(ctx, i.Name); err != nil {
		return res, err
	}
	res.Took = time.Since(begin)
	return res, nil
}

func stopError(ctx context.Context, name string, p Proc) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("stop instance %s: %w", name, cause)
	}
	return hpcexec.Errorf(hpcexec.ErrUnavailable, "stop instance %s: process %d (%s) doesn't end at SIGKILL", name, p.PID, p.Name).
		WithHint("it waits in the kernel, for a file system that hangs as a rule; ask the site if it stays")
}

// endHelpers waits a little for helpers to end by themselves, then ends them.
// It says how many it ended.
func endHelpers(ctx context.Context, patience time.Duration, helpers []Proc) (ended int, err error) {
	deadline := time.Now().Add(patience)
	for _, h := range helpers {
		if h.waitGone(ctx, time.Until(deadline)) {
			continue
		}
		// SIGTERM lets them write back what they hold, and unmount.
		h.signal(unix.SIGTERM)
		if !h.waitGone(ctx, 500*time.Millisecond) {
			h.signal(unix.SIGKILL)
		}
		ended++
		if !h.waitGone(ctx, 2*time.Second) {
			return ended, hpcexec.Errorf(hpcexec.ErrUnavailable, "helper process %d (%s) doesn't end at SIGKILL", h.PID, h.Name)
		}
	}
	return ended, nil
}

// sessionHelpers finds helpers by the session that the parent was leader of.
// The number of a session isn't given to another process as long as one is
// left in it, so it names this instance's even after the parent's death.
func sessionHelpers(parent Proc) []Proc {
	if parent.PID <= 0 {
		return nil
	}
	pids, _ := ownPIDs()
	var out []Proc
	for _, pid := range pids {
		p, st, err := procOf(pid)
		if err == nil && st.sess == parent.PID && p.Start >= parent.Start && isHelper(p.Name) {
			out = append(out, p)
		}
	}
	return out
}

// forget makes sure that the runtime has no record of an instance which has
// ended, and drops its log.
func (r *Runtime) forget(ctx context.Context, name string) error {
	for wait := 5 * time.Millisecond; ; wait *= 2 {
		list, err := r.list(ctx, name)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			break
		}
		if wait > 500*time.Millisecond {
			return hpcexec.Errorf(hpcexec.ErrUnavailable, "instance %s has ended and is still listed", name)
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
	// Logs are appended to from start to start, and kept: they would fill
	// the home, or RunDir.
	for _, pattern := range r.logFiles(name) {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			os.Remove(f)
		}
	}
	return nil
}

// killNamed ends every process tree that has the title of an instance, which
// finds also one that the runtime has lost the record of. The name's lock must
// be held.
func (r *Runtime) killNamed(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, i := range r.titled(name) {
		i.stopLocked(ctx, 50*time.Millisecond)
	}
}

// titled finds running instances by the titles of their processes; name is
// empty for all of ours.
func (r *Runtime) titled(name string) []*Instance {
	pids, _ := ownPIDs()
	var out []*Instance
	for _, pid := range pids {
		got := titleName(cmdline(pid))
		if got == "" || name != "" && got != name || !strings.HasPrefix(got, Prefix) {
			continue
		}
		parent, st, err := procOf(pid)
		if err != nil || st.state == 'Z' {
			continue
		}
		i := &Instance{rt: r, Info: Info{Name: got, Parent: parent}}
		for _, c := range children(pid) {
			p, _, err := procOf(c)
			if err != nil {
				continue
			}
			if isInit(p.Name) {
				i.Init = p
			} else {
				i.Helpers = append(i.Helpers, p)
			}
		}
		out = append(out, i)
	}
	return out
}

// isInit says whether a process name is that of a container's init.
func isInit(comm string) bool { return comm == "appinit" || comm == "sinit" }
