package snapshots

import (
	"context"
	"os"

	hpcexec "github.com/hpcexec/hpcexec"
)

// Verify reads the data of a snapshot, given by its id or the beginning of it,
// and compares it with its hash. The error matches ErrDamaged where they differ.
// What lies beneath is not looked at: verify each of [Snapshot.Chain] for that.
func (s *Store) Verify(ctx context.Context, prefix string, progress func(Progress)) error {
	snap, err := s.Get(prefix)
	if err != nil {
		return err
	}
	f, err := os.Open(s.data(snap.ID))
	if err != nil {
		return storeError(s.root, err)
	}
	defer f.Close()
	sum, n, err := hash(ctx, f, progress)
	if err != nil {
		return storeError(s.root, err)
	}
	if sum != snap.SHA256 || n != snap.Size {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "snapshot %s: %w: its data has the hash %s, it had %s", snap.ID, ErrDamaged, sum, snap.SHA256).
			WithHint("restore %s from a backup, or remove the snapshot", s.data(snap.ID))
	}
	return nil
}
