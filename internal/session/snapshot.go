package session

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/overlay"
	"github.com/hpcexec/hpcexec/snapshots"
)

func errNoOverlay(name string) error {
	return hpcexec.Errorf(hpcexec.ErrInvalid, "session %s has no overlay: it has no image", name).
		WithHint("only what a session with --image writes can be kept as a snapshot")
}

// Store is the user's snapshot store.
func (m *Manager) Store() (*snapshots.Store, error) {
	return snapshots.Open(m.Dirs.Snapshots(), snapshots.Options{})
}

// createSnapshot keeps an overlay's state. Whoever calls it holds the
// overlay's lease.
func createSnapshot(ctx context.Context, d Dirs, rec *Record, o *overlay.Overlay, note string, progress func(Progress)) (snapshots.Snapshot, error) {
	store, err := snapshots.Open(d.Snapshots(), snapshots.Options{})
	if err != nil {
		return snapshots.Snapshot{}, err
	}
	origin, err := json.Marshal(rec.Options)
	if err != nil {
		return snapshots.Snapshot{}, err
	}
	var layers []string
	if rec.Base != "" {
		base, err := store.Get(rec.Base)
		if err != nil {
			return snapshots.Snapshot{}, err
		}
		layers = base.Chain()
	}
	return store.Create(ctx, snapshots.CreateOptions{
		Upper: o.Upper(), Layers: layers, Session: rec.Name, Message: note, Origin: origin,
		Image: snapshots.Image{Path: rec.Options.Image},
		Progress: func(p snapshots.Progress) {
			progress(Progress{Session: rec.Name, Stage: "snapshot", Text: "keeping the state of session " + rec.Name + " (" + p.Phase + ")", Done: p.Bytes})
		},
	})
}

// Snapshot keeps the state of a session's overlay, running or not.
func (m *Manager) Snapshot(ctx context.Context, name, note string) (snapshots.Snapshot, error) {
	rec, unlock, err := m.lockKnown(ctx, name)
	if err != nil {
		return snapshots.Snapshot{}, err
	}
	defer unlock()
	return m.snapshot(ctx, rec, note)
}

func (m *Manager) snapshot(ctx context.Context, rec *Record, note string) (snapshots.Snapshot, error) {
	var snap snapshots.Snapshot
	if rec.OverlayPath == "" {
		return snap, errNoOverlay(rec.Name)
	}
	state, err := m.live(ctx, rec)
	if err != nil {
		return snap, err
	}
	if state != nil {
		conn, err := m.dialControl(ctx, rec, state)
		if err != nil {
			return snap, err
		}
		a, err := ask(ctx, conn, question{Op: "snapshot", Token: state.Token, Note: note}, m.say)
		if err != nil {
			return snap, err
		}
		return snap, json.Unmarshal(a.Result, &snap)
	}
	if rec.Start != nil {
		return snap, hpcexec.Errorf(hpcexec.ErrUnavailable, "session %s is starting", rec.Name).WithHint("try again when it runs")
	}
	o, err := overlay.Open(rec.OverlayPath)
	if err != nil {
		return snap, err
	}
	lease, err := m.takeLease(ctx, rec, o)
	if err != nil {
		return snap, err
	}
	defer lease.Release()
	return createSnapshot(ctx, m.Dirs, rec, o, note, m.say)
}

// Restore puts a snapshot in place of a session's overlay. The session is
// stopped; its state until then is kept as the snapshot that is returned.
func (m *Manager) Restore(ctx context.Context, name, id string) (kept snapshots.Snapshot, err error) {
	rec, unlock, err := m.lockKnown(ctx, name)
	if err != nil {
		return kept, err
	}
	defer unlock()
	if rec.OverlayPath == "" {
		return kept, errNoOverlay(name)
	}
	store, err := m.Store()
	if err != nil {
		return kept, err
	}
	snap, err := store.Get(id)
	if err != nil {
		return kept, err
	}
	if err := m.sameImage(snap, rec.Options.Image); err != nil {
		return kept, err
	}
	if err := m.end(ctx, rec); err != nil {
		return kept, err
	}
	if kept, err = m.snapshot(ctx, rec, "before the restore of "+snap.ID); err != nil {
		return kept, err
	}
	// The record is the pointer: the new overlay is there before it, the old
	// one goes after it.
	old := *rec
	rec.OverlayPath = m.freshOverlay(name)
	rec.Base = snap.ID
	if err := m.makeOverlay(rec); err != nil {
		return kept, err
	}
	if err := m.Dirs.save(rec); err != nil {
		return kept, errors.Join(err, removeOverlay(rec))
	}
	return kept, removeOverlay(&old)
}

// sameImage refuses a snapshot over another image than its own: an upper layer
// means something over its lower layer only.
func (m *Manager) sameImage(snap snapshots.Snapshot, image string) error {
	if snap.Image.Path != image {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "snapshot %s belongs to image %s, the session has %s", snap.ID, snap.Image.Path, image).
			WithHint("make a session from it with `hpcexec snapshot fork %s NAME`", snap.ID)
	}
	return nil
}

// Fork makes a session that starts from a snapshot. It inherits image, place
// and options, and shares nothing that is written later.
func (m *Manager) Fork(ctx context.Context, id, name string) (Info, error) {
	unlock, err := m.lock(ctx, name)
	if err != nil {
		return Info{}, err
	}
	defer unlock()
	if _, err := m.Dirs.Load(name); err == nil {
		return Info{}, hpcexec.Errorf(hpcexec.ErrInvalid, "session %s is there already", name).WithHint("choose another name")
	}
	store, err := m.Store()
	if err != nil {
		return Info{}, err
	}
	snap, err := store.Get(id)
	if err != nil {
		return Info{}, err
	}
	var o Options
	if err := json.Unmarshal(snap.Origin, &o); err != nil {
		return Info{}, hpcexec.Errorf(hpcexec.ErrInvalid, "snapshot %s does not say what session it is of: %w", snap.ID, err)
	}
	rec := &Record{
		Name: name, Created: time.Now().UTC(), Options: o, Base: snap.ID,
		OverlayPath: m.freshOverlay(name), // a fork has the snapshot and nothing else
	}
	if err := m.makeOverlay(rec); err != nil {
		return Info{}, err
	}
	if err := m.Dirs.save(rec); err != nil {
		return Info{}, err
	}
	// Whoever removes the snapshot now finds the session; whoever did a
	// moment ago hasn't.
	if _, err := store.Layers(snap.ID); err != nil {
		return Info{}, errors.Join(err, m.Dirs.purge(rec))
	}
	return m.info(ctx, rec)
}

// RemoveSnapshot removes a snapshot that neither another one nor a session
// needs.
func (m *Manager) RemoveSnapshot(ctx context.Context, id string) (snapshots.Snapshot, error) {
	store, err := m.Store()
	if err != nil {
		return snapshots.Snapshot{}, err
	}
	snap, err := store.Get(id)
	if err != nil {
		return snap, err
	}
	return snap, store.Remove(ctx, snap.ID, snapshots.RemoveOptions{InUse: func(_ context.Context, id string) ([]string, error) {
		return m.References(id)
	}})
}

// References lists the sessions that a snapshot lies under.
func (m *Manager) References(id string) ([]string, error) {
	names, err := m.Dirs.Names()
	if err != nil {
		return nil, err
	}
	var users []string
	for _, name := range names {
		rec, err := m.Dirs.Load(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			// removed meanwhile
		case err != nil:
			return nil, err // it may need the snapshot: who can tell
		case rec.Base == id:
			users = append(users, name)
		}
	}
	return users, nil
}
