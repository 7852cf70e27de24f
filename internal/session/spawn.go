package session

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/apptainer"
	"github.com/hpcexec/hpcexec/internal/place"
	"github.com/hpcexec/hpcexec/internal/rundir"
	"github.com/hpcexec/hpcexec/modules"
	"github.com/hpcexec/hpcexec/overlay"
	"github.com/hpcexec/hpcexec/slurm"
	"github.com/hpcexec/hpcexec/snapshots"
	"github.com/hpcexec/hpcexec/sshmux"
)

// spawn starts a supervisor that isn't a job: on this node, or on a host.
func (m *Manager) spawn(ctx context.Context, rec *Record, hop place.Hop) error {
	if hop.Kind == place.Local {
		if err := detach(m.Dirs, rec.Name, m.Exe, m.superviseArgv(rec)[1:]); err != nil {
			return hpcexec.Errorf(hpcexec.ErrUnavailable, "supervisor: %w", err)
		}
		return nil
	}
	client, err := m.openPlain(ctx, hop.Host)
	if err != nil {
		return err
	}
	var out strings.Builder
	resp, err := client.Run(ctx, hpcexec.Request{
		Args: m.superviseArgv(rec, "--detach"), Stdout: &out, Stderr: &out, Timeout: time.Minute,
	})
	if err != nil {
		return err
	}
	if resp.ExitCode == 127 {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s is not there on %s", m.Exe, hop.Host).
			WithHint("put hpcexec on a file system that the nodes share")
	}
	if resp.ExitCode != 0 {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "supervisor on %s: exit code %d: %s", hop.Host, resp.ExitCode, strings.TrimSpace(out.String()))
	}
	return nil
}

// openPlain opens a host through its sshd alone. A supervisor is started this
// way: what a shim starts is the shim's to end.
func (m *Manager) openPlain(ctx context.Context, host string) (*sshmux.Client, error) {
	dir, err := rundir.Get(m.Dirs.Home)
	if err != nil {
		return nil, err
	}
	return m.endpoint(ctx, host, sshmux.Endpoint{Socket: plainPath(dir, host), Place: "ssh:" + host, Kind: sshmux.SSH})
}

// findRuntime finds the container runtime of this node.
func findRuntime(ctx context.Context, run string) (*apptainer.Runtime, error) {
	return apptainer.Find(ctx, apptainer.FindOptions{
		RunDir: run,
		Module: func(ctx context.Context) (string, error) {
			c := modules.New(&hpcexec.Local{}, modules.Options{})
			for _, program := range []string{"apptainer", "singularity"} {
				if bin, _, err := c.Which(ctx, program, program); err == nil {
					return bin, nil
				}
			}
			_, _, err := c.Which(ctx, "apptainer", "apptainer", "singularity", "singularity-ce")
			return "", err
		},
	})
}

// layers are the snapshots under the session's overlay, low to high.
func (s *supervisor) layers() ([]string, error) {
	if s.rec.Base == "" {
		return nil, nil
	}
	store, err := snapshots.Open(s.dirs.Snapshots(), snapshots.Options{})
	if err != nil {
		return nil, err
	}
	return store.Layers(s.rec.Base)
}

// acquire takes the overlay's lease for this supervisor.
func (s *supervisor) acquire(ctx context.Context) (*overlay.Lease, error) {
	opts := leaseOptions(s.rec)
	opts.Job, opts.JobGone = os.Getenv("SLURM_JOB_ID"), nodeFailed
	return acquire(ctx, s.layer, opts, s.rt, s.state.Instance, s.log)
}

// acquire takes a lease. What a killed supervisor left on this node, the
// instance and programs of the runtime that have the overlay open, is ended.
func acquire(ctx context.Context, o *overlay.Overlay, opts overlay.AcquireOptions, rt *apptainer.Runtime, instance string, log *slog.Logger) (*overlay.Lease, error) {
	lease, err := o.Acquire(ctx, opts)
	var inUse *overlay.InUseError
	if !errors.As(err, &inUse) || !inUse.Orphans || rt == nil {
		return lease, err
	}
	if e := stopNamed(ctx, rt, instance, log); e != nil {
		return nil, errors.Join(err, e)
	}
	// An instance whose own process was killed too can't be found by name.
	n, e := rt.Cleanup(ctx, o.Layer())
	if e != nil {
		return nil, errors.Join(err, e)
	}
	log.Info("left-over helpers ended", "count", n)
	return o.Acquire(ctx, opts)
}

// nodeFailed says whether a job ended with its node. Any other end proves
// nothing: where the site doesn't track processes by cgroup, an instance
// outlives its job.
func nodeFailed(ctx context.Context, job string, submit time.Time) (gone, known bool) {
	id, err := slurm.ParseJobID(job)
	if err != nil {
		return false, false
	}
	st, err := slurm.New(&hpcexec.Local{}, slurm.Options{}).Job(ctx, id)
	if err != nil || !submit.IsZero() && !st.Submitted.IsZero() && !st.Submitted.Equal(submit.Truncate(time.Second)) {
		return false, false
	}
	return st.State == slurm.NodeFail, st.State == slurm.NodeFail || !st.State.Ended()
}

// takeLease takes the overlay's lease for work of a client on a session that
// is stopped.
func (m *Manager) takeLease(ctx context.Context, rec *Record, o *overlay.Overlay) (*overlay.Lease, error) {
	return o.Acquire(ctx, leaseOptions(rec))
}

func leaseOptions(rec *Record) overlay.AcquireOptions {
	o := overlay.AcquireOptions{Session: rec.Name}
	if rec.Start != nil {
		o.Submit = rec.Start.Submit
	}
	return o
}
