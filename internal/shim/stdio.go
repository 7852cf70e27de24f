package shim

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// stdio is the connection of --stdio. Its files block, for their mode belongs
// to all who hold them, so a Read waits in poll(2) where Close can end it.
type stdio struct {
	in, out      *os.File
	wakeR, wakeW *os.File // a pipe whose end wakes Read
}

// openStdio moves stdin and stdout elsewhere, so that nothing but the protocol
// gets there.
func openStdio() (*stdio, error) {
	s := &stdio{}
	for fd, f := range map[int]**os.File{0: &s.in, 1: &s.out} {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, fmt.Errorf("descriptor %d: %w", fd, err)
		}
		*f = os.NewFile(uintptr(n), []string{"stdin", "stdout"}[fd])
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	if err := unix.Dup3(int(null.Fd()), 0, 0); err != nil {
		return nil, err
	}
	if err := unix.Dup3(int(null.Fd()), 1, 0); err != nil {
		return nil, err
	}
	s.wakeR, s.wakeW, err = os.Pipe()
	return s, err
}

func (s *stdio) Read(p []byte) (n int, err error) {
	in, err := s.in.SyscallConn()
	if err != nil {
		return 0, err
	}
	wake, err := s.wakeR.SyscallConn()
	if err != nil {
		return 0, err
	}
	var errs [2]error
	err = wake.Control(func(wakeFD uintptr) { // keeps the numbers from being used again
		errs[0] = in.Control(func(fd uintptr) {
			n, errs[1] = readOrWake(int(fd), int(wakeFD), p)
		})
	})
	return n, cmp.Or(err, errs[0], errs[1])
}

func readOrWake(fd, wakeFD int, p []byte) (int, error) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(wakeFD), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			return 0, os.NewSyscallError("poll", err)
		}
		if fds[1].Revents != 0 {
			return 0, os.ErrClosed
		}
		n, err := unix.Read(fd, p)
		switch {
		case err == unix.EINTR || err == unix.EAGAIN:
			continue
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

func (s *stdio) Write(p []byte) (int, error) { return s.out.Write(p) }

// Close ends a Read that waits. A Write that is in progress goes on.
func (s *stdio) Close() error {
	s.wakeW.Close()
	err := errors.Join(s.in.Close(), s.out.Close())
	s.wakeR.Close()
	return err
}
