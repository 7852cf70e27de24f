package slurm

import (
	"context"
	"time"

	"github.com/hpcexec/hpcexec"
)

var _ hpcexec.Process = (*stepProcess)(nil)

// A stepProcess is a command that Start started.
type stepProcess struct {
	step *step
	done chan struct{}
	resp hpcexec.Response
	err  error
}

// Wait waits for the end.
func (p *stepProcess) Wait() (hpcexec.Response, error) {
	<-p.done
	return p.resp, p.err
}

// Signal sends a signal to all processes of the command, by a step of its own.
func (p *stepProcess) Signal(name string) error {
	if _, ok := hpcexec.SignalNumber(name); !ok {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "signal %q is not like TERM", name)
	}
	select {
	case <-p.done:
		return hpcexec.Errorf(hpcexec.ErrInvalid, "the command has ended")
	case <-p.step.complete:
		return hpcexec.Errorf(hpcexec.ErrInvalid, "the command has ended")
	default:
	}
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	return p.step.a.signal(ctx, p.step.word, p.step.nodeName(), name)
}

// Resize sets the size of the terminal.
func (p *stepProcess) Resize(cols, rows int) error {
	p.step.mu.Lock()
	process := p.step.process
	p.step.mu.Unlock()
	if process == nil {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "the command has no terminal")
	}
	return process.Resize(cols, rows)
}
