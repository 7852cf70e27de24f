package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/apptainer"
	"github.com/hpcexec/hpcexec/overlay"
	"github.com/hpcexec/hpcexec/snapshots"
)

// A Comparison is how one state differs from another.
type Comparison struct {
	From  string `json:"from"` // a snapshot's id; empty is the image
	To    string `json:"to"`   // a snapshot's id, or a session's name
	Image string `json:"image"`

	// ImageProblem says why the image couldn't be read; what is removed from
	// it is known by name only then, and what replaces it counts as added.
	ImageProblem string `json:"image_problem,omitempty"`

	snapshots.Diff
}

// Diff compares a snapshot with another one or with a session as it is now;
// with to empty, it says what the snapshot changed in what lies beneath it.
func (m *Manager) Diff(ctx context.Context, id, to string) (Comparison, error) {
	store, err := m.Store()
	if err != nil {
		return Comparison{}, err
	}
	snap, err := store.Get(id)
	if err != nil {
		return Comparison{}, err
	}
	c := Comparison{From: snap.ID, Image: snap.Image.Path}
	var a, b snapshots.Side
	if to == "" {
		c.From, c.To = snap.Parent(), snap.ID
		a, b = snapshots.Side{ID: snap.Parent()}, snapshots.Side{ID: snap.ID}
	} else {
		a.ID = snap.ID
		if b, c.To, err = m.side(store, snap, to); err != nil {
			return Comparison{}, err
		}
	}
	opts := snapshots.DiffOptions{Image: snap.Image.Path}
	if opts.Offset, err = apptainer.RootFS(opts.Image); err != nil {
		opts.Image, c.ImageProblem = "", err.Error()
	}
	m.say(Progress{Stage: "diff", Text: "comparing " + snap.ID})
	c.Diff, err = store.Diff(ctx, a, b, opts)
	return c, err
}

// side finds what a snapshot is compared with: another snapshot, or a session.
func (m *Manager) side(store *snapshots.Store, snap snapshots.Snapshot, to string) (snapshots.Side, string, error) {
	other, err := store.Get(to)
	if err != nil && !errors.Is(err, snapshots.ErrNotFound) {
		return snapshots.Side{}, "", err
	}
	var rec *Record
	if CheckName(to) == nil {
		var failed error
		if rec, failed = m.Dirs.Load(to); failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			return snapshots.Side{}, "", failed
		}
	}
	switch {
	case err == nil && rec != nil:
		return snapshots.Side{}, "", hpcexec.Errorf(hpcexec.ErrInvalid, "%q is a session, and the beginning of snapshot %s", to, other.ID).
			WithHint("give the whole id for the snapshot; for the session, keep its state with `hpcexec snapshot create %s`", to)
	case err == nil:
		return snapshots.Side{ID: other.ID}, other.ID, sameImages(snap, other.Image.Path, "snapshot "+other.ID)
	case rec == nil:
		return snapshots.Side{}, "", hpcexec.Errorf(hpcexec.ErrInvalid, "neither a snapshot nor a session: %w: %q", snapshots.ErrNotFound, to).
			WithHint("`hpcexec snapshot ls` and `hpcexec session ls` show what there is")
	case rec.OverlayPath == "":
		return snapshots.Side{}, "", errNoOverlay(to)
	}
	o, err := overlay.Open(rec.OverlayPath)
	if err != nil {
		return snapshots.Side{}, "", err
	}
	return snapshots.Side{ID: rec.Base, Upper: o.Upper()}, rec.Name, sameImages(snap, rec.Options.Image, "session "+rec.Name)
}

// sameImages refuses to compare what lies on different images: each path of
// the two would differ.
func sameImages(snap snapshots.Snapshot, image, who string) error {
	if snap.Image.Path == image {
		return nil
	}
	return hpcexec.Errorf(hpcexec.ErrInvalid, "snapshot %s belongs to image %s, %s to %s", snap.ID, snap.Image.Path, who, image).
		WithHint("states of one image can be compared")
}

// A Prune says which snapshots may go; see [snapshots.PruneOptions].
type Prune struct {
	Keep   int
	Older  time.Duration
	DryRun bool
}

// PruneSnapshots removes old snapshots that neither another one nor a session
// needs.
func (m *Manager) PruneSnapshots(ctx context.Context, p Prune) (snapshots.Pruned, error) {
	store, err := m.Store()
	if err != nil {
		return snapshots.Pruned{}, err
	}
	return store.Prune(ctx, snapshots.PruneOptions{
		Keep: p.Keep, Older: p.Older, DryRun: p.DryRun,
		InUse:   func(_ context.Context, id string) ([]string, error) { return m.References(id) },
		Removed: func(s snapshots.Snapshot) { m.say(Progress{Stage: "prune", Text: "removed snapshot " + s.ID}) },
	})
}

// VerifySnapshots compares snapshots with their checksums, each with progress;
// no id means all there are. done is called for each, with nil for one that is
// sound. The error is one that concerns no single snapshot.
func (m *Manager) VerifySnapshots(ctx context.Context, ids []string, done func(id string, err error)) error {
	store, err := m.Store()
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		list, err := store.List(ctx)
		if err != nil {
			return err
		}
		for _, s := range list {
			ids = append(ids, s.ID)
		}
	}
	for i, id := range ids {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		snap, err := store.Get(id)
		if err == nil {
			id = snap.ID
			err = store.Verify(ctx, id, func(p snapshots.Progress) {
				text := "reading snapshot " + id
				if len(ids) > 1 {
					text += " (" + fmt.Sprintf("%d of %d", i+1, len(ids)) + ")"
				}
				m.say(Progress{Stage: "verify", Text: text, Done: p.Bytes, Total: snap.Size})
			})
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		done(id, err)
	}
	return nil
}
