package session

import (
	"context"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/rundir"
)

// Ensure makes and starts a session where need be and returns what is known of
// it. With Want.Name empty it is ErrInvalid.
func (m *Manager) Ensure(ctx context.Context, w Want) (Info, error) {
	unlock, err := m.lock(ctx, w.Name)
	if err != nil {
		return Info{}, err
	}
	defer unlock()
	rec, err := m.make(w, false)
	if err != nil {
		return Info{}, err
	}
	if _, err := m.up(ctx, rec, w.Wait); err != nil {
		return Info{}, err
	}
	return m.info(ctx, rec)
}

// Show says what is known of a session. It starts nothing.
func (m *Manager) Show(ctx context.Context, name string) (Info, error) {
	rec, err := m.Dirs.Load(name)
	if err != nil {
		return Info{}, err
	}
	return m.info(ctx, rec)
}

// List says what is known of every session. It starts nothing, and removes
// what killed clients left of sessions without a name.
func (m *Manager) List(ctx context.Context) ([]Info, error) {
	m.sweep(ctx)
	names, err := m.Dirs.Names()
	if err != nil {
		return nil, err
	}
	list := make([]Info, 0, len(names))
	for _, name := range names {
		info, err := m.Show(ctx, name)
		if err != nil {
			info = Info{Name: name, State: "failed", Reason: err.Error()}
		}
		list = append(list, info)
	}
	return list, nil
}

// info tells what is known from the files, the processes of this node and, of
// a job, from Slurm. It never logs in anywhere: a look must cost nobody a
// second factor.
func (m *Manager) info(ctx context.Context, rec *Record) (Info, error) {
	dir, err := rundir.Get(m.Dirs.Home)
	if err != nil {
		return Info{}, err
	}
	i := Info{
		Name: rec.Name, Place: rec.Options.Place, Image: rec.Options.Image, Created: rec.Created,
		Control: controlPath(dir, rec.Name), Base: rec.Base, Ephemeral: rec.Ephemeral, Options: rec.Options,
	}
	if rec.OverlayPath != "" {
		i.Overlay = &Layer{Kind: rec.Options.Overlay, Path: rec.OverlayPath}
	}
	state, err := m.Dirs.loadState(rec.Name)
	if err != nil {
		return Info{}, err
	}
	m.adopt(rec, state)
	switch {
	case rec.Start == nil && state == nil:
		i.State = "new"
		return i, nil
	case rec.Start == nil:
		i.State, i.Reason = "stopped", state.Reason
		return i, nil
	}
	i.JobID, i.Started = rec.Start.JobID, rec.Start.At
	if state == nil || state.Token != rec.Start.Token {
		i.State = "starting"
		if m.isSlurm(rec) {
			i.State = "pending"
		}
	} else {
		i.State, i.Reason, i.Node = string(state.Phase), state.Reason, state.Addr
		if state.JobID != "" {
			i.JobID = state.JobID
		}
		if state.Error != nil {
			i.Reason = state.Error.Text
		}
		if state.Phase == Restarting {
			i.State = string(Starting)
		}
		if state.Phase == Stopped || state.Phase == Failed {
			return i, nil
		}
		if self, err := selfID(); err == nil && self.Same(state.Node) {
			if !state.Proc.Alive() {
				i.State, i.Reason = "stopped", "its supervisor is gone"
			}
			return i, nil
		}
	}
	if m.isSlurm(rec) {
		switch gone, err := m.jobGone(ctx, rec); {
		case err != nil:
			i.State, i.Reason = "unreachable", err.Error()
		case gone:
			i.State, i.Reason = "stopped", "job "+i.JobID+" has ended"
		}
	}
	return i, nil
}

// Set changes options of a session that is stopped.
func (m *Manager) Set(ctx context.Context, name string, o Options) (Info, error) {
	rec, unlock, err := m.lockKnown(ctx, name)
	if err != nil {
		return Info{}, err
	}
	defer unlock()
	state, err := m.live(ctx, rec)
	if err != nil {
		return Info{}, err
	}
	if state != nil || rec.Start != nil {
		return Info{}, hpcexec.Errorf(hpcexec.ErrInvalid, "session %s is running", name).
			WithHint("stop it first: `hpcexec session stop %s`; its files stay", name)
	}
	next, err := m.complete(rec.Options.overlaid(o))
	if err != nil {
		return Info{}, err
	}
	if (next.Image == "") != (rec.OverlayPath == "") {
		return Info{}, hpcexec.Errorf(hpcexec.ErrInvalid, "session %s can't change between bare and an image", name).
			WithHint("make another session")
	}
	rec.Options = next
	if err := m.Dirs.save(rec); err != nil {
		return Info{}, err
	}
	return m.info(ctx, rec)
}
