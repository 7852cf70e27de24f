package session

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/hostid"
	"github.com/hpcexec/hpcexec/internal/place"
	"github.com/hpcexec/hpcexec/sshmux"
)

var selfID = sync.OnceValues(hostid.Self)

// A health is what is known of the supervisor of a start.
type health int

const (
	alive   health = iota // it answers
	dead                  // it is proven to be gone
	unknown               // its node can't be asked
)

// live returns the state of a session whose latest start runs, and nil for one
// that has to be started, what was left of the latest start being out of the
// way. A start that is still under way counts as one to go on with: the state
// is nil and rec.Start stays. An error says that it can't be known.
func (m *Manager) live(ctx context.Context, rec *Record) (*State, error) {
	state, err := m.Dirs.loadState(rec.Name)
	if err != nil {
		return nil, err
	}
	m.adopt(rec, state)
	if rec.Start == nil {
		return nil, nil
	}
	if state == nil || state.Token != rec.Start.Token {
		return nil, m.unheard(ctx, rec)
	}
	if state.Phase == Stopped || state.Phase == Failed {
		return nil, m.forget(ctx, rec)
	}
	got, h, err := m.inquire(ctx, rec, state)
	switch h {
	case alive:
		if self, err := selfID(); err == nil && rec.Options.Place == "local" && !self.Same(state.Node) {
			return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "session %s is alive on %s, and local is the node you are on", rec.Name, state.Node.Host).
				WithHint("use it on %s, or stop it there with `hpcexec session stop %s`", state.Node.Host, rec.Name)
		}
		switch got.Phase {
		case Ready:
			return got, nil
		case Stopping:
			if err := m.ended(ctx, rec, state); err != nil {
				return nil, err
			}
			return nil, m.forget(ctx, rec)
		}
		return nil, nil // starting, or being made anew: wait for it
	case dead:
		if err := m.reap(ctx, rec, state, false); err != nil {
			return nil, unreachable(rec, state, err)
		}
		return nil, m.bury(ctx, rec)
	}
	if gone, e := m.jobOver(ctx, rec); e == nil && gone {
		return nil, m.forget(ctx, rec)
	}
	return nil, hpcexec.Errorf(kindOf(err), "session %s may be alive on %s: %w", rec.Name, state.Node.Host, err).
		WithHint("see whether the node is up; `hpcexec session stop %s` ends the session if it can", rec.Name)
}

// unreachable is the error of a supervisor whose sockets were removed under it,
// if that is what err says. It ends by itself once no command runs.
func unreachable(rec *Record, state *State, err error) error {
	if !errors.Is(err, errAlive) {
		return err
	}
	return hpcexec.Errorf(hpcexec.ErrUnavailable, "session %s is alive on %s, and its sockets in %s are gone",
		rec.Name, state.Addr, filepath.Dir(state.ControlSocket)).
		WithHint("try again when its commands have ended, or end it with `hpcexec session stop %s`; its files stay", rec.Name)
}

// adopt takes the start that a state tells of as the latest one where the
// record has none: a client that gave up on a start forgets it, and its
// supervisor may come up all the same. Only its end gives the lease back.
func (m *Manager) adopt(rec *Record, state *State) {
	if rec.Start != nil || state == nil || state.Phase == Stopped || state.Phase == Failed {
		return
	}
	rec.Start = &Start{Token: state.Token, At: state.At, Exe: m.Exe, JobID: state.JobID}
}

// bury forgets a start whose supervisor is proven dead and reaped. Its state
// goes too: the supervisor's last word would be that it lives.
func (m *Manager) bury(ctx context.Context, rec *Record) error {
	if err := m.forget(ctx, rec); err != nil {
		return err
	}
	if err := os.Remove(m.Dirs.statePath(rec.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "session %s: %w", rec.Name, err)
	}
	return nil
}

