package sshmux

import (
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
)

// clientStreams are the descriptors that go with a request: those of files as
// they are, and ends of pipes for other streams.
type clientStreams struct {
	toClose []int // ends that the master gets
	in      *os.File
	out     []*os.File
	pumps   sync.WaitGroup
	outs    []*gate
}

// open makes the descriptors, in the order of the flags that it returns. Merged
// says that stderr comes with stdout.
func (s *clientStreams) open(req *hpcexec.Request, merged bool) (fds []int, flags uint32, err error) {
	if req.Stdin != nil {
		fd, err := s.input(req.Stdin)
		if err != nil {
			return nil, 0, err
		}
		fds, flags = append(fds, fd), flags|execStdin
	}
	if req.Stdout != nil {
		fd, err := s.output(req.Stdout)
		if err != nil {
			return nil, 0, err
		}
		fds, flags = append(fds, fd), flags|execStdout
	}
	if req.Stderr != nil && req.TTY == nil && !merged {
		fd, err := s.output(req.Stderr)
		if err != nil {
			return nil, 0, err
		}
		fds, flags = append(fds, fd), flags|execStderr
	}
	return fds, flags, nil
}

// fileFD is the descriptor of a file, without changing its mode, as File.Fd
// would.
func fileFD(f *os.File) (fd int, err error) {
	rc, err := f.SyscallConn()
	if err == nil {
		err = rc.Control(func(n uintptr) { fd = int(n) })
	}
	if err != nil {
		return -1, hpcexec.Errorf(hpcexec.ErrInvalid, "stream: %w", err)
	}
	return fd, nil
}

func (s *clientStreams) input(r io.Reader) (int, error) {
	if f, ok := r.(*os.File); ok {
		return fileFD(f)
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return -1, noPipe(err)
	}
	s.in = ours
	// No pump to wait for: a Read in progress may never end.
	go func() {
		copyIn(ours, r, func() {})
		ours.Close()
	}()
	return s.give(theirs)
}

func (s *clientStreams) output(w io.Writer) (int, error) {
	if f, ok := w.(*os.File); ok {
		return fileFD(f)
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return -1, noPipe(err)
	}
	s.out = append(s.out, ours)
	g := &gate{w: w}
	s.outs = append(s.outs, g)
	s.pumps.Go(func() {
		defer ours.Close()
		copyOut(g, ours, func() { ours.Close() }, nil)
	})
	return s.give(theirs)
}

func noPipe(err error) error {
	return hpcexec.Errorf(hpcexec.ErrUnavailable, "pipe: %w", err).
		WithHint("raise the limit of open files (ulimit -n), or run fewer commands at once")
}

// give takes an end of a pipe for the master.
func (s *clientStreams) give(f *os.File) (int, error) {
	defer f.Close()
	fd, err := fileFD(f)
	if err == nil {
		fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		return -1, noPipe(err)
	}
	s.toClose = append(s.toClose, fd)
	return fd, nil
}

// sent closes what the master has now.
func (s *clientStreams) sent() {
	closeFDs(s.toClose)
	s.toClose = nil
}

// finish waits until the output is delivered. The master has closed its ends,
// or is gone; hurry says that it may be neither, or that a Writer may not take
// what it is given.
func (s *clientStreams) finish(hurry bool) {
	if s.in != nil {
		s.in.Close()
	}
	done := make(chan struct{})
	go func() {
		s.pumps.Wait()
		close(done)
	}()
	if !hurry {
		<-done
	} else if !closedWithin(done, time.Second) {
		for _, f := range s.out {
			f.SetReadDeadline(time.Unix(1, 0))
		}
		closedWithin(done, time.Second)
	}
	for _, g := range s.outs {
		g.close()
	}
}
