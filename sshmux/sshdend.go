package sshmux

import (
	"context"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

// stop ends the command's tree, unless the command has ended: with the watcher,
// or, where there is none, with what the SSH server can do.
func (r *sshdProc) stop(timedOut bool) {
	r.mu.Lock()
	if r.known || r.left != nil {
		r.mu.Unlock()
		return
	}
	r.cancel, r.timedOut = !timedOut, timedOut
	left, ok := r.peer.watcher.end(r.mark, r.group, r.tty)
	if !ok {
		alone := make(chan int, 1)
		left = alone
		go r.stopAlone(alone)
	}
	r.left = left
	r.mu.Unlock()
}

// stopAlone ends the command on a host that allows one session at a time: that
// is in use until the command has ended.
func (r *sshdProc) stopAlone(left chan<- int) {
	defer close(left)
	for _, name := range []string{"TERM", "KILL"} {
		r.ch.SendRequest("signal", false, ssh.Marshal(struct{ Name string }{name}))
		if closedWithin(r.exited, r.peer.host.grace()) {
			break
		}
	}
	r.ch.Close()
	ctx, cancel := context.WithTimeout(context.Background(), r.stopWait())
	defer cancel()
	if n, err := r.peer.watcher.endAlone(ctx, r.mark, r.group, r.tty); err == nil {
		left <- n
	}
}

// stopWait bounds what a watcher needs to end a tree.
func (r *sshdProc) stopWait() time.Duration { return r.peer.host.grace() + 8*time.Second }

// awaitStop waits until the tree is gone. Its error tells of what is left.
func (r *sshdProc) awaitStop() error {
	r.mu.Lock()
	left := r.left
	r.mu.Unlock()
	if left == nil {
		return nil
	}
	t := time.NewTimer(r.stopWait())
	defer t.Stop()
	select {
	case n, ok := <-left:
		switch {
		case !ok:
			return hpcexec.Errorf(hpcexec.ErrUnknownEnd, "whether %s has ended the command is not known", r.place())
		case n > 0:
			return hpcexec.Errorf(hpcexec.ErrUnknownEnd, "%d processes of the command are left on %s", n, r.place())
		}
	case <-t.C:
		return hpcexec.Errorf(hpcexec.ErrUnknownEnd, "%s hasn't ended the command", r.place())
	}
	return nil
}

// wait returns how the command ended.
func (r *sshdProc) wait() (wire.Exit, error) {
	select {
	case <-r.done:
	case <-r.exited:
	case <-r.ctx.Done():
		r.stop(false)
		closedWithin(r.exited, r.stopWait())
	}
	left := r.awaitStop()
	cut := !r.settle()
	r.unwatch()
	if r.timer != nil {
		r.timer.Stop()
	}
	r.peer.watcher.order("- %s", r.mark)
	r.s.shut()

	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.exit
	x.Started, x.Ended, x.TimedOut = r.began, r.ended, r.timedOut && r.known
	if x.Ended.Before(x.Started) {
		x.Ended = x.Started // the two were told on ways that don't keep an order
	}
	switch {
	case r.cancel || cut && r.ctx.Err() != nil:
		cause := context.Cause(r.ctx)
		if left != nil {
			return x, hpcexec.Errorf(hpcexec.ErrUnknownEnd, "%w, and %v", cause, left)
		}
		return x, cause
	case left != nil:
		return x, left
	case !r.known:
		return x, unknownEnd(r.place())
	}
	return x, nil
}

// settle waits until the output is complete and closes the channel. Somebody
// in the background may hold the output open, or go on writing. ok is false
// where a Writer took too long after the end of ctx.
func (r *sshdProc) settle() (ok bool) {
	defer r.ch.Close()
	began := time.Now()
	var cancelled time.Time
	for !closedWithin(r.done, 10*time.Millisecond) {
		if r.ctx.Err() != nil && cancelled.IsZero() {
			cancelled = time.Now()
		}
		if !cancelled.IsZero() && time.Since(cancelled) > flushWait {
			r.s.shut()
			r.ch.Close()
			closedWithin(r.done, closeWait)
			return false
		}
		last := time.Unix(0, max(r.moved.Load(), began.UnixNano()))
		if r.inside.Load() == 0 && time.Since(last) > quietFor || r.late.Load() > lateOutput {
			r.ch.Close()
			closedWithin(r.done, closeWait)
			return true
		}
	}
	return true
}

// abandon gives up a session whose command didn't begin.
func (r *sshdProc) abandon() {
	r.s.shut()
	r.ch.Close()
	closedWithin(r.done, closeWait)
}

func (r *sshdProc) signal(name string) error {
	r.mu.Lock()
	group, over := r.group, r.known
	r.mu.Unlock()
	if over {
		return errEnded
	}
	if r.peer.watcher.order("s %d %s", group, name) {
		return nil
	}
	if _, err := r.ch.SendRequest("signal", false, ssh.Marshal(struct{ Name string }{name})); err != nil {
		return errEnded
	}
	return nil
}

func (r *sshdProc) resize(cols, rows int) error {
	r.mu.Lock()
	over := r.known
	r.mu.Unlock()
	if over {
		return errEnded
	}
	if _, err := r.ch.SendRequest("window-change", false, windowChange(cols, rows)); err != nil {
		return errEnded
	}
	return nil
}
