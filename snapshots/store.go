// Package snapshots keeps immutable states of overlays.
//
//	ROOT/ID.sqfs    one squashfs file, the upper directory of an overlay as it
//	                was: with its marks of deleted files, its attributes
//	ROOT/ID.json    manifest: parent, layers beneath, hash, size, who, when
//
// A snapshot is the difference to what lay beneath the overlay: the image, and
// the snapshots in [Snapshot.Layers], low to high. To continue from it, or to
// fork it any number of times, the layers are mounted read-only under an empty
// overlay, which takes no time and copies nothing:
//
//	image.sif ◀─ a.sqfs ◀─ b.sqfs ◀─ new overlay (upper)
//
// The data is on disk before its manifest is, and the manifest is gone before
// the data is. There is no index: the manifests are it. What a crash leaves is
// recognised by its name or by the lack of a manifest, and removed once it is
// old; see [Store.Sweep].
package snapshots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/atomicfile"
)

// format is the newest version of the manifest.
//
//	1  all members of Snapshot but Problem
const format = 1

// MaxLayers is how many snapshots may lie on each other. The kernel and
// fuse-overlayfs take more; one process that serves a mounted file is needed for
// each.
const MaxLayers = 32

var (
	// ErrNotFound: there is no such snapshot.
	ErrNotFound = errors.New("no such snapshot")

	// ErrDamaged: the data isn't there or isn't what it was.
	ErrDamaged = errors.New("snapshot is damaged")

	// ErrReferenced: other snapshots or sessions need it.
	ErrReferenced = errors.New("snapshot is needed")

	// ErrFull: no space or quota left where the snapshots are.
	ErrFull = errors.New("no space left")
)

// An Image says what container image a state is a difference to.
type Image struct {
	Path   string `json:"path,omitempty"`
	Digest string `json:"digest,omitempty"`
}

// A Snapshot is what the manifest says.
type Snapshot struct {
	ID      string    `json:"id"` // 12 letters and digits
	Created time.Time `json:"created"`

	// Layers are the ids of the snapshots beneath, low to high; the last one
	// is the parent.
	Layers []string `json:"layers,omitempty"`

	Session string          `json:"session,omitempty"`
	Message string          `json:"message,omitempty"`
	Origin  json.RawMessage `json:"origin,omitempty"` // see CreateOptions
	User    string          `json:"user,omitempty"`
	Host    string          `json:"host,omitempty"` // where it was made
	Image   Image           `json:"image"`

	Size   int64  `json:"size"`   // bytes of the file
	SHA256 string `json:"sha256"` // of the file, hexadecimal

	// Unpacked is the sum of the files' sizes and Inodes the number of
	// files, directories and all else, as far as mksquashfs tells.
	Unpacked int64 `json:"unpacked,omitempty"`
	Inodes   int64 `json:"inodes,omitempty"`

	Tool        string `json:"tool"`        // "mksquashfs 4.6.1"
	Compression string `json:"compression"` // "zstd"

	// Problem says what is wrong with it, as far as List sees.
	Problem string `json:"-"`
}

// Parent is the id of the snapshot beneath, or empty.
func (s *Snapshot) Parent() string {
	if len(s.Layers) == 0 {
		return ""
	}
	return s.Layers[len(s.Layers)-1]
}

type manifest struct {
	Format int `json:"format"`
	Snapshot
}

// Options say where the programs of squashfs-tools are looked for.
type Options struct {
	// Path is a list of directories as in PATH; empty is the PATH of this
	// process. The usual places of the system are looked at after it.
	Path string

	step stepFunc
}

// A Store is a directory of snapshots. Any number of processes on any number
// of nodes may use it at once.
type Store struct {
	root string
	opts Options
}

// Open opens the store at root, an absolute path; the directory is made, with
// mode 0700, when it isn't there.
func Open(root string, opts Options) (*Store, error) {
	if !filepath.IsAbs(root) {
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "snapshot store %q: the path is not absolute", root)
	}
	s := &Store{root: filepath.Clean(root), opts: opts}
	if err := os.MkdirAll(s.root, 0o700); err != nil {
		return nil, storeError(s.root, err)
	}
	return s, nil
}

// Root is the store's directory.
func (s *Store) Root() string { return s.root }

func (s *Store) data(id string) string     { return filepath.Join(s.root, id+dataSuffix) }
func (s *Store) manifest(id string) string { return filepath.Join(s.root, id+manifestSuffix) }

const (
	dataSuffix     = ".sqfs"
	manifestSuffix = ".json"

	// newPrefix begins the name of a file that is being made, see tempName.
	// The manifest of a snapshot that is being removed has the next one while
	// it is found out whether somebody needs it, the last one after that.
	newPrefix      = ".new."
	removingPrefix = ".removing."
	trashPrefix    = ".trash."

	idLen = 12
)

