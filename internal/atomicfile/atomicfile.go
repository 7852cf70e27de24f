// Package atomicfile writes the files that hpcexec keeps its state in, so that
// a crash between any two steps leaves the old content or the new one, and so
// that two processes, on two nodes, never see half a file.
//
//	.tmp.RANDOM.NAME   write, fsync
//	NAME               rename(2) (Write) or link(2) (Create) from the above
//	DIRECTORY          fsync, so that the name survives a crash too
//
// Every JSON file has a member "format", the version of its layout. A program
// that reads a file refuses one that is newer than what it knows; see
// [ReadJSON].
//
// What a crash leaves behind are names that [IsTemp] recognises; [Sweep]
// removes them once they are old.
package atomicfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// tempPrefix begins the name of every file that is being written.
const tempPrefix = ".tmp."

// Write puts data into the file path, which it replaces, with exactly the
// permissions perm. When it returns nil the content and the name are on disk.
// When it returns an error the old file, or its absence, is as it was.
func Write(path string, data []byte, perm fs.FileMode) error {
	return writer{}.write(path, data, perm)
}

// Create is Write for a file that must not be there yet: among any number of
// processes that create one path at once, on any number of nodes, one
// succeeds. The others get an error that matches fs.ErrExist, and whoever reads
// path sees the whole content or nothing.
//
// It needs hard links. Where the file system has none the error matches
// errors.ErrUnsupported.
func Create(path string, data []byte, perm fs.FileMode) error {
	return writer{}.create(path, data, perm)
}

// A writer is the state of one write. Its step, when set, is called before each
// change of the file system; an error from it stops the write there. Tests use
// it to crash.
type writer struct {
	step func(name string) error
}

func (w writer) at(name string) error {
	if w.step == nil {
		return nil
	}
	return w.step(name)
}

func (w writer) write(path string, data []byte, perm fs.FileMode) (err error) {
	tmp, err := w.temp(path, data, perm)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(tmp)
		}
	}()
	if err := w.at("rename"); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	if err := w.at("sync dir"); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

func (w writer) create(path string, data []byte, perm fs.FileMode) error {
	tmp, err := w.temp(path, data, perm)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	if err := w.at("link"); err != nil {
		return err
	}
	if err := os.Link(tmp, path); err != nil && !linked(tmp, path) {
		if noLinks(err) {
			return fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
		}
		return err
	}
	if err := w.at("sync dir"); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// linked says whether a link that was reported as failed is there all the
// same: an NFS server that gets a repeated request answers the second one with
// "exists".
func linked(tmp, path string) bool {
	a, errA := os.Lstat(tmp)
	b, errB := os.Lstat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// noLinks says whether a failed link(2) means that the file system can't make
// hard links. Which error that is differs: EPERM by the manual page, others
// from FUSE.
func noLinks(err error) bool {
	return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) ||
		errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EMLINK)
}

// temp makes a complete, durable file with a temporary name beside path.
func (w writer) temp(path string, data []byte, perm fs.FileMode) (_ string, err error) {
	if err := w.at("create temp"); err != nil {
		return "", err
	}
	dir, base := filepath.Split(path)
	if len(base) > 100 { // the whole name must stay below 255 bytes
		base = base[:100]
	}
	name := filepath.Join(dir, tempPrefix+strings.ToLower(rand.Text())+"."+base)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(name)
		}
	}()
	if err := w.at("write temp"); err != nil {
		return "", err
	}
	if _, err := f.Write(data); err != nil {
		return "", err
	}
	if err := f.Chmod(perm); err != nil { // OpenFile obeyed the umask
		return "", err
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	// A full quota shows up as late as here on network file systems.
	if err := f.Close(); err != nil {
		return "", err
	}
	return name, nil
}

// SyncDir makes the names in a directory durable. File systems that can't sync
// a directory don't need it, so that is no error.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return nil
	}
	return err
}

// IsTemp says whether a file name is that of a file being written, or of one
// whose writer crashed. A scan of a directory of state passes over it.
func IsTemp(name string) bool {
	return strings.HasPrefix(filepath.Base(name), tempPrefix)
}

// Sweep removes from dir the files that writers left behind when they crashed:
// those that [IsTemp] recognises and that are older than age. Give an hour or
// more: the clock of a file server may differ from this one's.
func Sweep(dir string, age time.Duration) (removed int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if !IsTemp(e.Name()) || e.IsDir() {
			continue
		}
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < age {
			continue // gone meanwhile, or still young
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err == nil {
			removed++
		}
	}
	return removed, nil
}