// unheard looks at a start whose supervisor hasn't been heard of.
func (m *Manager) unheard(ctx context.Context, rec *Record) error {
	if m.isSlurm(rec) {
		gone, err := m.jobGone(ctx, rec)
		if err == nil && gone {
			return m.forget(ctx, rec)
		}
		return err
	}
	// It was spawned and died before it wrote a line, or it is about to.
	if time.Since(rec.Start.At) > time.Minute {
		return m.forget(ctx, rec)
	}
	return nil
}

// forget releases what the latest start may have left, so that the session can
// be started again.
func (m *Manager) forget(ctx context.Context, rec *Record) error {
	if rec.Start == nil {
		return nil
	}
	if err := m.cancelJob(ctx, rec); err != nil {
		return err
	}
	rec.Start = nil
	return m.Dirs.save(rec)
}

func (m *Manager) isSlurm(rec *Record) bool {
	p, err := place.Parse(rec.Options.Place)
	return err == nil && p.Last().Kind == place.Slurm
}

// inquire asks the supervisor of a start how it is.
func (m *Manager) inquire(ctx context.Context, rec *Record, state *State) (*State, health, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if self, err := selfID(); err == nil && self.Same(state.Node) && !state.Proc.Alive() {
		return nil, dead, nil
	}
	conn, err := m.dialControl(ctx, rec, state)
	if err == nil {
		a, e := ask(ctx, conn, question{Op: "status", Token: state.Token}, nil)
		if e == nil && a.State != nil {
			return a.State, alive, nil
		}
		err = e
	}
	if h := reached(err); h != unknown {
		return nil, h, err
	}
	// The way there tells no more than that nobody answered. The node itself
	// knows whether the process lives.
	e := m.reap(ctx, rec, state, false)
	if e == nil {
		return nil, dead, err
	}
	if errors.Is(e, errAlive) {
		// It lives and doesn't listen: not yet, or not any more.
		now, e := m.Dirs.loadState(rec.Name)
		if e == nil && now != nil && now.Token == state.Token && now.Phase != Ready {
			return now, alive, nil
		}
	}
	return nil, unknown, err
}

// reached says what a failed connection to a supervisor's socket tells: a
// socket that isn't there, or that nobody serves, on a node that answers, is
// proof that the supervisor is gone.
func reached(err error) health {
	if errors.Is(err, sshmux.ErrNoMaster) { // it never came so far
		return unknown
	}
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, io.ErrUnexpectedEOF) {
		return dead
	}
	return unknown
}

// dialControl connects to a supervisor's control socket, through the master of
// its node where that is another one.
func (m *Manager) dialControl(ctx context.Context, rec *Record, state *State) (io.ReadWriteCloser, error) {
	if self, err := selfID(); err == nil && self.Same(state.Node) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", state.ControlSocket)
	}
	return onMaster(ctx, m, dest(rec, state), func(master *sshmux.Client) (io.ReadWriteCloser, error) {
		return master.DialUnix(ctx, state.ControlSocket)
	})
}

// ended waits until the supervisor of a start has said its last word or is
// proven gone.
func (m *Manager) ended(ctx context.Context, rec *Record, state *State) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stopWait, hpcexec.Errorf(hpcexec.ErrUnavailable, "session %s did not end within %v", rec.Name, stopWait).
		WithHint("see %s", m.Dirs.logPath(rec.Name)))
	defer cancel()
	asked := time.Now()
	for wait := 5 * time.Millisecond; ; wait = min(wait+wait/8, 200*time.Millisecond) {
		now, err := m.Dirs.loadState(rec.Name)
		if err != nil {
			return err
		}
		if now == nil || now.Token != state.Token || now.Phase == Stopped || now.Phase == Failed {
			return nil
		}
		if self, err := selfID(); err == nil && self.Same(state.Node) && !state.Proc.Alive() {
			return nil
		}
		if time.Since(asked) > time.Second {
			asked = time.Now()
			if _, h, _ := m.inquire(ctx, rec, state); h == dead {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
			os.ReadDir(m.Dirs.Run()) // makes NFS look again
		}
	}
}
