package hpcexec

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hpcexec/hpcexec/internal/proctree"
)

// A Local runs commands on this machine, as this user. The zero value is
// ready.
//
//	Run ─▶ process, leader of its own session ─▶ exit, seen through its pidfd
//	 ├─ stdin:  reader ─▶ pipe              never waited for
//	 ├─ stdout: pipe ─▶ writer              until its end, or after the exit
//	 └─ stderr: pipe ─▶ writer              until what was in the pipe is read
//
// A command has a session of its own and so no controlling terminal, unless
// Request.TTY gives it one: in no place can it reach around its streams to the
// terminal of the caller, nor is it stopped for reading it.
//
// An *os.File among the streams is given to the command as it is, without a
// copy. It stays open for background processes that the command leaves, which
// then write to it themselves; and a pipe in non-blocking mode is copied
// after all, for programs expect to block.
//
// A Writer that fails ends its stream: the command gets SIGPIPE when it writes
// on, as it would from a closed pipe. A Stdin that fails is an end of file.
// Neither is an error of Run, the Reader or Writer has already had it.
//
// On cancel and time-out the tree of the command gets SIGTERM and, after Grace,
// SIGKILL: its process group and session, its descendants, and whoever has
// HPCEXEC_ID with the run's id in its environment.
type Local struct {
	// Env is the environment that Request.Env is added to. Nil stands for
	// that of this process.
	Env []string

	// Dir is the working directory of requests that name none. Empty stands
	// for that of this process.
	Dir string

	// Grace is the time between SIGTERM and SIGKILL for a command that is
	// cancelled or times out; 0 is 2 s, less is none.
	Grace time.Duration

	// PlaceName is Response.Place; empty stands for "local".
	PlaceName string

	children proctree.Children
	walker   proctree.Walker
	signals  sync.Once
}

var (
	_ Starter   = (*Local)(nil)
	_ Describer = (*Local)(nil)
)

// killLimit is how long the end of a process after SIGKILL is waited for. Only
// one that hangs in the kernel, on a dead file server say, takes longer.
const killLimit = 10 * time.Second

// Properties are the facts of this machine.
func (l *Local) Properties() Properties {
	return Properties{
		Place:            l.place(),
		SharesFilesystem: true,
		ReportsSignal:    true,
		TreeByGroup:      true,
		TreeWhole:        true,
		Terminal:         true,
		Signals:          true,
	}
}

// Run runs a command. A command that can't be executed is a Response with
// ExitCode 126 or 127 and a line on Stderr; a file without #! counts as one.
//
// Errors: ErrInvalid for a malformed request, a Dir that isn't there, or more
// arguments and environment than the system takes; ErrUnavailable where the
// machine is short of processes, memory or descriptors; ErrUnknownEnd where a
// process survives SIGKILL; context.Cause(ctx).
func (l *Local) Run(ctx context.Context, req Request) (Response, error) {
	p, err := l.start(ctx, &req)
	if err != nil {
		return Response{Place: l.place(), ID: req.ID}, err
	}
	return p.supervise(ctx)
}

// Start starts a command, with the errors of Run. A command that can't be
// executed is started, as it were, and its Wait gives 126 or 127.
func (l *Local) Start(ctx context.Context, req Request) (Process, error) {
	p, err := l.start(ctx, &req)
	if err != nil {
		return nil, err
	}
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		p.resp, p.err = p.supervise(ctx)
	}()
	return p, nil
}

// ReapOrphans reaps processes that lost their parent and were given to this
// process, which must be a subreaper or PID 1, until ctx ends. It knows the
// commands of l and leaves them alone; other children of this process are
// taken for orphans, so l must be the only one here that starts any.
func (l *Local) ReapOrphans(ctx context.Context) { l.children.ServeOrphans(ctx) }

// catchIgnored sees to it that commands begin with no signal ignored: what a
// process catches is the default again in its children, what it ignores isn't.
// Go's runtime catches all but these two, which nohup and the & of scripts
// ignore. For this process nothing changes, they still have no effect; a
// command, in a session of its own, never gets those that were meant.
func (l *Local) catchIgnored() {
	l.signals.Do(func() {
		for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
			if signal.Ignored(sig) {
				signal.Notify(make(chan os.Signal, 1), sig)
			}
		}
	})
}

func (l *Local) place() string {
	if l.PlaceName == "" {
		return "local"
	}
	return l.PlaceName
}

func (l *Local) grace() time.Duration {
	switch {
	case l.Grace == 0:
		return 2 * time.Second
	case l.Grace < 0:
		return 0
	}
	return l.Grace
}

// environ is the environment of a command.
func (l *Local) environ(req *Request, id, dir string) []string {
	base := l.Env
	if base == nil {
		base = os.Environ()
	}
	var own []string
	if dir != "" {
		own = append(own, "PWD="+dir) // the inherited one would be wrong
	}
	if req.TTY != nil && req.TTY.Term != "" {
		own = append(own, "TERM="+req.TTY.Term)
	}
	return MergeEnv(base, own, req.Env, req.Secrets, []string{proctree.MarkerVar + "=" + id})
}

// getenv finds a variable in an environment.
func getenv(env []string, name string) (value string, ok bool) {
	for _, e := range env {
		if v, found := strings.CutPrefix(e, name+"="); found {
			return v, true
		}
	}
	return "", false
}
