package snapshots

import (
	"context"
	"errors"
	"slices"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
)

// PruneOptions say which snapshots may go. At least one of Keep and Older must
// be set; a snapshot goes only where both let it.
type PruneOptions struct {
	// Keep is how many of each session stay, the newest; 0 keeps none for
	// its number.
	Keep int

	// Older is the age from which one may go; 0 is any age.
	Older time.Duration

	// DryRun says what would go, and removes nothing.
	DryRun bool

	// InUse is as in RemoveOptions.
	InUse func(ctx context.Context, id string) ([]string, error)

	// Removed, when set, is called after each that is gone, or would be.
	Removed func(Snapshot)
}

// A Pruned is what Prune did, or would do.
type Pruned struct {
	Removed []Snapshot
	Needed  []Snapshot // old enough, but a snapshot or a session lies on them
	Bytes   int64      // of the files that went
}

// Prune removes old snapshots. One that another snapshot or a session needs
// stays, as does a damaged one: somebody should look at it. Those that lie on
// others go first, so a chain that nobody needs goes as a whole. Whoever begins
// to need one meanwhile is seen by [Store.Remove], which asks again.
//
// What has gone when an error ends it is in the result.
func (s *Store) Prune(ctx context.Context, opts PruneOptions) (Pruned, error) {
	var p Pruned
	if opts.Keep < 0 || opts.Older < 0 || opts.Keep == 0 && opts.Older == 0 {
		return p, hpcexec.Errorf(hpcexec.ErrInvalid, "prune needs a number to keep or an age, neither below zero").
			WithHint("say --keep N, --older D or both")
	}
	list, err := s.List(ctx)
	if err != nil {
		return p, err
	}
	old := candidates(list, opts.Keep, time.Now().Add(-opts.Older))
	gone := map[string]bool{}
	// Layers come before what lies on them, and are never younger: backwards.
	slices.SortStableFunc(old, func(a, b Snapshot) int { return len(b.Layers) - len(a.Layers) })
	for _, snap := range old {
		if ctx.Err() != nil {
			return p, context.Cause(ctx)
		}
		if opts.DryRun {
			needed, err := s.neededBut(ctx, snap.ID, gone, opts.InUse)
			if err != nil {
				return p, storeError(s.root, err)
			}
			if needed {
				p.Needed = append(p.Needed, snap)
				continue
			}
		} else {
			switch err := s.Remove(ctx, snap.ID, RemoveOptions{InUse: opts.InUse}); {
			case errors.Is(err, ErrReferenced):
				p.Needed = append(p.Needed, snap)
				continue
			case errors.Is(err, ErrNotFound):
				continue // another process was faster
			case err != nil:
				return p, err
			}
		}
		gone[snap.ID] = true
		p.Removed = append(p.Removed, snap)
		p.Bytes += snap.Size
		if opts.Removed != nil {
			opts.Removed(snap)
		}
	}
	return p, nil
}

// candidates are the sound snapshots of a list, oldest first, that are older
// than a time and not among the newest of their session.
func candidates(list []Snapshot, keep int, before time.Time) []Snapshot {
	var old []Snapshot
	seen := map[string]int{}
	for _, snap := range slices.Backward(list) {
		if snap.Problem != "" {
			continue
		}
		seen[snap.Session]++
		if seen[snap.Session] > keep && !snap.Created.After(before) {
			old = append(old, snap)
		}
	}
	return old
}

// neededBut says whether a snapshot is needed once others are gone.
func (s *Store) neededBut(ctx context.Context, id string, gone map[string]bool, inUse func(context.Context, string) ([]string, error)) (bool, error) {
	needed, err := s.neededBy(ctx, id, RemoveOptions{InUse: inUse})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(needed, func(who string) bool {
		const prefix = "snapshot "
		return len(who) <= len(prefix) || who[:len(prefix)] != prefix || !gone[who[len(prefix):]]
	}), nil
}
