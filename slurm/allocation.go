package slurm

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

// AllocationOptions are the settings of an Allocation. The zero value is good.
type AllocationOptions struct {
	// Base runs srun: the login node. nil: the Client's own.
	Base hpcexec.Executor

	// Node is the node of the job to run on; empty: its first one.
	Node string

	// StartTimeout bounds the time that a step may take to begin; 60 s by
	// default. After it the error is ErrUnavailable and nothing has run.
	StartTimeout time.Duration

	// Grace is the time between SIGTERM and SIGKILL for a command that is
	// cancelled or times out; 0 is 2 s.
	Grace time.Duration
}

// An Allocation runs each command as a step of a running job, with
// `srun --overlap`. It costs 50 ms a command, or seconds at a busy site: it
// serves where no shim can run, and to start one.
//
// The command has the environment that Slurm gives the job on the node
// (SLURM_*, CUDA_VISIBLE_DEVICES), PATH, HOME and the locale of the login node,
// and what the request says. It gets all CPUs, memory and GPUs of the job on
// that node, beside other steps that run.
//
// What a command leaves running lives on where the site tracks processes by
// their parents (proctrack/linuxproc), and ends with the step where it tracks
// them by control groups. Output without a newline at its end arrives when the
// newline does, or at the end of the command: slurmstepd sends lines.
type Allocation struct {
	c    *Client
	id   JobID
	opt  AllocationOptions
	base hpcexec.Executor
}

var (
	_ hpcexec.Starter   = (*Allocation)(nil)
	_ hpcexec.Describer = (*Allocation)(nil)
)

// Allocation makes an Executor for a job that runs. Nothing is asked until
// the first command.
func (c *Client) Allocation(id JobID, opt AllocationOptions) *Allocation {
	if opt.StartTimeout <= 0 {
		opt.StartTimeout = time.Minute
	}
	if opt.Grace == 0 {
		opt.Grace = 2 * time.Second
	}
	if opt.Base == nil {
		opt.Base = c.base
	}
	return &Allocation{c: c, id: id.Whole(), opt: opt, base: opt.Base}
}

// Properties are the facts of the place. A terminal needs one on the way.
func (a *Allocation) Properties() hpcexec.Properties {
	p := hpcexec.Properties{
		Place:          a.place(),
		TreeByGroup:    true,
		TreeWhole:      true,
		OutlivesClient: true,
		Signals:        true,
	}
	if d, ok := a.base.(hpcexec.Describer); ok {
		p.Terminal = d.Properties().Terminal
	}
	return p
}

func (a *Allocation) place() string {
	if a.opt.Node != "" {
		return "slurm:" + a.id.local() + ":" + a.opt.Node
	}
	return "slurm:" + a.id.local()
}

// Run runs a command in the job. Beside the errors of every Executor:
// ErrAllocationGone where the job has ended, ErrUnavailable where it hasn't
// begun or a step can't be made now, ErrUnknownEnd where the step was lost
// after the command had begun.
func (a *Allocation) Run(ctx context.Context, req hpcexec.Request) (hpcexec.Response, error) {
	s, err := a.newStep(ctx, req)
	if err != nil {
		return hpcexec.Response{Place: a.place(), ID: req.ID}, err
	}
	return s.run(ctx)
}

// Start starts a command in the job and returns once it runs, with the errors
// of Run. Signals reach all processes of the command and take a step each.
func (a *Allocation) Start(ctx context.Context, req hpcexec.Request) (hpcexec.Process, error) {
	s, err := a.newStep(ctx, req)
	if err != nil {
		return nil, err
	}
	p := &stepProcess{step: s, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.resp, p.err = s.run(ctx)
	}()
	select {
	case <-s.started:
	case <-p.done:
		if p.err != nil && !s.hasStarted() {
			return nil, p.err
		}
	}
	return p, nil
}

// srunArgs are the options of srun for a command, which follows them.
func (a *Allocation) srunArgs(site Site, node string, opts ...string) []string {
	args := []string{
		site.Programs["srun"], "--jobid=" + a.id.local(), "--overlap", "--nodes=1", "--ntasks=1",
		// The caller's variables are scrubbed, so all that is left may go.
		"--export=ALL",
		// A missing directory would run the command in /tmp.
		"--chdir=/",
		// The job's limits hold; a step of one task would be bound to one CPU.
		"--cpu-bind=none", "--mpi=none",
	}
	if node != "" {
		args = append(args, "--nodelist="+node)
	}
	if site.Version.Before(21, 8) {
		// --overlap doesn't share GPUs there: the second step would wait for
		// the first one. So no step has them, and the variables are set by hand.
		args = append(args, "--gres=none")
	}
	return append(args, opts...)
}

