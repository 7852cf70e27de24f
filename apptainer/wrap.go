package apptainer

import (
	"cmp"
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

// A Wrapper runs commands in an instance, each by a call of the runtime which
// it has its base make:
//
//	{python x.py, Dir, Env} ─▶ {apptainer exec … instance://N sh -c SCRIPT … python x.py} ─▶ base
//
// It costs 60 ms a command, where a shim in the instance costs 1: it is for
// places where no shim can run. The base may be far away; it is where the
// instance is, and has no APPTAINER or SINGULARITY variables (see [ScrubEnv]).
//
// The runtime breaks most clauses of the contract when it is called as it is:
// it runs the command in / where Dir is missing, says 255 for its own failures
// as for a command's, drops its message among the command's output, and turns
// a signal to itself into SIGKILL for the command. So a script of a few lines
// stands before each command. It says on standard error that it has come so
// far, which is cut out again; what came before that was the runtime's.
type Wrapper struct {
	// Grace is the time between SIGTERM and SIGKILL for a command that is
	// cancelled or times out; 0 is 2 s, less is none.
	Grace time.Duration

	inst *Instance
	base hpcexec.Executor
}

var (
	_ hpcexec.Starter   = (*Wrapper)(nil)
	_ hpcexec.Describer = (*Wrapper)(nil)
)

// Wrap gives an Executor of commands in the instance, through a base that runs
// commands on its node.
func (i *Instance) Wrap(base hpcexec.Executor) *Wrapper { return &Wrapper{inst: i, base: base} }

// Properties are those of the base, but for the file system.
func (w *Wrapper) Properties() hpcexec.Properties {
	var p hpcexec.Properties
	if d, ok := w.base.(hpcexec.Describer); ok {
		p = d.Properties()
	}
	p.Place = w.place(p.Place)
	p.SharesFilesystem = false
	_, starter := w.base.(hpcexec.Starter)
	p.Signals = p.Signals && starter
	return p
}

func (w *Wrapper) place(base string) string {
	return cmp.Or(base, "local") + "/apptainer:" + strings.TrimPrefix(w.inst.Name, Prefix)
}

// Run runs one command in the instance. Beside the errors of every Executor:
// ErrInvalid for arguments and environment that the runtime can't pass, and
// ErrUnavailable with ErrNotFound where the instance is gone.
func (w *Wrapper) Run(ctx context.Context, req hpcexec.Request) (hpcexec.Response, error) {
	r, err := w.rewrite(ctx, req)
	if err != nil {
		return r.failed(), err
	}
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	done := make(chan struct{})
	var resp hpcexec.Response
	go func() {
		defer close(done)
		resp, err = w.base.Run(inner, r.req)
	}()
	stopped := w.watch(ctx, r, done, cancel)
	<-done
	return w.finish(ctx, r, resp, err, stopped)
}

// Start starts a command in the instance and returns once it runs, or has
// failed to. The base must be a Starter, else it is ErrInvalid.
func (w *Wrapper) Start(ctx context.Context, req hpcexec.Request) (hpcexec.Process, error) {
	starter, ok := w.base.(hpcexec.Starter)
	if !ok {
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "this place can't start commands in the background")
	}
	r, err := w.rewrite(ctx, req)
	if err != nil {
		return nil, err
	}
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	base, err := starter.Start(inner, r.req)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	p := &process{w: w, run: r, base: base, done: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(p.done)
		defer cancel(nil)
		var resp hpcexec.Response
		var err error
		go func() {
			defer close(ended)
			resp, err = base.Wait()
		}()
		stopped := w.watch(ctx, r, ended, cancel)
		<-ended
		p.resp, p.err = w.finish(ctx, r, resp, err, stopped)
	}()
	select {
	case <-r.filter.seen:
		return p, nil
	case <-p.done:
	}
	select {
	case <-r.filter.seen: // it ran, and has ended already
		if p.err == nil || !errors.Is(p.err, hpcexec.ErrInvalid) {
			return p, nil
		}
	default:
	}
	if p.err == nil {
		return p, nil
	}
	return nil, p.err
}

// A process is a command that Start has started.
type process struct {
	w    *Wrapper
	run  *run
	base hpcexec.Process

	done chan struct{} // closed when resp and err are set
	resp hpcexec.Response
	err  error
}

func (p *process) Wait() (hpcexec.Response, error) {
	<-p.done
	return p.resp, p.err
}

