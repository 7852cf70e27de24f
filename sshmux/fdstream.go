package sshmux

import (
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pipeRoom is what a pipe or terminal surely takes without blocking once poll
// has said that it takes something (PIPE_BUF, pipe(7)).
const pipeRoom = 4096

// An fdStream reads from or writes to a descriptor that a client passed.
//
// It never sets O_NONBLOCK, and never reads before poll has said that there is
// something: a read that is stuck in a terminal when the command ends would
// swallow the next key that its user presses.
type fdStream struct {
	fd     int
	poller *poller
	nowait bool // preadv2 and pwritev2 with RWF_NOWAIT may work
	socket bool
	file   bool // regular file: never blocks for long

	stopped chan struct{}
	once    sync.Once

	mu sync.Mutex // held while fd is being used, and to close it
}

var _ io.ReadWriteCloser = (*fdStream)(nil)

// newFDStream makes an fdStream, which owns fd. The caller must call Close.
func newFDStream(fd int, p *poller) *fdStream {
	s := &fdStream{fd: fd, poller: p, nowait: true, stopped: make(chan struct{})}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil {
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			s.file, s.nowait = true, false
		case unix.S_IFSOCK:
			s.socket = true
		}
	}
	return s
}

// stop makes Read and Write return errStopped. One that is moving bytes
// finishes that first.
func (s *fdStream) stop() {
	s.once.Do(func() { close(s.stopped) })
}

// Close stops the stream, waits until nobody uses the descriptor any more, and
// closes it. Where the kernel can't do otherwise than block (see readNow), it
// is closed later.
func (s *fdStream) Close() error {
	s.stop()
	for range 100 {
		if s.mu.TryLock() {
			return s.closeLocked()
		}
		time.Sleep(time.Millisecond)
	}
	go func() {
		s.mu.Lock()
		s.closeLocked()
	}()
	return nil
}

// closeLocked closes the descriptor and unlocks mu.
func (s *fdStream) closeLocked() error {
	defer s.mu.Unlock()
	if s.fd < 0 {
		return nil
	}
	fd := s.fd
	s.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}

// closeWrite ends what is written: a socket is shut down for writing, anything
// else is closed.
func (s *fdStream) closeWrite() error {
	if !s.socket {
		return s.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return nil
	}
	return os.NewSyscallError("shutdown", unix.Shutdown(s.fd, unix.SHUT_WR))
}

func (s *fdStream) isStopped() bool {
	select {
	case <-s.stopped:
		return true
	default:
		return false
	}
}

// Read reads what there is, waiting until there is something.
func (s *fdStream) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.isStopped() {
			return 0, errStopped
		}
		if !s.file {
			if err := s.poller.wait(s.fd, unix.POLLIN, s.stopped); err != nil {
				return 0, err
			}
			if s.isStopped() {
				return 0, errStopped
			}
		}
		n, err := s.readNow(p)
		switch {
		case err == unix.EINTR || err == unix.EAGAIN:
			continue
		case err == unix.EIO:
			return 0, io.EOF // a terminal whose other side is gone
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// readNow reads without waiting where the kernel can do that. Where it can't,
// poll has just said that there is something, and read waits only if another
// process was faster to take it.
func (s *fdStream) readNow(p []byte) (int, error) {
	if s.socket {
		n, _, err := unix.Recvfrom(s.fd, p, unix.MSG_DONTWAIT)
		return n, err
	}
	if s.nowait {
		n, err := unix.Preadv2(s.fd, [][]byte{p}, -1, unix.RWF_NOWAIT)
		if err != unix.EOPNOTSUPP && err != unix.ENOSYS && err != unix.EINVAL {
			return n, err
		}
		s.nowait = false
	}
	return unix.Read(s.fd, p)
}

// Write writes all of p.
func (s *fdStream) Write(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n < len(p) {
		if s.isStopped() {
			return n, errStopped
		}
		m, err := s.writeNow(p[n:])
		if m > 0 {
			n += m
		}
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			if err := s.poller.wait(s.fd, unix.POLLOUT, s.stopped); err != nil {
				return n, err
			}
		case err != nil:
			return n, os.NewSyscallError("write", err)
		}
	}
	return n, nil
}

// writeNow writes without waiting, or says unix.EAGAIN.
func (s *fdStream) writeNow(p []byte) (int, error) {
	if s.file {
		return unix.Write(s.fd, p)
	}
	if s.socket {
		return unix.SendmsgN(s.fd, p, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
	if s.nowait {
		n, err := unix.Pwritev2(s.fd, [][]byte{p}, -1, unix.RWF_NOWAIT)
		if err != unix.EOPNOTSUPP && err != unix.ENOSYS && err != unix.EINVAL {
			return n, err
		}
		s.nowait = false
	}
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(fds, 0); err == nil && n == 0 {
		return 0, unix.EAGAIN
	}
	return unix.Write(s.fd, p[:min(len(p), pipeRoom)])
}