// legacyGPUs are the variables of the job's GPUs, for releases in which a step
// that shares them gets none. They come of scontrol's detail of the job.
func (a *Allocation) legacyGPUs(ctx context.Context, site Site) []string {
	if !site.Version.Before(21, 8) {
		return nil
	}
	out, err := a.c.run(ctx, call{prog: "scontrol", args: []string{"show", "job", "-d", a.id.local()}})
	if err != nil {
		return nil
	}
	devices := parseJobDevices(out, a.opt.Node)
	if devices == "" {
		return nil
	}
	return []string{"CUDA_VISIBLE_DEVICES=" + devices, "GPU_DEVICE_ORDINAL=" + devices, "ROCR_VISIBLE_DEVICES=" + devices}
}

// parseJobDevices reads the numbers of the job's GPUs on a node (empty: the
// first one) out of `scontrol show job -d`: "Nodes=gpu1 CPU_IDs=3 Mem=400
// GRES=gpu:a100:2(IDX:2-3)" gives "2,3".
func parseJobDevices(out, node string) string {
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "Nodes=") {
			continue
		}
		var name, gres string
		for _, word := range strings.Fields(line) {
			if v, ok := strings.CutPrefix(word, "Nodes="); ok {
				name = v
			}
			if v, ok := strings.CutPrefix(word, "GRES="); ok {
				gres = v
			}
		}
		hosts := ParseHostlist(name)
		here := node == ""
		for _, h := range hosts {
			here = here || h == node
		}
		if !here {
			continue
		}
		var devices []string
		list, _ := ParseGRES(gres)
		for _, g := range list {
			if g.Name != "gpu" || g.Count == 0 {
				continue
			}
			// The list of indices has the form of a task set.
			if numbers, _, ok := (JobID{Tasks: g.Index}).Each(); ok {
				for _, n := range numbers {
					devices = append(devices, strconv.FormatUint(uint64(n), 10))
				}
			}
		}
		return strings.Join(devices, ",")
	}
	return ""
}

// Carrier is the request for the base that runs a command in the job with its
// stdin and stdout joined to those of the request, byte for byte and at once:
// for a connection that is carried over srun. The caller sets Stdin, Stdout and
// Stderr, which has srun's own messages. Nothing of what [Allocation.Run]
// promises holds, and the exit code is srun's.
//
// It runs unbuffered: without that slurmstepd holds back what has no newline
// yet, and the connection stalls. The command's stdout is a terminal then, one
// that changes no byte.
func (a *Allocation) Carrier(ctx context.Context, argv ...string) (hpcexec.Request, error) {
	req := hpcexec.Request{Args: argv}
	if err := req.Check(); err != nil {
		return hpcexec.Request{}, err
	}
	if slices.Contains(argv, ":") {
		return hpcexec.Request{}, hpcexec.Errorf(hpcexec.ErrInvalid, "srun takes the argument %q for its own", ":")
	}
	site, err := a.c.Site(ctx)
	if err != nil {
		return hpcexec.Request{}, err
	}
	if site.Programs["srun"] == "" {
		return hpcexec.Request{}, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: no srun in PATH, nor in %s", site.Host, strings.Join(a.c.opt.Dirs, ", "))
	}
	args := []string{"/bin/sh", "-c", launchScript, "hpcexec", a.c.keepList(), ""}
	args = append(args, a.srunArgs(site, a.opt.Node, "--unbuffered")...)
	return hpcexec.Request{Args: append(args, argv...)}, nil
}

// signal sends a signal to the processes of a step, or ends them (END).
func (a *Allocation) signal(ctx context.Context, word, node, name string) error {
	site, err := a.c.Site(ctx)
	if err != nil {
		return err
	}
	naps := strconv.Itoa(int(max(0, a.opt.Grace) / (50 * time.Millisecond)))
	args := a.srunArgs(site, node, "--input=none", "/bin/sh", "-c", signalScript, "hpcexec", word, name, naps)
	args = append([]string{"/bin/sh", "-c", launchScript, "hpcexec", a.c.keepList(), ""}, args...)
	out, err := a.c.runRawOn(ctx, a.base, hpcexec.Request{Args: args, Timeout: max(0, a.opt.Grace) + 15*time.Second})
	switch {
	case err != nil:
		return err
	case out.resp.TimedOut:
		return timedOut("srun", out.resp.Ended.Sub(out.resp.Started))
	case out.resp.ExitCode != 0:
		return classify("srun", out.resp.ExitCode, out.stderr, out.stdout)
	}
	return nil
}
