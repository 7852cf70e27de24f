package session

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/shell"
	"github.com/hpcexec/hpcexec/sshmux"
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
	far := strings.Contains(w.Options.Place, "/")
	if w.Name != "" && !far {
		if _, err := m.Dirs.Load(w.Name); err != nil {
			return nil, err
		}
	}
	a := &agentStream{done: make(chan struct{})}
	var theirs [3]*os.File // stdin, stdout, stderr
	var errs *os.File
	for i, ours := range []**os.File{&a.in, &a.out, &errs} {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(a.in, a.out, theirs[0], theirs[1])
			return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "pipe: %w", err)
		}
		widenPipe(r)
		if *ours, theirs[i] = r, w; i == 0 {
			*ours, theirs[i] = w, r
		}
	}
	start := m.startAgent
	if host, ok := strings.CutPrefix(w.Options.Place, "ssh:"); ok && w.Name == "" && !far {
		start = func(ctx context.Context, _ Want, std [3]*os.File) (*agentProc, error) {
			return m.startPlainAgent(ctx, host, std)
		}
	}
	proc, err := start(ctx, w, theirs)
	closeAll(theirs[:]...)
	if err != nil {
		closeAll(a.in, a.out, errs)
		return nil, err
	}
	a.kill = proc.kill
	go func() {
		defer close(a.done)
		a.code, a.err = proc.wait()
		a.errs, _ = io.ReadAll(io.LimitReader(errs, 2<<10)) // short, and it may be hostile
		errs.Close()
	}()
	return a, nil
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		f.Close() // nil is an error
	}
}

// widenPipe gives a pipe a larger buffer, where that is allowed: fewer wake-ups
// for each megabyte.
func widenPipe(f *os.File) {
	if rc, err := f.SyscallConn(); err == nil {
		rc.Control(func(fd uintptr) { unix.FcntlInt(fd, unix.F_SETPIPE_SZ, 1<<20) })
	}
}

// An agentProc is an agent that runs.
type agentProc struct {
	wait func() (code int, err error)
	kill func() // wait returns soon
}

// startAgent starts an agent as a command. It outlives ctx by what it takes to
// clean up.
func (m *Manager) startAgent(ctx context.Context, w Want, std [3]*os.File) (*agentProc, error) {
	run, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer stop()
	proc, release, err := m.Start(run, w, hpcexec.Request{
		Args: []string{agentPath, "files"}, Stdin: std[0], Stdout: std[1], Stderr: std[2],
	})
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return &agentProc{
		wait: func() (int, error) {
			defer cancel(nil)
			defer release()
			resp, err := proc.Wait()
			return resp.ExitCode, err
		},
		kill: func() { cancel(errors.New("the copy was given up")) },
	}, nil
}

// startPlainAgent starts an agent on a bare host, without a shim: what it reads
// and writes is framed once, not twice.
func (m *Manager) startPlainAgent(ctx context.Context, host string, std [3]*os.File) (*agentProc, error) {
	master, err := m.master(ctx, host)
	if err != nil {
		return nil, err
	}
	p, err := master.StartPlain(ctx, sshmux.PlainSession{
		Command: "exec " + shell.Join([]string{m.Exe, "files"}), Stdin: std[0], Stdout: std[1], Stderr: std[2],
	})
	if err != nil {
		return nil, err
	}
	return &agentProc{
		wait: func() (int, error) {
			defer p.Close()
			return p.Wait()
		},
		kill: func() { p.Close() },
	}, nil
}

// An agentStream is connected to an agent.
type agentStream struct {
	in, out *os.File
	kill    func()
	done    chan struct{} // closed when it has ended
	code    int
	err     error
	errs    []byte

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
		a.kill()
		<-a.done
	}
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
	switch text := strings.TrimSpace(string(a.errs)); {
	case errors.Is(a.err, hpcexec.ErrUnknownEnd):
		return nil // the connection was lost: a copy can be repeated
	case a.err != nil:
		return a.err
	case a.code == 0:
		return nil
	case strings.Contains(text, "unknown command"):
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "the hpcexec that runs there is too old to copy files").
			WithHint("start the session again: `hpcexec session stop` and the same command")
	case a.code == 126 || a.code == 127:
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "hpcexec can't run there: %s", text).
			WithHint("hpcexec must be under the same path there, on a file system that allows programs")
	case text == "":
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "the far end of the copy ended with %d", a.code)
	default:
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "the far end of the copy ended with %d: %s", a.code, text)
	}
}