// Signal signals the command's process group from inside the container: the
// runtime's process outside dies of any signal and takes the command with it,
// by SIGKILL.
func (p *process) Signal(name string) error {
	if _, ok := hpcexec.SignalNumber(name); !ok {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "no signal has the name %q", name)
	}
	select {
	case <-p.done:
		return hpcexec.Errorf(hpcexec.ErrInvalid, "signal %s: the command has ended", name)
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return p.w.signal(ctx, p.run, name, "group", "")
}

func (p *process) Resize(cols, rows int) error { return p.base.Resize(cols, rows) }

// A run is one rewritten request.
type run struct {
	orig   hpcexec.Request
	req    hpcexec.Request // for the base
	filter *filter
	place  string
}

// nonce is the random name of the run.
func (r *run) nonce() string { return strings.TrimPrefix(string(r.filter.nonce), noncePrefix) }

func (r *run) failed() hpcexec.Response {
	return hpcexec.Response{Place: r.place, ID: r.orig.ID}
}

// rewrite makes the request for the base. Its run is never nil.
func (w *Wrapper) rewrite(ctx context.Context, req hpcexec.Request) (*run, error) {
	r := &run{orig: req, place: w.Properties().Place}
	if err := req.Check(); err != nil {
		return r, err
	}
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if r.orig.ID == "" {
		r.orig.ID = hpcexec.NewID()
	}
	nonce := noncePrefix + hpcexec.NewID()
	in := enter(nonce, r.orig)
	rt := w.inst.rt

	r.req = req
	r.req.ID = r.orig.ID
	r.req.Args = w.inst.Argv(ExecOptions{}, in.argv...)
	r.req.Dir = ""
	r.req.Env = append(rt.prefixed(in.env), w.configEnv()...)
	r.req.Secrets = rt.prefixed(in.secrets)
	if err := checkSize(r.req.Args, r.req.Env, r.req.Secrets); err != nil {
		return r, err
	}
	// The time-out is kept here, where the command can be asked to end; the
	// base's holds when this process is gone.
	if req.Timeout > 0 {
		r.req.Timeout = req.Timeout + w.grace() + enterLimit
	}
	r.connect(nonce)
	return r, nil
}

// connect puts the filter where the script's message will come.
func (r *run) connect(nonce string) {
	r.filter = newFilter(nonce)
	switch {
	case r.orig.TTY != nil:
		r.filter.to = r.orig.Stdout
		r.req.Stdout, r.req.Stderr = r.filter, nil
	case sameWriter(r.orig.Stdout, r.orig.Stderr):
		// One writer for both, else the base would call it from two sides.
		r.filter.to = r.orig.Stdout
		r.req.Stdout, r.req.Stderr = r.filter, r.filter
	default:
		r.filter.to = r.orig.Stderr
		r.req.Stderr = r.filter
	}
}

// sameWriter says whether two writers are one, where that can be known.
func sameWriter(a, b io.Writer) (same bool) {
	if a == nil || b == nil {
		return false
	}
	defer func() {
		if recover() != nil { // not comparable
			same = false
		}
	}()
	return a == b
}

// finish judges how the base's run has ended.
func (w *Wrapper) finish(ctx context.Context, r *run, resp hpcexec.Response, err error, why stopReason) (hpcexec.Response, error) {
	resp.Place, resp.ID = r.place, r.orig.ID
	state, text := r.filter.result()
	if why != notStopped {
		if err != nil && !errors.Is(err, errStopped) && !errors.Is(err, context.Canceled) {
			return resp, err // such as survivors: ErrUnknownEnd
		}
		if why == cancelled {
			return resp, context.Cause(ctx)
		}
		resp.TimedOut = true
		return resp, nil
	}
	if err != nil {
		return resp, err
	}
	what := "run in instance " + w.inst.Name
	switch state {
	case stateRun:
		if resp.Signal == "KILL" || resp.ExitCode == 128+9 {
			return resp, w.lost(ctx)
		}
		return resp, nil
	case stateNoDir:
		return r.failed(), hpcexec.Errorf(hpcexec.ErrInvalid, "directory %s: %s", r.orig.Dir, text).
			WithHint("the command was not run; the directory must exist in the container")
	}
	if resp.TimedOut {
		return resp, nil
	}
	if strings.TrimSpace(text) == "" && resp.ExitCode >= 126 {
		text = "FATAL: " + w.inst.rt.Path + ": " + exitText(resp.ExitCode, resp.Signal)
	}
	return r.failed(), classify(what, text)
}
