package overlay

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec/internal/atomicfile"
)

// Names of what is not yet, or no more, an overlay. They stand beside
// overlays, so a list of overlays passes over names that IsLeftover knows.
const (
	newPrefix   = ".new."
	trashPrefix = ".trash."
)

// leftoverName is a random name beside dir.
func leftoverName(prefix, dir string) string {
	base := filepath.Base(dir)
	if len(base) > 100 {
		base = base[:100]
	}
	return prefix + strings.ToLower(rand.Text()[:12]) + "." + base
}

// IsLeftover says whether a name in a directory of overlays is one that is being
// made or removed, or was when its process crashed.
func IsLeftover(name string) bool {
	return strings.HasPrefix(name, newPrefix) || strings.HasPrefix(name, trashPrefix)
}

// Remove removes the overlay with all it holds. It takes the lease first, by
// opts, so the error is as with [Overlay.Acquire] if somebody writes to it. The
// name is gone at once and as a whole; if the rest fails or crashes, [Sweep]
// does it later. No symbolic link is followed.
func (o *Overlay) Remove(ctx context.Context, opts AcquireOptions) error {
	lease, err := o.Acquire(ctx, opts)
	if err != nil {
		return err
	}
	trash := filepath.Join(filepath.Dir(o.dir), leftoverName(trashPrefix, o.dir))
	if err := opts.step.at("rename"); err != nil {
		lease.Release()
		return err
	}
	if err := os.Rename(o.dir, trash); err != nil {
		lease.Release()
		return diskError(o.dir, err)
	}
	lease.Release() // finds nothing to release
	if err := opts.step.at("sync parent"); err != nil {
		return err
	}
	if err := atomicfile.SyncDir(filepath.Dir(o.dir)); err != nil {
		return diskError(o.dir, err)
	}
	if err := opts.step.at("delete"); err != nil {
		return err
	}
	if err := removeTree(ctx, trash); err != nil {
		return diskError(o.dir, err)
	}
	return nil
}

// Sweep removes what crashed processes left in a directory of overlays: those
// that were being removed, and those that were being made and are older than
// age. It returns how many it removed; the error is that of the first that it
// couldn't.
func Sweep(ctx context.Context, dir string, age time.Duration) (removed int, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var first error
	for _, e := range entries {
		if !e.IsDir() || !IsLeftover(e.Name()) {
			continue
		}
		if strings.HasPrefix(e.Name(), newPrefix) {
			info, err := e.Info()
			if err != nil || time.Since(info.ModTime()) < age {
				continue
			}
		}
		path := filepath.Join(dir, e.Name())
		if err := removeTree(ctx, path); err != nil {
			if first == nil {
				first = diskError(path, err)
			}
			continue
		}
		removed++
	}
	return removed, first
}

// removeTree removes a directory with all that is in it. Unlike os.RemoveAll it
// gives itself permission to directories that have none (the kernel's overlay
// leaves one with mode 000, pip and go make read-only ones), and any depth is
// fine. Every step is relative to an open directory and follows no link.
func removeTree(ctx context.Context, path string) error {
	parent, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer parent.Close()
	name := filepath.Base(path)
	top, err := openDir(int(parent.Fd()), name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	defer top.Close()
	r := remover{ctx: ctx, top: top}
	if err := r.empty(top, 0); err != nil {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	if err := unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// maxDepth bounds the number of open directories. What is deeper is moved to
// the top and removed from there.
const maxDepth = 100

type remover struct {
	ctx context.Context
	top *os.File
}

// empty removes what is in d.
func (r *remover) empty(d *os.File, depth int) error {
	for {
		// Names are read anew after each batch: what a file system does to
		// a position in a directory that changes differs. The top gets
		// entries while it is emptied, too.
		if _, err := d.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := d.Readdirnames(1024)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if len(names) == 0 {
			return nil
		}
		for _, name := range names {
			if r.ctx.Err() != nil {
				return context.Cause(r.ctx)
			}
			if err := r.remove(d, name, depth); err != nil {
				return err
			}
		}
	}
}

// remove takes one entry out of d.
func (r *remover) remove(d *os.File, name string, depth int) error {
	err := unix.Unlinkat(int(d.Fd()), name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	// POSIX has EPERM for a directory, Linux EISDIR.
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	sub, subErr := openDir(int(d.Fd()), name)
	if errors.Is(subErr, unix.ENOTDIR) {
		return err
	}
	if subErr != nil {
		return subErr
	}
	defer sub.Close()
	if depth >= maxDepth {
		return unix.Renameat(int(d.Fd()), name, int(r.top.Fd()), trashPrefix+rand.Text())
	}
	if err := r.empty(sub, depth+1); err != nil {
		return err
	}
	err = unix.Unlinkat(int(d.Fd()), name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// openDir opens a directory for listing and makes sure that its entries can be
// removed. It fails for a symbolic link.
func openDir(parent int, name string) (*os.File, error) {
	fd, err := unix.Openat(parent, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	// A descriptor of this kind can't be used for fchmod(2) or listing, its
	// name in /proc can.
	self := "/proc/self/fd/" + strconv.Itoa(fd)
	if st.Mode&0o700 != 0o700 {
		if err := unix.Chmod(self, st.Mode&0o7777|0o700); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(self, os.O_RDONLY|unix.O_DIRECTORY, 0)
}
