package snapshots

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Marks that fuse-overlayfs leaves in a directory that hides all that lies
// beneath it: an attribute and two files, the second for where there are no
// devices. The kernel's attribute has two names.
const (
	opaqueDevice = ".wh..opq"
	opaqueFile   = ".wh..wh..opq"
)

func opaqueAttrs() []string {
	return []string{"user.fuseoverlayfs.opaque", "user.overlay.opaque", "trusted.overlay.opaque"}
}

// merge moves the entries of an upper directory over those of another, as an
// overlay would show both, and keeps the marks, since the image lies beneath.
// Afterwards over is empty or has closed directories only.
func merge(ctx context.Context, base, over string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	info, err := openUp(over)
	if err != nil {
		return err
	}
	if _, err := openUp(base); err != nil {
		return err
	}
	entries, err := os.ReadDir(over)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := filepath.Join(over, e.Name()), filepath.Join(base, e.Name())
		old, err := os.Lstat(to)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		switch {
		case old == nil:
		case e.IsDir() && old.IsDir() && !opaque(from):
			if err := merge(ctx, to, from); err != nil {
				return err
			}
			continue
		default:
			// Under an overlay a directory that isn't marked, over a mark of
			// a deletion or a file, doesn't show what lies beneath those.
			if e.IsDir() && !old.IsDir() {
				if err := markOpaque(from); err != nil {
					return err
				}
			}
			if err := removeAll(to); err != nil {
				return err
			}
		}
		if err := rename(from, to); err != nil {
			return err
		}
	}
	return copyAttrs(base, over, info)
}

// openUp gives the owner all permissions for a directory, and returns what it
// had before.
func openUp(dir string) (fs.FileInfo, error) {
	info, err := os.Lstat(dir)
	if err == nil && info.Mode().Perm()&0o700 != 0o700 {
		err = os.Chmod(dir, info.Mode()|0o700)
	}
	return info, err
}

// rename moves an entry to another directory. A directory has to be writable
// for that, since its ".." changes; its mode and time stay.
func rename(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	closed := info.IsDir() && info.Mode().Perm()&0o200 == 0
	if closed {
		if err := os.Chmod(from, info.Mode()|0o200); err != nil {
			return err
		}
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	if closed {
		return os.Chmod(to, info.Mode())
	}
	return nil
}

// opaque says whether a directory of an upper hides what lies beneath it.
func opaque(dir string) bool {
	for _, name := range []string{opaqueDevice, opaqueFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	for _, attr := range opaqueAttrs() {
		var b [8]byte
		if n, err := unix.Lgetxattr(dir, attr, b[:]); err == nil && n == 1 && b[0] == 'y' {
			return true
		}
	}
	return false
}

// markOpaque puts the marks of fuse-overlayfs. The time of the directory stays.
func markOpaque(dir string) error {
	if opaque(dir) {
		return nil
	}
	info, err := openUp(dir)
	if err != nil {
		return err
	}
	unix.Lsetxattr(dir, opaqueAttrs()[0], []byte("y"), 0) // where there are attributes
	if err := unix.Mknod(filepath.Join(dir, opaqueDevice), unix.S_IFCHR, int(unix.Mkdev(0, 0))); err != nil {
		return &fs.PathError{Op: "mknod", Path: dir, Err: err}
	}
	if err := os.WriteFile(filepath.Join(dir, opaqueFile), nil, 0o600); err != nil {
		return err
	}
	if err := os.Chmod(dir, info.Mode()); err != nil {
		return err
	}
	return os.Chtimes(dir, info.ModTime(), info.ModTime())
}

// copyAttrs gives a directory the attributes, mode and time of another one.
func copyAttrs(dst, src string, info fs.FileInfo) error {
	names := make([]byte, 64<<10)
	n, err := unix.Llistxattr(src, names)
	if err == nil {
		for name := range strings.SplitSeq(string(names[:n]), "\x00") {
			if !strings.HasPrefix(name, "user.") {
				continue
			}
			value := make([]byte, 64<<10)
			m, err := unix.Lgetxattr(src, name, value)
			if err == nil {
				err = unix.Lsetxattr(dst, name, value[:m], 0)
			}
			if err != nil {
				return &fs.PathError{Op: "setxattr " + name, Path: dst, Err: err}
			}
		}
	}
	if err := os.Chmod(dst, info.Mode()); err != nil {
		return err
	}
	return os.Chtimes(dst, info.ModTime(), info.ModTime())
}

// escapeGlob makes a path match itself.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
