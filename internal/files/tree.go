package files

import (
	"errors"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// openDirs is how many directories of a tree are kept open.
const openDirs = 64

// A tree is a directory and what is below it. Each directory is opened from
// its parent without following a link, so that no name and no exchange of a
// directory for a link, at any time, leads out of it. It is safe for
// concurrent use.
type tree struct {
	root *dir

	mu   sync.Mutex
	dirs map[string]*dir // by path from the root
	tick uint64
}

// A dir is an open directory. Its methods take names of one component.
type dir struct {
	t    *tree
	fd   int // by O_PATH
	refs int
	used uint64
}

// openTree opens a directory as a tree. nofollow refuses a link as the last
// component.
func openTree(path string, nofollow bool) (*tree, error) {
	flags := unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	if nofollow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := openat(unix.AT_FDCWD, path, flags, 0)
	if err != nil {
		return nil, err
	}
	t := &tree{dirs: map[string]*dir{}}
	t.root = &dir{t: t, fd: fd, refs: 1}
	return t, nil
}

// close gives the tree up. No dir of it may be in use.
func (t *tree) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.dirs {
		unix.Close(d.fd)
	}
	t.dirs = nil
	unix.Close(t.root.fd)
}

// dir opens a directory by its path from the root, "" for the root itself. The
// caller must call done.
func (t *tree) dir(path string) (*dir, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dirLocked(path)
}

func (t *tree) dirLocked(path string) (*dir, error) {
	if path == "" {
		return t.root, nil
	}
	t.tick++
	if d := t.dirs[path]; d != nil {
		d.refs++
		d.used = t.tick
		return d, nil
	}
	up, name := split(path)
	parent, err := t.dirLocked(up)
	if err != nil {
		return nil, err
	}
	fd, err := openat(parent.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	parent.doneLocked()
	if err != nil {
		return nil, err
	}
	if len(t.dirs) >= openDirs {
		t.evictLocked()
	}
	d := &dir{t: t, fd: fd, refs: 1, used: t.tick}
	t.dirs[path] = d
	return d, nil
}

// evictLocked closes the directory that wasn't used for longest.
func (t *tree) evictLocked() {
	oldest := ""
	for path, d := range t.dirs {
		if d.refs == 0 && (oldest == "" || d.used < t.dirs[oldest].used) {
			oldest = path
		}
	}
	if oldest != "" {
		unix.Close(t.dirs[oldest].fd)
		delete(t.dirs, oldest)
	}
}

// forget closes a directory and those below it which isn't there any more.
func (t *tree) forget(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p, d := range t.dirs {
		if d.refs == 0 && (p == path || len(p) > len(path) && p[:len(path)] == path && p[len(path)] == '/') {
			unix.Close(d.fd)
			delete(t.dirs, p)
		}
	}
}

func (d *dir) done() {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	d.doneLocked()
}

func (d *dir) doneLocked() {
	if d != d.t.root {
		d.refs--
	}
}

// retry repeats a call that a signal interrupted; the Go runtime sends itself
// signals, and network file systems mind.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func openat(fd int, name string, flags int, perm uint32) (n int, err error) {
	err = retry(func() error {
		n, err = unix.Openat(fd, name, flags, perm)
		return err
	})
	return n, err
}

// names opens the directory to read its names.
func (d *dir) names() (*os.File, error) {
	fd, err := openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "."), nil
}

// list reads all names.
func (d *dir) list() ([]string, error) {
	f, err := d.names()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// open opens a regular file to read it. Nothing else is opened: a pipe would
// block and a device would act.
func (d *dir) open(name string) (*os.File, unix.Stat_t, error) {
	return d.openRegular(name, unix.O_RDONLY)
}

func (d *dir) openRegular(name string, flags int) (f *os.File, st unix.Stat_t, err error) {
	fd, err := openat(d.fd, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, st, err
	}
	if err = retry(func() error { return unix.Fstat(fd, &st) }); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("it is not a regular file any more")
	}
	if err != nil {
		unix.Close(fd)
		return nil, st, err
	}
	return os.NewFile(uintptr(fd), name), st, nil
}

// create makes a file that wasn't there, for its owner alone.
func (d *dir) create(name string) (*os.File, error) {
	fd, err := openat(d.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (d *dir) lstat(name string) (st unix.Stat_t, err error) {
	err = retry(func() error { return unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, err
}

func (d *dir) readlink(name string) (string, error) {
	b := make([]byte, maxPath)
	n, err := unix.Readlinkat(d.fd, name, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

func (d *dir) mkdir(name string) error {
	return retry(func() error { return unix.Mkdirat(d.fd, name, 0o700) })
}

func (d *dir) symlink(target, name string) error {
	return retry(func() error { return unix.Symlinkat(target, d.fd, name) })
}

func (d *dir) rename(from, to string) error {
	return retry(func() error { return unix.Renameat(d.fd, from, d.fd, to) })
}

func (d *dir) unlink(name string) error {
	return retry(func() error { return unix.Unlinkat(d.fd, name, 0) })
}

// remove removes a name and what is below it, and says how many names that
// were.
func (d *dir) remove(name string) (n int64, err error) {
	err = d.unlink(name)
	if err == nil {
		return 1, nil
	}
	st, statErr := d.lstat(name)
	if statErr != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, err
	}
	fd, err := openat(d.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	sub := &dir{t: d.t, fd: fd}
	defer unix.Close(fd)
	if st.Mode&0o700 != 0o700 {
		sub.chmodSelf(0o700)
	}
	names, err := sub.list()
	if err != nil {
		return 0, err
	}
	for _, s := range names {
		m, err := sub.remove(s)
		n += m
		if err != nil {
			return n, err
		}
	}
	err = retry(func() error { return unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR) })
	if err == nil {
		n++
	}
	return n, err
}

// chmodSelf sets the mode of the directory, which may forbid everything now.
func (d *dir) chmodSelf(mode uint32) error {
	// Fchmod takes no descriptor by O_PATH.
	return retry(func() error { return unix.Chmod("/proc/self/fd/"+strconv.Itoa(d.fd), mode) })
}

// timesSelf sets the time of the directory.
func (d *dir) timesSelf(mtime int64) error { return d.times(".", mtime) }

// times sets the time of modification, of a link itself.
func (d *dir) times(name string, mtime int64) error {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(mtime)}
	return retry(func() error { return unix.UtimesNanoAt(d.fd, name, ts, unix.AT_SYMLINK_NOFOLLOW) })
}

// replace puts a finished file or link in the place of a name, in one step.
func (d *dir) replace(temp, name string) error {
	err := d.rename(temp, name)
	if err != nil {
		d.unlink(temp)
	}
	return err
}

// modified is the time of modification in ns.
func modified(st *unix.Stat_t) int64 { return st.Mtim.Nano() }

// sameTime compares times as file systems keep them: some to the second.
func sameTime(a, b int64) bool {
	if a == b {
		return true
	}
	const s = int64(time.Second)
	return (a%s == 0 || b%s == 0) && floorDiv(a, s) == floorDiv(b, s)
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// readFull reads at an offset until p is full or the file ends.
func readFull(f *os.File, p []byte, off int64) (int, error) {
	n, err := f.ReadAt(p, off)
	if err == io.EOF {
		err = nil
	}
	return n, err
}
