package hpcexec

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/hpcexec/hpcexec/internal/proctree"
)

// A process is a command that Local has started.
type process struct {
	local   *Local
	id      string
	timeout time.Duration
	started time.Time
	notRun  int // 126 or 127 for a command that couldn't be executed

	pid     int
	pidfd   *os.File // ready for reading at the exit; nil: the kernel has none
	streams streams

	mu    sync.Mutex
	ended bool // pid is about to be free for another process

	done chan struct{} // closed when resp and err are set; nil for Run
	resp Response
	err  error
}

// start does all that comes before the process, and starts it.
func (l *Local) start(ctx context.Context, req *Request) (*process, error) {
	if err := req.Check(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p := &process{local: l, id: req.ID, timeout: req.Timeout}
	if p.id == "" {
		p.id = NewID()
	}
	if strings.IndexByte(p.id, 0) >= 0 {
		return nil, Errorf(ErrInvalid, "id has a NUL byte")
	}
	dir := req.Dir
	if dir == "" {
		dir = l.Dir
	}
	if dir != "" {
		if err := checkDir(dir); err != nil {
			return nil, err
		}
	}
	env := l.environ(req, p.id, dir)
	path, err := lookPath(req.Args[0], env, dir)
	if err != nil {
		p.started = time.Now()
		p.failed(req, err)
		return p, nil
	}
	if err := p.streams.open(req); err != nil {
		p.streams.abandon()
		return nil, err
	}
	l.catchIgnored()
	p.started = time.Now()
	if err := p.fork(path, req.Args, env, dir); err != nil {
		p.streams.abandon()
		if err2 := forkError(err, req, env); err2 != nil {
			return nil, err2
		}
		// The kernel doesn't tell the directory's errors from the program's.
		if dir != "" {
			if err2 := checkDir(dir); err2 != nil {
				return nil, err2
			}
		}
		p.failed(req, err)
		return p, nil
	}
	runtime.KeepAlive(req) // its files have been used by number
	p.streams.run()
	return p, nil
}

// fork starts the process, as the leader of a session and a process group.
func (p *process) fork(path string, args, env []string, dir string) error {
	pidfd := -1
	attr := &syscall.ProcAttr{
		Dir:   dir,
		Env:   env,
		Files: p.streams.child[:],
		Sys: &syscall.SysProcAttr{
			Setsid:  true,
			Setctty: p.streams.tty != nil, // the one on descriptor 0
			PidFD:   &pidfd,
		},
	}
	var err error
	for pause := time.Millisecond; ; pause *= 2 {
		p.pid, err = p.local.children.Start(func() (int, error) {
			return syscall.ForkExec(path, args, attr)
		})
		// A program that was written a moment ago may still be open for
		// writing in a child that is between fork and exec.
		if !errors.Is(err, syscall.ETXTBSY) || pause > 64*time.Millisecond {
			break
		}
		time.Sleep(pause)
	}
	if err != nil {
		return err
	}
	if pidfd >= 0 {
		syscall.SetNonblock(pidfd, true) // so that it is polled, without a thread
		p.pidfd = os.NewFile(uintptr(pidfd), "pidfd")
	}
	return nil
}

// supervise sees the command to its end.
func (p *process) supervise(ctx context.Context) (Response, error) {
	resp := Response{Place: p.local.place(), ID: p.id, Started: p.started}
	if p.notRun != 0 {
		resp.ExitCode, resp.Ended = p.notRun, time.Now()
		return resp, nil
	}
	exited := make(chan struct{})
	go p.watch(exited)

	var timeout <-chan time.Time
	if p.timeout > 0 {
		timer := time.NewTimer(p.timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	var cause, left error
	select {
	case <-exited:
	case <-ctx.Done():
		// Who has ended by itself has ended.
		if !hasExited(p.pid) {
			cause = context.Cause(ctx)
			left = p.stop(exited)
		}
	case <-timeout:
		if !hasExited(p.pid) {
			resp.TimedOut = true
			left = p.stop(exited)
		}
	}
	if left != nil {
		select {
		case <-exited:
		default: // the command itself is among those who don't end
			go func() { <-exited; p.reap() }()
			p.streams.finish()
			return resp, joinCause(left, cause)
		}
	}
	<-exited
	resp.Ended = time.Now()
	ws, err := p.reap()
	p.streams.finish()
	if err != nil {
		return resp, Errorf(ErrUnknownEnd, "wait for the command: %w", err)
	}
	if ws.Signaled() {
		resp.ExitCode, resp.Signal = 128+int(ws.Signal()), SignalName(int(ws.Signal()))
	} else {
		resp.ExitCode = ws.ExitStatus()
	}
	return resp, joinCause(left, cause)
}

// joinCause is the error of a command that was stopped.
func joinCause(left, cause error) error {
	switch {
	case left == nil:
		return cause
	case cause == nil:
		return left
	}
	return Errorf(ErrUnknownEnd, "%w, and %v", cause, left)
}

// stop ends the tree of the command. Its error tells of survivors.
func (p *process) stop(exited <-chan struct{}) error {
	if p.streams.tty != nil {
		proctree.Signal(p.pid, syscall.SIGHUP) // what interactive shells obey
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.local.grace()+killLimit)
	defer cancel()
	n, err := p.local.walker.End(ctx, proctree.Tree{PGID: p.pid, Marker: p.id}, p.local.grace())
	if err == nil {
		select {
		case <-exited:
			return nil
		case <-ctx.Done():
			n, err = 1, errors.New("it doesn't exit")
		}
	}
	return Errorf(ErrUnknownEnd, "%d processes of the command could not be ended: %w", n, err).
		WithHint("a process that hangs in the kernel ends when its file server answers; see ps -o pid,stat,wchan -p %d", p.pid)
}

// watch closes exited when the process has ended. It isn't reaped then, so
// its pid, and the number of its group, are still its own.
func (p *process) watch(exited chan<- struct{}) {
	defer close(exited)
	if p.pidfd != nil {
		defer p.pidfd.Close()
		if rc, err := p.pidfd.SyscallConn(); err == nil {
			rc.Read(func(uintptr) bool { return hasExited(p.pid) })
		}
	}
	for {
		// Where pidfds can't be polled this takes a thread until the exit.
		if _, e := waitid(p.pid, 0); e != syscall.EINTR {
			return
		}
	}
}

// hasExited says whether a child that hasn't been waited for has ended.
func hasExited(pid int) bool {
	found, e := waitid(pid, syscall.WNOHANG)
	return found || e == syscall.ECHILD
}

// waitid sees whether a child has ended and leaves it for Reap; waitid(2).
func waitid(pid, options int) (found bool, e syscall.Errno) {
	const (
		pPID    = 1
		wExited = 4
		wNoWait = 0x1000000
	)
	var info [16]uint64 // siginfo_t, of which the first 32 bits are the signal
	_, _, e = syscall.Syscall6(syscall.SYS_WAITID, pPID, uintptr(pid), uintptr(unsafe.Pointer(&info)),
		uintptr(options)|wExited|wNoWait, 0, 0)
	return *(*int32)(unsafe.Pointer(&info)) != 0, e
}

// reap waits for a process that has ended.
func (p *process) reap() (syscall.WaitStatus, error) {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	return p.local.children.Reap(p.pid)
}

// Wait returns what Run would.
func (p *process) Wait() (Response, error) {
	<-p.done
	return p.resp, p.err
}

// Signal sends a signal to the process group of the command.
func (p *process) Signal(name string) error {
	n, ok := SignalNumber(name)
	if !ok {
		return Errorf(ErrInvalid, "no signal has the name %q", name).
			WithHint("names are like TERM, KILL or USR1, without SIG")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.notRun != 0 || p.ended || hasExited(p.pid) {
		return Errorf(ErrInvalid, "signal %s: the command has ended", name)
	}
	if err := proctree.Signal(p.pid, syscall.Signal(n)); err != nil {
		return Errorf(ErrInvalid, "signal %s: %w", name, err)
	}
	return nil
}

// Resize sets the size of the command's terminal.
func (p *process) Resize(cols, rows int) error {
	if p.streams.tty == nil {
		return Errorf(ErrInvalid, "the command has no terminal")
	}
	if cols < 0 || rows < 0 || cols > 65535 || rows > 65535 {
		return Errorf(ErrInvalid, "terminal size %d x %d is out of range", cols, rows)
	}
	if err := setSize(p.streams.tty, cols, rows); err != nil {
		return Errorf(ErrInvalid, "terminal size: %w", err)
	}
	return nil
}
