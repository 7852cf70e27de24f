package snapshots

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/atomicfile"
	"github.com/hpcexec/hpcexec/internal/hostid"
)

// RemoveOptions say who else may need a snapshot.
type RemoveOptions struct {
	// InUse names the sessions that have the snapshot among their layers. It
	// is asked once the snapshot can't be found any more, so a session that
	// is recorded first and then looks for its layers is either among those,
	// or finds them missing. nil: none.
	InUse func(ctx context.Context, id string) ([]string, error)
}

// Remove removes a snapshot, given by its whole id. The error matches
// ErrReferenced, of kind hpcexec.ErrInvalid, where another snapshot or a
// session needs it.
func (s *Store) Remove(ctx context.Context, id string, opts RemoveOptions) error {
	if !validID(id) {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "%w: %q", ErrNotFound, id).WithHint("removing takes the whole id of a snapshot")
	}
	if err := s.remove(ctx, id, opts); err != nil {
		return storeError(s.root, err)
	}
	return nil
}

func (s *Store) remove(ctx context.Context, id string, opts RemoveOptions) error {
	step := s.opts.step
	if err := step.at("hide"); err != nil {
		return err
	}
	// First out of sight, then look who needs it; Create does the opposite.
	// So whatever the order of the two, one of them notices.
	hidden := filepath.Join(s.root, removingPrefix+id+manifestSuffix)
	if err := os.Rename(s.manifest(id), hidden); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return notFound(id)
		}
		return err
	}
	needed, err := s.neededBy(ctx, id, opts)
	if err != nil || len(needed) > 0 {
		if back := os.Rename(hidden, s.manifest(id)); back != nil {
			return errors.Join(err, back)
		}
		if err != nil {
			return err
		}
		return hpcexec.Errorf(hpcexec.ErrInvalid, "snapshot %s: %w by %s", id, ErrReferenced, strings.Join(needed, ", ")).
			WithHint("remove those first")
	}
	if err := step.at("decide"); err != nil {
		return err
	}
	trash := filepath.Join(s.root, trashPrefix+id+manifestSuffix)
	if err := os.Rename(hidden, trash); err != nil {
		return err
	}
	if err := atomicfile.SyncDir(s.root); err != nil {
		return err
	}
	return s.finish(id, trash)
}

// finish removes what is left of a snapshot whose removal is decided.
func (s *Store) finish(id, trash string) error {
	if err := s.opts.step.at("remove data"); err != nil {
		return err
	}
	if err := os.Remove(s.data(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.opts.step.at("remove manifest"); err != nil {
		return err
	}
	if err := os.Remove(trash); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return atomicfile.SyncDir(s.root)
}

// neededBy names the snapshots and sessions that need one.
func (s *Store) neededBy(ctx context.Context, id string, opts RemoveOptions) ([]string, error) {
	entries, err := os.ReadDir(s.root)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, e := range entries {
		other, ok := strings.CutSuffix(e.Name(), manifestSuffix)
		if !ok || !validID(other) || other == id {
			continue
		}
		snap, err := s.read(other)
		if errors.Is(err, ErrNotFound) || errors.Is(err, ErrDamaged) {
			continue
		}
		if err != nil {
			return nil, err // a newer format, say: it may need this one
		}
		if slices.Contains(snap.Layers, id) {
			list = append(list, "snapshot "+other)
		}
	}
	if opts.InUse == nil {
		return list, nil
	}
	sessions, err := opts.InUse(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, name := range sessions {
		list = append(list, "session "+name)
	}
	return list, nil
}

const (
	// orphanAge is the age at which a file of another node that nobody
	// finished is removed: longer than any clocks differ and any disk
	// takes.
	orphanAge = 24 * time.Hour

	// hiddenAge is how long it may take to find out whether a snapshot is
	// needed before somebody else brings it back.
	hiddenAge = 10 * time.Minute
)

// Sweep removes what crashed processes left: half-made snapshots and data
// without a manifest. It ends removals that were decided and takes back those
// that weren't. It returns how many files it removed.
func (s *Store) Sweep(ctx context.Context) (removed int, err error) {
	return s.sweep(ctx, time.Now())
}

func (s *Store) sweep(ctx context.Context, now time.Time) (removed int, err error) {
	entries, err := os.ReadDir(s.root)
	if err != nil {
		return 0, storeError(s.root, err)
	}
	self, err := hostid.Self()
	if err != nil {
		return 0, err
	}
	if n, err := atomicfile.Sweep(s.root, orphanAge); err == nil {
		removed += n
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return removed, context.Cause(ctx)
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		path := filepath.Join(s.root, e.Name())
		switch id, kind := classify(e.Name()); kind {
		case "new":
			owner, ok := parseTemp(e.Name())
			dead := ok && owner.host == self.Hash() && !owner.proc.Alive()
			if (dead || now.Sub(info.ModTime()) > orphanAge) && os.Remove(path) == nil {
				removed++
			}
		case "data":
			if now.Sub(info.ModTime()) < orphanAge || s.known(id) {
				continue
			}
			if os.Remove(path) == nil {
				removed++
			}
		case "removing":
			if now.Sub(changed(info)) > hiddenAge {
				os.Rename(path, s.manifest(id))
			}
		case "trash":
			if s.finish(id, path) == nil {
				removed++
			}
		}
	}
	return removed, nil
}

// known says whether a snapshot has a manifest, hidden or not.
func (s *Store) known(id string) bool {
	for _, prefix := range []string{"", removingPrefix, trashPrefix} {
		if _, err := os.Lstat(filepath.Join(s.root, prefix+id+manifestSuffix)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// classify says what a name in the store is: "new", "data", "manifest",
// "removing", "trash", or nothing of ours.
func classify(name string) (id, kind string) {
	if strings.HasPrefix(name, newPrefix) {
		return "", "new"
	}
	for _, k := range []struct{ prefix, suffix, kind string }{
		{removingPrefix, manifestSuffix, "removing"}, {trashPrefix, manifestSuffix, "trash"}, {"", dataSuffix, "data"}, {"", manifestSuffix, "manifest"},
	} {
		rest, ok := strings.CutPrefix(name, k.prefix)
		id, ok2 := strings.CutSuffix(rest, k.suffix)
		if ok && ok2 && validID(id) {
			return id, k.kind
		}
	}
	return "", ""
}

type tempOwner struct {
	host string
	proc hostid.Proc
}

// parseTemp reads what tempName made.
func parseTemp(name string) (tempOwner, bool) {
	rest, ok1 := strings.CutPrefix(name, newPrefix)
	rest, ok2 := strings.CutSuffix(rest, dataSuffix)
	f := strings.Split(rest, ".")
	if !ok1 || !ok2 || len(f) != 3 {
		return tempOwner{}, false
	}
	a, b, ok := strings.Cut(f[2], "-")
	pid, err1 := strconv.Atoi(a)
	start, err2 := strconv.ParseUint(b, 10, 64)
	if !ok || err1 != nil || err2 != nil || pid <= 0 || len(f[1]) != 16 {
		return tempOwner{}, false
	}
	return tempOwner{host: f[1], proc: hostid.Proc{PID: pid, Start: start}}, true
}

// changed is the time of the last change of a file's name or content.
func changed(info fs.FileInfo) time.Time {
	st := info.Sys().(*syscall.Stat_t)
	return time.Unix(int64(st.Ctim.Sec), int64(st.Ctim.Nsec))
}
