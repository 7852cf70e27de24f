// Package overlay keeps the writable layers of container sessions: makes them,
// says who may write to one, how much it holds, and removes it.
//
//	DIR/                    0700
//	  overlay.json          what it is: image, layers beneath it
//	  lease.N               who may write; the highest N counts
//	  layer/upper           what the session changed; given to the runtime
//	  layer/upper/session   HOME inside the container
//	  layer/work            the kernel's or fuse-overlayfs' own
//	  tmp/                  /tmp and /var/tmp inside (--workdir)
//
// An overlay is made under another name and renamed, so there is never half of
// one under its name. It is renamed before it is deleted, for the same reason;
// [Sweep] removes what a crash left of either.
//
// Two writers corrupt an overlay, and most runtimes don't notice. So whoever
// writes holds the lease, see [Overlay.Acquire]. It works over the processes of
// one node, over nodes, and over their crashes, on any shared file system that
// has hard links; no file lock takes part, since many file systems have none
// that another node can see.
package overlay

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/atomicfile"
)

// format is the newest version of overlay.json and lease.N.
//
//	1  kind, id, created, image, layers; N, token, holder, interval, beat, at
const format = 1

// KindDir is a directory on a shared or local file system, the kind that every
// runtime can use.
const KindDir = "dir"

const metaFile = "overlay.json"

// An Image says what a session's container was made of.
type Image struct {
	Path   string `json:"path,omitempty"`
	Digest string `json:"digest,omitempty"` // "sha256:…"
}

// Meta is what overlay.json says. It doesn't change in the life of an overlay.
type Meta struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`
	Created time.Time `json:"created"`
	Image   Image     `json:"image"`

	// Layers are the ids of the snapshots that lie between the image and
	// this overlay, low to high. The overlay makes no sense without them.
	Layers []string `json:"layers,omitempty"`
}

type metaJSON struct {
	Format int `json:"format"`
	Meta
}

// CreateOptions are what is recorded of a new overlay.
type CreateOptions struct {
	Image  Image
	Layers []string // see [Meta]

	step func(name string) error // called before each change; tests crash there
}

// An Overlay is a writable layer on disk. Its methods may be used by several
// goroutines.
type Overlay struct {
	dir  string
	meta Meta
}

// Create makes an overlay at dir, an absolute path at which nothing is yet;
// missing parents are made with mode 0700. The file system
// is tried first: what a session needs of it (writing, renaming, removing,
// directories, hard links) is done once.
//
// The error matches fs.ErrExist where dir is in use, [ErrNotWritable] or
// [ErrFull] (both of kind hpcexec.ErrUnavailable) where the file system refuses.
func Create(dir string, opts CreateOptions) (*Overlay, error) {
	if !filepath.IsAbs(dir) {
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "overlay %q: the path is not absolute", dir)
	}
	dir = filepath.Clean(dir)
	if _, err := os.Lstat(filepath.Join(dir, metaFile)); err == nil {
		return nil, existsError(dir)
	}
	o := &Overlay{dir: dir, meta: Meta{
		ID:      strings.ToLower(rand.Text()[:16]),
		Kind:    KindDir,
		Created: time.Now().UTC().Round(time.Second),
		Image:   opts.Image,
		Layers:  opts.Layers,
	}}
	if err := o.create(opts.step); err != nil {
		if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrExist) {
			return nil, existsError(dir)
		}
		return nil, diskError(dir, err)
	}
	return o, nil
}

func (o *Overlay) create(step stepFunc) (err error) {
	parent := filepath.Dir(o.dir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	if err := step.at("make dir"); err != nil {
		return err
	}
	tmp := filepath.Join(parent, leftoverName(newPrefix, o.dir))
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
		}
	}()
	if err := step.at("probe"); err != nil {
		return err
	}
	if _, err := probe(tmp); err != nil {
		return err
	}
	// The mode of upper is the mode of / inside. Nobody else gets here, the
	// directory above is closed; programs inside expect to see 0755.
	for _, d := range []struct {
		path string
		perm fs.FileMode
	}{{"layer", 0o700}, {"layer/upper", 0o755}, {"layer/upper/session", 0o700}, {"layer/work", 0o700}, {"tmp", 0o700}} {
		if err := step.at("make " + d.path); err != nil {
			return err
		}
		path := filepath.Join(tmp, d.path)
		if err := os.Mkdir(path, d.perm); err != nil {
			return err
		}
		if err := os.Chmod(path, d.perm); err != nil { // whatever the umask
			return err
		}
	}
	if err := step.at("write meta"); err != nil {
		return err
	}
	if err := atomicfile.WriteJSON(filepath.Join(tmp, metaFile), metaJSON{format, o.meta}, 0o600); err != nil {
		return err
	}
	for _, d := range []string{"layer/upper", "layer"} {
		if err := atomicfile.SyncDir(filepath.Join(tmp, d)); err != nil {
			return err
		}
	}
	if err := step.at("rename"); err != nil {
		return err
	}
	// Another process may have made it meanwhile: rename(2) doesn't replace a
	// directory that isn't empty.
	if err := os.Rename(tmp, o.dir); err != nil {
		return err
	}
	if err := step.at("sync parent"); err != nil {
		return err
	}
	return atomicfile.SyncDir(parent)
}

// Open opens the overlay at dir. The error is of kind hpcexec.ErrInvalid and
// matches fs.ErrNotExist where there is none.
func Open(dir string) (*Overlay, error) {
	if !filepath.IsAbs(dir) {
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "overlay %q: the path is not absolute", dir)
	}
	o := &Overlay{dir: filepath.Clean(dir)}
	var m metaJSON
	err := atomicfile.ReadJSON(filepath.Join(o.dir, metaFile), &m, format)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "no overlay at %s: %w", o.dir, err)
	case err != nil:
		return nil, diskError(o.dir, err)
	case m.Kind != KindDir:
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "overlay %s is of kind %q, which this hpcexec doesn't know", o.dir, m.Kind)
	}
	o.meta = m.Meta
	for _, d := range []string{o.Layer(), o.Upper(), o.Tmp()} {
		info, err := os.Lstat(d)
		if err != nil {
			return nil, diskError(o.dir, err)
		}
		if !info.IsDir() {
			return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "overlay %s: %s is not a directory", o.dir, d)
		}
	}
	return o, nil
}

// Dir is the overlay's directory.
func (o *Overlay) Dir() string { return o.dir }

// Meta is what is recorded of the overlay.
func (o *Overlay) Meta() Meta { return o.meta }

// Layer is the directory that has upper and work: what the runtime's option
// --overlay takes, for one writer or, followed by ":ro", for any number of
// readers. Readers see what a writer does late or never, and under a stack
// that is read-only as a whole the kernel shows entries that were deleted with
// their directory; see package snapshots for states that can be shared.
func (o *Overlay) Layer() string { return filepath.Join(o.dir, "layer") }

// Upper is the directory with what the session wrote: what a snapshot packs.
func (o *Overlay) Upper() string { return filepath.Join(o.dir, "layer", "upper") }

// Tmp is the directory for the session's /tmp and /var/tmp: what the runtime's
// option --workdir takes.
func (o *Overlay) Tmp() string { return filepath.Join(o.dir, "tmp") }

// A stepFunc is called before each change of the file system; an error from it
// ends the operation there. nil does nothing. Tests crash in it.
type stepFunc func(name string) error

func (f stepFunc) at(name string) error {
	if f == nil {
		return nil
	}
	return f(name)
}
