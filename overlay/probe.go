package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Features are what a file system can do beyond what an overlay can't do
// without.
type Features struct {
	// Xattr: extended attributes of the user namespace. fuse-overlayfs keeps
	// its marks of replaced directories in them and has a second kind of
	// mark for where there are none.
	Xattr bool

	// Whiteout: a user may make the character device 0:0, the mark of a
	// deleted file in the overlay of the kernel and of fuse-overlayfs.
	Whiteout bool
}

// Probe tries what a session's overlay needs in a directory that is there:
// writing, renaming, removing, directories, hard links. Its error is as with
// [Create].
func Probe(dir string) (Features, error) {
	tmp, err := os.MkdirTemp(dir, newPrefix+"probe.")
	if err != nil {
		return Features{}, diskError(dir, err)
	}
	defer os.RemoveAll(tmp)
	f, err := probe(tmp)
	if err != nil {
		return Features{}, diskError(dir, err)
	}
	return f, nil
}

// probe works in an empty directory of its own and leaves it empty.
func probe(dir string) (Features, error) {
	a, b, sub := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "sub")
	if err := writeSync(a); err != nil {
		return Features{}, err
	}
	if err := os.Mkdir(sub, 0o700); err != nil {
		return Features{}, err
	}
	if err := os.Rename(a, b); err != nil {
		return Features{}, err
	}
	if err := os.Link(b, a); err != nil {
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
			return Features{}, fmt.Errorf("%w: hard links: %w", err, errors.ErrUnsupported)
		}
		return Features{}, err
	}
	var f Features
	f.Xattr = unix.Setxattr(b, "user.hpcexec.probe", []byte("x"), 0) == nil
	w := filepath.Join(dir, "w")
	f.Whiteout = unix.Mknod(w, unix.S_IFCHR, int(unix.Mkdev(0, 0))) == nil
	if f.Whiteout {
		if err := os.Remove(w); err != nil {
			return Features{}, err
		}
	}
	for _, p := range []string{a, b, sub} {
		if err := os.Remove(p); err != nil {
			return Features{}, err
		}
	}
	return f, nil
}

// writeSync writes a file and waits for it to be on disk: some file systems
// notice a full quota only then.
func writeSync(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(make([]byte, 16<<10)); err != nil {
		f.Close()
		return err
	}
	if err := f.Sync(); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
