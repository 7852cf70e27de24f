package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/hostid"
	"github.com/hpcexec/hpcexec/internal/place"
	"github.com/hpcexec/hpcexec/overlay"
)

// make finds or makes the record of a session. The session must be locked.
func (m *Manager) make(w Want, ephemeral bool) (*Record, error) {
	rec, err := m.Dirs.Load(w.Name)
	if err == nil && rec.Removing {
		if err := m.Dirs.purge(rec); err != nil {
			return nil, err
		}
		err = fs.ErrNotExist
	}
	switch {
	case err == nil:
		rec.Options, err = rec.Merge(w.Options)
		return rec, err
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	o, err := m.complete(w.Options)
	if err != nil {
		return nil, err
	}
	rec = &Record{Name: w.Name, Created: time.Now().UTC(), Options: o, Ephemeral: ephemeral}
	if o.Image != "" {
		rec.OverlayPath = filepath.Join(m.Dirs.Overlays(), w.Name)
		if err := m.makeOverlay(rec); err != nil {
			return nil, err
		}
	}
	return rec, m.Dirs.save(rec)
}

// complete checks options and fills in what stands for an empty one.
func (m *Manager) complete(o Options) (Options, error) {
	if o.Place == "" {
		o.Place = string(place.Local)
	}
	p, err := place.Parse(o.Place)
	if err != nil {
		return o, err
	}
	if p.Last().Kind != place.Slurm {
		for name, set := range map[string]bool{
			"gpus": o.GPUs != "", "partition": o.Partition != "", "time": o.Time != 0, "account": o.Account != "",
			"qos": o.QOS != "", "constraint": o.Constraint != "", "reservation": o.Reservation != "",
			"cpus": o.CPUs != 0, "mem": o.Mem != "", "nodes": o.Nodes != 0, "slurm-opt": len(o.SlurmOpts) > 0,
		} {
			if set {
				return o, hpcexec.Errorf(hpcexec.ErrInvalid, "--%s needs an allocation, and the place is %s", name, o.Place).
					WithHint("add --on slurm")
			}
		}
	}
	if o.Nodes > 1 {
		return o, hpcexec.Errorf(hpcexec.ErrInvalid, "a session on %d nodes is not supported", o.Nodes).
			WithHint("use one node, or submit a batch job")
	}
	if o.Image == "" {
		for name, set := range map[string]bool{
			"bind": len(o.Binds) > 0, "fakeroot": o.Fakeroot, "overlay": o.Overlay != "", "net": o.Net != "", "nv, --rocm or --no-gpu": o.GPUMode != "",
		} {
			if set {
				return o, hpcexec.Errorf(hpcexec.ErrInvalid, "--%s needs a container", name).WithHint("add --image IMAGE")
			}
		}
		return o, nil
	}
	if !filepath.IsAbs(o.Image) {
		return o, hpcexec.Errorf(hpcexec.ErrInvalid, "image %q is not an absolute path", o.Image)
	}
	switch o.Overlay {
	case "":
		o.Overlay = "dir"
	case "dir":
	default:
		return o, hpcexec.Errorf(hpcexec.ErrInvalid, "overlay %q is not a kind of overlay", o.Overlay).WithHint("use --overlay dir")
	}
	return o, nil
}

func (m *Manager) makeOverlay(rec *Record) error {
	if err := os.MkdirAll(m.Dirs.Overlays(), 0o700); err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "scratch: %w", err).
			WithHint("set HPCEXEC_SCRATCH to a directory that you can write and that all nodes share")
	}
	opts := overlay.CreateOptions{Image: overlay.Image{Path: rec.Options.Image}}
	if rec.Base != "" {
		store, err := m.Store()
		if err != nil {
			return err
		}
		base, err := store.Get(rec.Base)
		if err != nil {
			return err
		}
		opts.Layers = base.Chain()
	}
	_, err := overlay.Create(rec.OverlayPath, opts)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	// It has no session: its record was moved away, or a crash came between
	// the two. What it holds is the user's work, and means something over its
	// own lower layers only.
	old, err := overlay.Open(rec.OverlayPath)
	if err == nil && old.Meta().Image.Path == opts.Image.Path && slices.Equal(old.Meta().Layers, opts.Layers) {
		m.say(Progress{Session: rec.Name, Stage: "overlay", Text: "session " + rec.Name + " takes over the overlay of an earlier one of its name"})
		return nil
	}
	m.say(Progress{Session: rec.Name, Stage: "overlay", Text: "the overlay at " + rec.OverlayPath + ", which no session has, is left alone"})
	rec.OverlayPath = m.freshOverlay(rec.Name)
	_, err = overlay.Create(rec.OverlayPath, opts)
	return err
}

// freshOverlay is a path where no overlay is.
func (m *Manager) freshOverlay(name string) string {
	return filepath.Join(m.Dirs.Overlays(), name+"@"+hpcexec.NewID()[:8])
}

// lock makes the processes of this node, and of others where the file system
// carries locks, take turns with one session. It only saves work: what guards
// the overlay is its lease.
func (m *Manager) lock(ctx context.Context, name string) (unlock func(), err error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(m.Dirs.Run(), 0o700); err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "state directory: %w", err)
	}
	path := m.Dirs.lockPath(name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "state directory: %w", err)
	}
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
		case err == nil && !isFile(f, path): // who had it has removed it
			f.Close()
			return m.lock(ctx, name)
		default: // an error is that there is no lock service here: see above
			return func() {
				if _, err := os.Lstat(m.Dirs.recordPath(name)); errors.Is(err, fs.ErrNotExist) {
					os.Remove(path) // of a session that isn't there
				}
				f.Close()
			}, nil
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// isFile says whether f is the file at path.
func isFile(f *os.File, path string) bool {
	have, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(have, there)
}

