package hpcexec

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// openTTY makes a terminal (pty(7)) and connects its master with the Request.
func (s *streams) openTTY(req *Request) error {
	master, slave, err := openPTY()
	if err != nil {
		return Errorf(ErrUnavailable, "terminal: %w", err).
			WithHint("is /dev/pts mounted here? see also /proc/sys/kernel/pty/nr and max")
	}
	s.tty = master
	s.give(0, slave)
	s.child[1], s.child[2] = s.child[0], s.child[0]
	if req.TTY.Cols != 0 || req.TTY.Rows != 0 {
		if err := setSize(master, req.TTY.Cols, req.TTY.Rows); err != nil {
			return Errorf(ErrUnavailable, "terminal size: %w", err)
		}
	}
	r := req.Stdin
	if r == nil {
		r = strings.NewReader("")
	}
	s.stdin = newInput(r, master)
	s.stdin.eof = func(last byte) { writeEOF(master, last) }
	s.stdin.stop = func() { master.SetWriteDeadline(longAgo) } // there is more to read
	w := req.Stdout
	if w == nil {
		w = io.Discard // somebody must read, or the command would block
	}
	o := newOutput(master, w)
	o.tty = true
	s.outputs = append(s.outputs, o)
	return nil
}

func openPTY() (master *os.File, slave int, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if master, err = os.OpenFile("/dev/pts/ptmx", os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0); err != nil {
			return nil, 0, err
		}
	}
	defer func() {
		if err != nil {
			master.Close()
		}
	}()
	var unlock, number int32
	if err = ioctl(master, syscall.TIOCSPTLCK, unsafe.Pointer(&unlock)); err != nil {
		return nil, 0, fmt.Errorf("unlock: %w", err)
	}
	// The slave of this very master, though /dev/pts may be another mount's.
	const tiocgptpeer, flags = 0x5441, syscall.O_RDWR | syscall.O_NOCTTY | syscall.O_CLOEXEC
	rc, err := master.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	var e syscall.Errno
	rc.Control(func(fd uintptr) {
		var n uintptr
		n, _, e = syscall.Syscall(syscall.SYS_IOCTL, fd, tiocgptpeer, flags)
		slave = int(n)
	})
	if e == 0 {
		return master, slave, nil
	}
	if err = ioctl(master, syscall.TIOCGPTN, unsafe.Pointer(&number)); err != nil {
		return nil, 0, fmt.Errorf("number: %w", err)
	}
	slave, err = syscall.Open("/dev/pts/"+strconv.Itoa(int(number)), flags, 0)
	return master, slave, err
}

// setSize sets the size of a terminal; the command gets SIGWINCH.
func setSize(master *os.File, cols, rows int) error {
	size := struct{ rows, cols, x, y uint16 }{uint16(rows), uint16(cols), 0, 0}
	return ioctl(master, syscall.TIOCSWINSZ, unsafe.Pointer(&size))
}

// writeEOF types the character that stands for the end of input, which is all
// that a terminal has for it. In the middle of a line it ends the line, and it
// takes a second one.
func writeEOF(master *os.File, last byte) {
	var t syscall.Termios
	if ioctl(master, syscall.TCGETS, unsafe.Pointer(&t)) != nil {
		return
	}
	c := t.Cc[syscall.VEOF]
	if c == 0 {
		return // disabled
	}
	keys := []byte{c, c}
	if last == '\n' || t.Lflag&syscall.ICANON == 0 {
		keys = keys[:1]
	}
	master.Write(keys)
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var e syscall.Errno
	if err := rc.Control(func(fd uintptr) {
		_, _, e = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(arg))
	}); err != nil {
		return err
	}
	if e != 0 {
		return e
	}
	return nil
}
