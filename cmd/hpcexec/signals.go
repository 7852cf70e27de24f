package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/term"

	"github.com/hpcexec/hpcexec"
)

// signalNames are the signals that are the command's once it runs.
var signalNames = map[syscall.Signal]string{
	syscall.SIGINT:  "INT",
	syscall.SIGTERM: "TERM",
	syscall.SIGHUP:  "HUP",
	syscall.SIGQUIT: "QUIT",
}

func signalName(s syscall.Signal) string { return signalNames[s] }

// relay gives the signals that hpcexec gets to the command that it runs; while
// there is none yet they cancel what hpcexec is doing. It also tells the
// command of the terminal's new size.
type relay struct {
	signals chan os.Signal
	cancel  context.CancelCauseFunc
	size    func() (cols, rows int, ok bool) // nil without a terminal
	done    chan struct{}

	mu   sync.Mutex
	proc hpcexec.Process // nil until the command runs
}

// startRelay begins to listen; the context ends with *interruptError. The
// caller must call stop.
func startRelay(parent context.Context, size func() (cols, rows int, ok bool)) (context.Context, *relay) {
	ctx, cancel := context.WithCancelCause(parent)
	r := &relay{signals: make(chan os.Signal, 16), cancel: cancel, size: size, done: make(chan struct{})}
	for s := range signalNames {
		// What the caller has us ignore stays ignored: nohup, or a shell that
		// keeps Ctrl-C from its background jobs.
		if !signal.Ignored(s) {
			signal.Notify(r.signals, s)
		}
	}
	if size != nil {
		signal.Notify(r.signals, syscall.SIGWINCH)
	}
	go r.run()
	return ctx, r
}

func (r *relay) run() {
	defer close(r.done)
	for s := range r.signals {
		r.take(s.(syscall.Signal))
	}
}

func (r *relay) take(s syscall.Signal) {
	r.mu.Lock()
	proc := r.proc
	r.mu.Unlock()
	switch {
	case s == syscall.SIGWINCH:
		if proc != nil {
			if cols, rows, ok := r.size(); ok {
				proc.Resize(cols, rows)
			}
		}
	case proc == nil || proc.Signal(signalName(s)) != nil:
		// A place that can't signal ends the command instead.
		r.cancel(&interruptError{s})
	}
}

// running says that signals are the command's from now on.
func (r *relay) running(p hpcexec.Process) {
	r.mu.Lock()
	r.proc = p
	r.mu.Unlock()
	if r.size != nil {
		// The terminal may have changed while the session started.
		if cols, rows, ok := r.size(); ok {
			p.Resize(cols, rows)
		}
	}
}

// stop ends the listening; the process's signals have their default again.
func (r *relay) stop() {
	signal.Stop(r.signals)
	close(r.signals)
	<-r.done
	r.cancel(nil)
}

// rawTerminal puts the terminal of f in raw mode, so that every key is the
// command's, and returns what puts it back.
func rawTerminal(f *os.File) (restore func(), err error) {
	old, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "terminal: %w", err)
	}
	return func() { term.Restore(int(f.Fd()), old) }, nil
}
