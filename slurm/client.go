package slurm

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hpcexec/hpcexec"
)

// Options are the settings of a Client. The zero value is good.
type Options struct {
	// Dirs are searched for Slurm's programs after the PATH of the place.
	// nil: /usr/bin, /opt/slurm/bin, /usr/local/slurm/bin and a few more.
	Dirs []string

	// Keep names further variables of the place's environment that Slurm's
	// programs get, such as SLURM_JWT where a site logs in with tokens. They
	// reach the environment of submitted jobs too.
	Keep []string

	// CallTimeout bounds every call of a program, 60 s by default. A busy
	// controller takes MessageTimeout (10 s by default) to fail, twice where
	// there is a backup.
	CallTimeout time.Duration

	// PollFloor is the shortest time between two questions about a job, for
	// administrators. 0: a start is looked for in quick succession at first.
	PollFloor time.Duration

	// PollCeiling is the longest time between two questions, 30 s by default.
	PollCeiling time.Duration

	// Patience is how long Wait and Submit go on while the controller can't
	// be asked, 10 minutes by default.
	Patience time.Duration

	// Log gets what happened that no error says, such as a call that was
	// tried again. nil: nothing.
	Log *slog.Logger
}

// A Client talks to one cluster. It is safe for concurrent use.
type Client struct {
	base hpcexec.Executor
	opt  Options
	log  *slog.Logger

	mu       sync.Mutex
	site     *Site
	inflight *listing // the squeue that runs now, shared by all who wait
}

// New makes a Client that runs Slurm's programs through base, which is the
// login node or anything that reaches it. Nothing is run until it is needed.
func New(base hpcexec.Executor, opt Options) *Client {
	if opt.Dirs == nil {
		opt.Dirs = []string{"/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/opt/slurm/current/bin", "/usr/local/slurm/bin", "/cm/shared/apps/slurm/current/bin"}
	}
	if opt.CallTimeout <= 0 {
		opt.CallTimeout = 60 * time.Second
	}
	if opt.PollCeiling <= 0 {
		opt.PollCeiling = 30 * time.Second
	}
	if opt.PollCeiling < opt.PollFloor {
		opt.PollCeiling = opt.PollFloor
	}
	if opt.Patience <= 0 {
		opt.Patience = 10 * time.Minute
	}
	log := opt.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Client{base: base, opt: opt, log: log}
}

// sleep waits for d or the end of ctx, whose cause it returns.
func sleep(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
