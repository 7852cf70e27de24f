package sshmux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
)

const (
	// sunPath is the space for a path in a socket's address, the final NUL
	// included (unix(7)).
	sunPath = 108

	// sshSuffix is what OpenSSH appends to a ControlPath while it makes the
	// socket: a dot and 16 random characters. Ours is no longer.
	sshSuffix = 17
)

// A socket is a listening unix socket that at most one process has.
//
// Three things keep it so. An open-file-description lock on PATH.lock is held
// as long as the process lives, so a socket file without a listener is known
// to be stale. It is bound under another name and renamed into place, so nobody
// meets one that isn't listening yet. And it is removed only by who made it,
// known by its inode.
type socket struct {
	*net.UnixListener
	path string
	lock *os.File
	dev  uint64
	ino  uint64
}

// errLocked is the error of a socket that another process serves.
var errLocked = errors.New("another process serves this socket")

// checkSocketPath says whether path can be the address of a socket, with room
// for the suffix that OpenSSH and listenSocket append.
func checkSocketPath(path string) error {
	if !filepath.IsAbs(path) {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "socket %s: the path is not absolute", path)
	}
	if n, limit := len(path), sunPath-1-sshSuffix; n > limit {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "socket %s: the path has %d characters, %d are possible", path, n, limit).
			WithHint("set HPCEXEC_HOME or TMPDIR to a shorter path on a local file system")
	}
	return nil
}

// checkSocketDir says whether the directory of a socket belongs to this user
// alone.
func checkSocketDir(path string) error {
	dir := filepath.Dir(path)
	st, err := os.Lstat(dir)
	if err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "directory of the socket: %w", err)
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !st.IsDir():
		return hpcexec.Errorf(hpcexec.ErrDenied, "%s is not a directory", dir)
	case int(sys.Uid) != os.Geteuid():
		return hpcexec.Errorf(hpcexec.ErrDenied, "%s belongs to user %d, not %d", dir, sys.Uid, os.Geteuid())
	case st.Mode().Perm()&0o077 != 0:
		return hpcexec.Errorf(hpcexec.ErrDenied, "%s has mode %#o: others can enter it", dir, st.Mode().Perm()).
			WithHint("chmod 700 %s", dir)
	}
	return nil
}

// listenSocket makes a socket, in place of one that is stale. The error
// matches errLocked where a living process has it.
func listenSocket(path string) (*socket, error) {
	if err := checkSocketPath(path); err != nil {
		return nil, err
	}
	if err := checkSocketDir(path); err != nil {
		return nil, err
	}
	lock, err := tryLock(path + ".lock")
	if err != nil {
		return nil, err
	}
	s := &socket{path: path, lock: lock}
	if err := s.bind(); err != nil {
		lock.Close()
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "socket %s: %w", path, err)
	}
	return s, nil
}

func (s *socket) bind() error {
	// Some other program may have put a socket there, without our lock.
	if c, err := net.DialTimeout("unix", s.path, time.Second); err == nil {
		c.Close()
		return errLocked
	}
	tmp := s.path + "." + strings.ToLower(hpcexec.NewID()[:8])
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return err
	}
	ln.SetUnlinkOnClose(false)
	fail := func(err error) error {
		ln.Close()
		os.Remove(tmp)
		return err
	}
	// The directory is closed to others, so nobody comes in before this.
	if err := os.Chmod(tmp, 0o600); err != nil {
		return fail(err)
	}
	if s.dev, s.ino, err = inode(tmp); err != nil {
		return fail(err)
	}
	if err := os.Rename(tmp, s.path); err != nil {
		return fail(err)
	}
	s.UnixListener = ln
	return nil
}

// hidden is where the socket file is while it is hidden.
func (s *socket) hidden() string { return s.path + ".hidden" }

// hide takes the socket file away, if it is still ours, so that nobody
// connects any more.
func (s *socket) hide() {
	if s.owns(s.path) {
		os.Rename(s.path, s.hidden())
	}
}

// show undoes hide.
func (s *socket) show() {
	if s.owns(s.hidden()) {
		os.Rename(s.hidden(), s.path)
	}
}

// waiting accepts all who have connected, without waiting for more.
func (s *socket) waiting() (all []*net.UnixConn) {
	rc, err := s.UnixListener.SyscallConn()
	if err != nil {
		return nil
	}
	rc.Control(func(fd uintptr) {
		for {
			nfd, _, err := unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			if err == unix.EINTR || err == unix.ECONNABORTED {
				continue
			}
			if err != nil {
				return
			}
			f := os.NewFile(uintptr(nfd), "client")
			c, err := net.FileConn(f) // a duplicate
			f.Close()
			if uc, ok := c.(*net.UnixConn); ok && err == nil {
				all = append(all, uc)
			}
		}
	})
	return all
}

// release removes and closes the socket, and lets another process have it.
func (s *socket) release() {
	for _, path := range []string{s.path, s.hidden()} {
		if s.owns(path) {
			os.Remove(path)
		}
	}
	s.UnixListener.Close()
	s.lock.Close()
}

// owns says whether the file at path is the socket that this process made.
func (s *socket) owns(path string) bool {
	dev, ino, err := inode(path)
	return err == nil && dev == s.dev && ino == s.ino
}

func inode(path string) (dev, ino uint64, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, 0, err
	}
	return st.Dev, st.Ino, nil
}

// tryLock takes an exclusive lock of the open file description (fcntl(2)),
// which ends with the process, however that ends. The error matches errLocked
// where another one has it.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "lock: %w", err)
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if err == nil {
		return f, nil
	}
	f.Close()
	if err == unix.EAGAIN || err == unix.EACCES {
		return nil, fmt.Errorf("%s: %w", path, errLocked)
	}
	return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "lock %s: %w", path, err)
}

// waitLock takes the lock of a path as soon as it is free.
func waitLock(ctx context.Context, path string) (*os.File, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		f, err := tryLock(path)
		if !errors.Is(err, errLocked) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s is held by another process: %w", path, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}
