package session

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hpcexec/hpcexec"
)

// agentPath is the program of the shim itself, wherever it is bound: the
// process that becomes the agent is forked from it.
const agentPath = "/proc/self/exe"

const (
	// agentEnd is how long an agent may take to end once its stdin has.
	agentEnd = 3 * time.Second

	// agentNews is how long the news of an end may take after that of the
	// agent's output.
	agentNews = 2 * time.Second
)

// OpenFiles starts the far end of a copy (package files) in a session, which
// is started where need be but must exist, or on a bare host where w has no
// name. The stream is its stdin and stdout; Close ends it, and tells why it
// ended where that was by itself.
//
// Errors are those of Exec.
func (m *Manager) OpenFiles(ctx context.Context, w Want) (io.ReadWriteCloser, error) {
	if w.Name != "" && !strings.Contains(w.Options.Place, "/") {
		if _, err := m.Dirs.Load(w.Name); err != nil {
			return nil, err
		}
	}
	a := &agentStream{done: make(chan struct{})}
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "pipe: %w", err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		theirIn.Close()
		in.Close()
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "pipe: %w", err)
	}
	a.in, a.out = in, out
	// The agent outlives ctx by what it takes to clean up.
	var run context.Context
	run, a.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	starting := context.AfterFunc(ctx, func() { a.cancel(context.Cause(ctx)) })
	proc, release, err := m.Start(run, w, hpcexec.Request{
		Args: []string{agentPath, "files"}, Stdin: theirIn, Stdout: theirOut, Stderr: &a.errs,
	})
	starting()
	theirIn.Close()
	theirOut.Close()
	if err != nil {
		in.Close()
		out.Close()
		a.cancel(nil)
		return nil, err
	}
	go func() {
		defer close(a.done)
		defer release()
		a.resp, a.err = proc.Wait()
	}()
	return a, nil
}

// An agentStream is connected to an agent.
type agentStream struct {
	in, out *os.File
	cancel  context.CancelCauseFunc
	errs    headOf
	done    chan struct{} // closed when it has ended
	resp    hpcexec.Response
	err     error

	mu    sync.Mutex
	ended bool // its output has
}

func (a *agentStream) Read(p []byte) (int, error) {
	n, err := a.out.Read(p)
	if err == io.EOF {
		a.mu.Lock()
		a.ended = true
		a.mu.Unlock()
	}
	return n, err
}

func (a *agentStream) Write(p []byte) (int, error) { return a.in.Write(p) }

func (a *agentStream) Close() error {
	a.mu.Lock()
	ended := a.ended
	a.mu.Unlock()
	if ended {
		ended = a.wait(agentNews)
	}
	a.in.Close()
	a.out.Close()
	if !a.wait(agentEnd) {
		a.cancel(errors.New("the copy was given up"))
		<-a.done
	}
	a.cancel(nil)
	if !ended {
		return nil
	}
	return a.failure()
}

func (a *agentStream) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-a.done:
		return true
	case <-t.C:
		return false
	}
}

// failure is why the agent ended.
func (a *agentStream) failure() error {
	switch text := strings.TrimSpace(a.errs.String()); {
	case errors.Is(a.err, hpcexec.ErrUnknownEnd):
		return nil // the connection was lost: a copy can be repeated
	case a.err != nil:
		return a.err
	case a.resp.ExitCode == 0:
		return nil
	case strings.Contains(text, "unknown command"):
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "the hpcexec that runs there is too old to copy files").
			WithHint("start the session again: `hpcexec session stop` and the same command")
	case text == "":
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "the far end of the copy ended with %d", a.resp.ExitCode)
	default:
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "the far end of the copy ended with %d: %s", a.resp.ExitCode, text)
	}
}

// A headOf keeps the beginning of what is written to it. What an agent says of
// its end is short, and it may be hostile.
type headOf struct {
	mu sync.Mutex
	b  []byte
}

func (h *headOf) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	const most = 2 << 10
	h.b = append(h.b, p[:min(len(p), most-len(h.b))]...)
	return len(p), nil
}

func (h *headOf) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.b)
}