// lockKnown locks a session that there is, and loads its record.
func (m *Manager) lockKnown(ctx context.Context, name string) (rec *Record, unlock func(), err error) {
	if _, err := m.Dirs.Load(name); err != nil {
		return nil, nil, err
	}
	if unlock, err = m.lock(ctx, name); err != nil {
		return nil, nil, err
	}
	if rec, err = m.Dirs.Load(name); err != nil {
		unlock() // removed while this waited
		return nil, nil, err
	}
	if rec.Removing {
		defer unlock()
		if err := m.Dirs.purge(rec); err != nil {
			return nil, nil, err
		}
		_, err := m.Dirs.Load(name)
		return nil, nil, err
	}
	return rec, unlock, nil
}

// start starts a session that isn't running, or goes on waiting for a start
// that another client asked for. The session must be locked.
func (m *Manager) start(ctx context.Context, rec *Record, wait time.Duration) error {
	if wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, wait, errWaited)
		defer cancel()
	}
	p, err := place.Parse(rec.Options.Place)
	if err != nil {
		return err
	}
	mine := rec.Start == nil
	if mine {
		self, err := hostid.Self()
		if err != nil {
			return err
		}
		rec.Start = &Start{Token: hpcexec.NewID(), At: time.Now().UTC(), Exe: m.Exe, Client: self}
		if err := m.Dirs.save(rec); err != nil {
			return err
		}
		switch p.Last().Kind {
		case place.Slurm:
			err = m.submit(ctx, rec)
		default:
			err = m.spawn(ctx, rec, p.Last())
		}
		if err != nil {
			rec.Start = nil
			if e := m.Dirs.save(rec); e != nil {
				return errors.Join(err, e)
			}
			return err
		}
	}
	err = m.await(ctx, rec, p)
	if mine && ctx.Err() != nil && !errors.Is(context.Cause(ctx), errWaited) {
		// The user gave up: nothing must start later with nobody there.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWait)
		defer cancel()
		if e := m.end(undo, rec); e != nil {
			err = errors.Join(err, e)
		}
	}
	return err
}

var errWaited = errors.New("the time to wait is over")

// superviseArgv is the command that serves a start.
func (m *Manager) superviseArgv(rec *Record, more ...string) []string {
	argv := []string{m.Exe, "supervise", "--home", m.Dirs.Home, "--scratch", m.Dirs.Scratch, "--session", rec.Name, "--token", rec.Start.Token}
	return append(argv, more...)
}

// await waits until the supervisor of a start says ready or failed.
func (m *Manager) await(ctx context.Context, rec *Record, p place.Place) error {
	job := m.followJob(ctx, rec, p)
	defer job.stop()
	deadline := time.Time{}
	if p.Last().Kind != place.Slurm {
		deadline = time.Now().Add(2 * time.Minute) // a node that starts nothing in this time won't
	}
	last := Phase("")
	for wait := 5 * time.Millisecond; ; wait = min(wait+wait/2, 100*time.Millisecond) {
		state, err := m.Dirs.loadState(rec.Name)
		if err != nil {
			return err
		}
		if state != nil && state.Token == rec.Start.Token {
			if state.Phase != last {
				last = state.Phase
				m.say(Progress{Session: rec.Name, Stage: string(state.Phase), JobID: state.JobID,
					Text: fmt.Sprintf("session %s is %s on %s", rec.Name, state.Phase, state.Node.Host)})
			}
			switch state.Phase {
			case Ready:
				return nil
			case Failed:
				return m.failed(rec, state)
			case Stopped:
				return hpcexec.Errorf(hpcexec.ErrUnavailable, "session %s stopped while it started: %s", rec.Name, state.Reason).
					WithHint("see %s", m.Dirs.logPath(rec.Name))
			}
		}
		if !deadline.IsZero() && time.Now().After(deadline) {
			return hpcexec.Errorf(hpcexec.ErrUnavailable, "session %s did not start within two minutes", rec.Name).
				WithHint("see %s", m.Dirs.logPath(rec.Name))
		}
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errWaited) {
				return &PendingError{Session: rec.Name, JobID: rec.Start.JobID, Reason: job.reason()}
			}
			return context.Cause(ctx)
		case err := <-job.ended:
			// The supervisor's last word may be later than the job's end:
			// a shared file system shows it when it likes.
			if state := m.lastWord(rec); state != nil && state.Phase == Failed {
				return m.failed(rec, state)
			}
			return err
		case <-time.After(wait):
		}
	}
}

// lastWord waits a little for the state that the supervisor of an ended job
// left.
func (m *Manager) lastWord(rec *Record) *State {
	for range 10 {
		state, err := m.Dirs.loadState(rec.Name)
		if err == nil && state != nil && state.Token == rec.Start.Token && (state.Phase == Failed || state.Phase == Stopped) {
			return state
		}
		os.ReadDir(m.Dirs.Run()) // makes NFS look again
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

func (m *Manager) failed(rec *Record, state *State) error {
	err := state.Error.Err()
	if err == nil {
		err = hpcexec.Errorf(hpcexec.ErrUnavailable, "session %s did not start", rec.Name)
	}
	if hpcexec.Hint(err) == "" {
		return hpcexec.Errorf(kindOf(err), "%w", err).WithHint("see %s", m.Dirs.logPath(rec.Name))
	}
	return err
}

func kindOf(err error) error {
	if kind := hpcexec.KindByName(hpcexec.KindName(err)); kind != nil {
		return kind
	}
	return hpcexec.ErrUnavailable
}

func (m *Manager) say(p Progress) {
	if m.Progress != nil {
		m.Progress(p)
	}
}
