package hpcexec

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// streams connect a command with the Reader and Writers of its Request.
type streams struct {
	child   [3]uintptr // the command's descriptors 0, 1 and 2
	toClose []int      // those of them that are ours, until the fork
	stdin   *input
	outputs []*output
	tty     *os.File // the master's end of the terminal
}

// open makes what the command is connected to.
func (s *streams) open(req *Request) error {
	if req.TTY != nil {
		return s.openTTY(req)
	}
	if err := s.openStdin(req.Stdin); err != nil {
		return err
	}
	if err := s.openOutput(1, req.Stdout); err != nil {
		return err
	}
	if same(req.Stdout, req.Stderr) {
		// One pipe: one goroutine writes, and the order is the command's.
		s.child[2] = s.child[1]
		return nil
	}
	return s.openOutput(2, req.Stderr)
}

// same says whether two writers are one.
func same(a, b io.Writer) bool {
	defer func() { recover() }() // of types that can't be compared
	return a != nil && a == b
}

func (s *streams) openStdin(r io.Reader) error {
	if r == nil {
		return s.openNull(0)
	}
	if f, ok := r.(*os.File); ok {
		fd, direct, err := descriptor(f, "stdin")
		if err != nil {
			return err
		}
		if direct {
			s.child[0] = fd
			return nil
		}
	}
	theirs, ours, err := s.pipe()
	if err != nil {
		return err
	}
	s.give(0, theirs)
	s.stdin = newInput(r, parentEnd(ours, "stdin"))
	return nil
}

func (s *streams) openOutput(n int, w io.Writer) error {
	if w == nil {
		return s.openNull(n)
	}
	if f, ok := w.(*os.File); ok {
		fd, direct, err := descriptor(f, [...]string{1: "stdout", 2: "stderr"}[n])
		if err != nil {
			return err
		}
		if direct {
			s.child[n] = fd
			return nil
		}
	}
	ours, theirs, err := s.pipe()
	if err != nil {
		return err
	}
	s.give(n, theirs)
	s.outputs = append(s.outputs, newOutput(parentEnd(ours, "output"), w))
	return nil
}

func (s *streams) openNull(n int) error {
	fd, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return noDescriptors(err)
	}
	if err != nil {
		return Errorf(ErrUnavailable, "/dev/null: %w", err)
	}
	s.give(n, fd)
	return nil
}

func (s *streams) pipe() (r, w int, err error) {
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC); err != nil {
		return 0, 0, noDescriptors(err)
	}
	return p[0], p[1], nil
}

// give makes a descriptor of ours the command's descriptor n.
func (s *streams) give(n, fd int) {
	s.child[n] = uintptr(fd)
	s.toClose = append(s.toClose, fd)
}

// parentEnd is our end of a pipe. It is polled, so that a thousand of them
// need no threads, and so that a deadline ends a Read.
func parentEnd(fd int, name string) *os.File {
	syscall.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), name)
}

// descriptor is the descriptor of a file that a command gets as it is. It
// doesn't where its pipe or socket is in non-blocking mode, as those of
// os.Pipe are: the command would meet EAGAIN, and the mode, which all holders
// share, isn't ours to change (File.Fd would).
func descriptor(f *os.File, name string) (fd uintptr, direct bool, err error) {
	rc, err := f.SyscallConn()
	if err == nil {
		err = rc.Control(func(n uintptr) {
			fd, direct = n, true
			flags, _, e := syscall.Syscall(syscall.SYS_FCNTL, n, syscall.F_GETFL, 0)
			if e != 0 || flags&syscall.O_NONBLOCK == 0 {
				return
			}
			var st syscall.Stat_t
			if syscall.Fstat(int(n), &st) == nil {
				kind := st.Mode & syscall.S_IFMT
				direct = kind != syscall.S_IFIFO && kind != syscall.S_IFSOCK
			}
		})
	}
	if err != nil {
		return 0, false, Errorf(ErrInvalid, "%s: %w", name, err)
	}
	return fd, direct, nil
}

// run starts to copy, once the command has its descriptors.
func (s *streams) run() {
	s.closeChildEnds()
	if s.stdin != nil {
		go s.stdin.copy()
	}
	for _, o := range s.outputs {
		go o.copy()
	}
}

func (s *streams) closeChildEnds() {
	for _, fd := range s.toClose {
		syscall.Close(fd)
	}
	s.toClose = nil
}

// abandon gives up streams that no command got.
func (s *streams) abandon() {
	s.closeChildEnds()
	if s.stdin != nil {
		s.stdin.abandon()
	}
	for _, o := range s.outputs {
		o.f.Close()
	}
	if s.tty != nil {
		s.tty.Close()
	}
}

// finish ends the streams of a command that has ended: what it has written is
// delivered, and then nothing is read from or written to the Request's any
// more.
func (s *streams) finish() {
	if s.stdin != nil {
		s.stdin.finish()
	}
	for _, o := range s.outputs {
		o.finish()
	}
	for _, o := range s.outputs {
		<-o.done
	}
	if s.tty != nil {
		s.tty.Close()
	}
}

// An output copies what a command writes.
type output struct {
	f     *os.File
	w     io.Writer
	tty   bool
	ended chan struct{} // closed when the command has ended: what it wrote is in the pipe by now
	done  chan struct{} // closed when all is written
}

func newOutput(f *os.File, w io.Writer) *output {
	return &output{f: f, w: w, ended: make(chan struct{}), done: make(chan struct{})}
}

func (o *output) over() bool {
	select {
	case <-o.ended:
		return true
	default:
		return false
	}
}

// Sizes of the buffer, which grows for those who fill it. A pipe holds 64 KiB.
const minBuffer, maxBuffer = 4 << 10, 64 << 10

func (o *output) copy() {
	defer close(o.done)
	if !o.tty {
		defer o.f.Close()
	}
	buf := make([]byte, minBuffer)
	for !o.over() {
		n, err := o.f.Read(buf)
		if n > 0 && !o.write(buf[:n]) {
			o.f.Close() // SIGPIPE for the command, or a hangup
			return
		}
		switch {
		case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		case o.tty && errors.Is(err, syscall.EIO):
			// Nobody has the terminal open, but a command that closed its
			// streams may open it again.
			select {
			case <-o.ended:
			case <-time.After(10 * time.Millisecond):
			}
		default:
			return
		}
		if n == len(buf) && n < maxBuffer {
			buf = make([]byte, 4*n)
		}
	}
	o.drain(buf)
}

// finish lets copy return though others hold the other end open.
func (o *output) finish() {
	close(o.ended)
	o.f.SetReadDeadline(longAgo)
}

// drain reads what is there and no more: a process in the background that goes
// on writing would keep it busy for ever.
func (o *output) drain(buf []byte) {
	rc, err := o.f.SyscallConn()
	if err != nil {
		return
	}
	rc.Control(func(fd uintptr) {
		left := 4 * maxBuffer // of a terminal: its holders are hung up, they can't write
		if !o.tty {
			left = buffered(fd)
		}
		for left > 0 {
			n, err := syscall.Read(int(fd), buf[:min(left, len(buf))])
			if err == syscall.EINTR {
				continue
			}
			if n <= 0 || !o.write(buf[:n]) {
				return
			}
			left -= n
		}
	})
}

// buffered is how many bytes are in a pipe.
func buffered(fd uintptr) int {
	var n int32
	syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCINQ, uintptr(unsafe.Pointer(&n)))
	return int(n)
}

func (o *output) write(b []byte) bool {
	n, err := o.w.Write(b)
	return err == nil && n == len(b)
}
