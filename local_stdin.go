package hpcexec

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// An input copies a Request's Stdin to a command.
type input struct {
	r    io.Reader
	w    *os.File
	eof  func(last byte) // tells the command that it was all
	stop func()          // ends a Write that is in progress, and those to come
	done chan struct{}

	wakeR, wakeW int // a pipe that ends the wait for a file; -1 without

	mu    sync.Mutex
	ended bool // the command has: don't begin another Read
}

func newInput(r io.Reader, w *os.File) *input {
	in := &input{r: r, w: w, done: make(chan struct{}), wakeR: -1, wakeW: -1}
	in.eof = func(byte) { w.Close() }
	in.stop = func() { w.Close() }
	if _, ok := r.(*os.File); ok {
		var p [2]int
		if syscall.Pipe2(p[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK) == nil {
			in.wakeR, in.wakeW = p[0], p[1]
		}
	}
	return in
}

func (in *input) copy() {
	defer close(in.done)
	buf := make([]byte, 32<<10)
	last := byte('\n')
	for {
		n, err := in.read(buf)
		if n > 0 {
			last = buf[n-1]
			if _, err := in.w.Write(buf[:n]); err != nil {
				return // the command has closed its end, or has ended
			}
		}
		if errors.Is(err, errEnded) {
			return
		}
		if err != nil {
			in.eof(last)
			return
		}
	}
}

var errEnded = errors.New("the command has ended")

// read reads once, unless the command has ended.
func (in *input) read(buf []byte) (int, error) {
	if f, ok := in.r.(*os.File); ok && in.wakeR >= 0 {
		if err := in.await(f); err != nil {
			return 0, err
		}
	}
	in.mu.Lock()
	ended := in.ended
	in.mu.Unlock()
	if ended {
		return 0, errEnded
	}
	return in.r.Read(buf)
}

// await waits until a file has something to read or the command has ended. A
// Read that waited itself would take, after the end, what was typed for
// whoever reads the terminal next.
func (in *input) await(f *os.File) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return rc.Control(func(fd uintptr) {
		type pollfd struct {
			fd              int32
			events, revents int16
		}
		const pollIn = 1
		fds := [2]pollfd{{int32(fd), pollIn, 0}, {int32(in.wakeR), pollIn, 0}}
		for {
			_, _, e := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&fds)), 2, 0, 0, 0, 0)
			if e != syscall.EINTR {
				return
			}
		}
	})
}

// finish sees to it that no Read begins from now on. It waits for copy, but
// not for a Read that may take for ever.
func (in *input) finish() {
	in.mu.Lock()
	in.ended = true
	in.mu.Unlock()
	in.stop()
	if in.wakeW >= 0 {
		syscall.Close(in.wakeW)
	}
	switch in.r.(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader:
		<-in.done // so that the caller may use it again
	case *os.File:
		if in.wakeR >= 0 {
			<-in.done
			syscall.Close(in.wakeR)
		}
	}
}

// abandon is for an input whose copy never started.
func (in *input) abandon() {
	close(in.done)
	in.finish()
}