// validID says whether a string can be an id: it becomes a file name.
func validID(id string) bool {
	if len(id) != idLen {
		return false
	}
	for i := 0; i < len(id); i++ {
		if c := id[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// List returns the snapshots, oldest first. A damaged one is among them and
// says so in Problem. What crashes left behind is swept first.
func (s *Store) List(ctx context.Context) ([]Snapshot, error) {
	if _, err := s.Sweep(ctx); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.root)
	if err != nil {
		return nil, storeError(s.root, err)
	}
	var list []Snapshot
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), manifestSuffix)
		if !ok || !validID(id) {
			continue
		}
		snap, err := s.read(id)
		switch {
		case errors.Is(err, ErrNotFound):
			continue // removed meanwhile
		case err != nil:
			snap = Snapshot{ID: id, Problem: err.Error()}
		}
		list = append(list, snap)
	}
	slices.SortFunc(list, func(a, b Snapshot) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list, nil
}

// Get finds a snapshot by its id or a beginning of it that is unique. The error
// is of kind hpcexec.ErrInvalid; it matches ErrNotFound where there is none and
// ErrDamaged where its data is missing.
func (s *Store) Get(prefix string) (Snapshot, error) {
	id, err := s.resolve(prefix)
	if err != nil {
		return Snapshot{}, err
	}
	snap, err := s.read(id)
	if err != nil {
		return Snapshot{}, err
	}
	if snap.Problem != "" {
		return Snapshot{}, hpcexec.Errorf(hpcexec.ErrInvalid, "snapshot %s: %w: %s", id, ErrDamaged, snap.Problem)
	}
	return snap, nil
}

func (s *Store) resolve(prefix string) (string, error) {
	if validID(prefix) {
		return prefix, nil
	}
	entries, err := os.ReadDir(s.root)
	if err != nil {
		return "", storeError(s.root, err)
	}
	var found []string
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), manifestSuffix)
		if ok && validID(id) && prefix != "" && strings.HasPrefix(id, prefix) {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return "", notFound(prefix)
	case 1:
		return found[0], nil
	}
	return "", hpcexec.Errorf(hpcexec.ErrInvalid, "%q is the beginning of %d snapshots: %s", prefix, len(found), strings.Join(found, ", ")).
		WithHint("give more of the id")
}

// read reads one manifest, and looks whether its data is there.
func (s *Store) read(id string) (Snapshot, error) {
	var m manifest
	err := atomicfile.ReadJSON(s.manifest(id), &m, format)
	if errors.Is(err, fs.ErrNotExist) {
		return Snapshot{}, notFound(id)
	}
	if errors.Is(err, atomicfile.ErrCorrupt) {
		return Snapshot{}, hpcexec.Errorf(hpcexec.ErrInvalid, "snapshot %s: %w: %v", id, ErrDamaged, err)
	}
	if err != nil {
		return Snapshot{}, storeError(s.root, err)
	}
	snap := m.Snapshot
	if snap.ID != id || len(snap.SHA256) != 64 || !allValid(snap.Layers) {
		return Snapshot{}, hpcexec.Errorf(hpcexec.ErrInvalid, "snapshot %s: %w: its manifest is not that of this snapshot", id, ErrDamaged)
	}
	info, err := os.Lstat(s.data(id))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		snap.Problem = "its data is missing"
	case err != nil:
		return Snapshot{}, storeError(s.root, err)
	case !info.Mode().IsRegular() || info.Size() != snap.Size:
		snap.Problem = fmt.Sprintf("its data has %d bytes, it had %d", info.Size(), snap.Size)
	}
	return snap, nil
}

func allValid(ids []string) bool {
	for _, id := range ids {
		if !validID(id) {
			return false
		}
	}
	return true
}

// Layers are the absolute paths of the squashfs files that give the state of a
// snapshot when they are mounted over its image, low to high, the snapshot's
// own last. The error is as with [Store.Get], for each of them.
func (s *Store) Layers(prefix string) ([]string, error) {
	snap, err := s.Get(prefix)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, id := range snap.Layers {
		if _, err := s.Get(id); err != nil {
			return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "snapshot %s needs %s: %w", snap.ID, id, err)
		}
		paths = append(paths, s.data(id))
	}
	return append(paths, s.data(snap.ID)), nil
}

// Chain is what a new overlay on top of a snapshot records: the ids of all
// layers, low to high, the snapshot's own last.
func (s *Snapshot) Chain() []string { return append(slices.Clone(s.Layers), s.ID) }

func notFound(id string) error {
	return hpcexec.Errorf(hpcexec.ErrInvalid, "%w: %q", ErrNotFound, id).WithHint("hpcexec snapshot ls shows what there is")
}

// A stepFunc is called before each change of the file system; an error from it
// ends the operation there. nil does nothing. Tests crash in it.
type stepFunc func(name string) error

func (f stepFunc) at(name string) error {
	if f == nil {
		return nil
	}
	return f(name)
}
