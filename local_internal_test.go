package hpcexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Where the kernel has no pidfds the exit is seen all the same.
func TestLocalWithoutPidfd(t *testing.T) {
	var out bytes.Buffer
	req := Request{Args: []string{"sh", "-c", "echo out; exit 3"}, Stdout: &out}
	p, err := new(Local).start(context.Background(), &req)
	if err != nil {
		t.Fatal(err)
	}
	if p.pidfd != nil {
		p.pidfd.Close()
		p.pidfd = nil
	}
	resp, err := p.supervise(context.Background())
	if err != nil || resp.ExitCode != 3 || out.String() != "out\n" {
		t.Errorf("got exit code %d, stdout %q, error %v, want 3, out, nil", resp.ExitCode, out.String(), err)
	}

	req = Request{Args: []string{"sleep", "600"}, Timeout: 10 * time.Millisecond}
	if p, err = new(Local).start(context.Background(), &req); err != nil {
		t.Fatal(err)
	}
	if p.pidfd != nil {
		p.pidfd.Close()
		p.pidfd = nil
	}
	if resp, err := p.supervise(context.Background()); err != nil || !resp.TimedOut || resp.Signal != "TERM" {
		t.Errorf("got timed out %v, signal %q, error %v, want true, TERM, nil", resp.TimedOut, resp.Signal, err)
	}
}

func TestForkError(t *testing.T) {
	req := &Request{Args: []string{"prog"}}
	tests := []struct {
		err  error
		kind error
	}{
		{syscall.EAGAIN, ErrUnavailable},
		{syscall.ENOMEM, ErrUnavailable},
		{syscall.EMFILE, ErrUnavailable},
		{syscall.ENFILE, ErrUnavailable},
		{syscall.E2BIG, ErrInvalid},
		{syscall.ENOENT, nil},
		{syscall.EACCES, nil},
		{syscall.ENOEXEC, nil},
	}
	for _, tt := range tests {
		t.Run(tt.err.Error(), func(t *testing.T) {
			err := forkError(tt.err, req, []string{"A=1"})
			switch {
			case tt.kind == nil && err != nil:
				t.Errorf("got error %v, want none: it is the program's", err)
			case tt.kind != nil && (!errors.Is(err, tt.kind) || !errors.Is(err, tt.err) || Hint(err) == ""):
				t.Errorf("got error %v, hint %q, want %v with the cause and a hint", err, Hint(err), tt.kind)
			}
		})
	}
}

func TestNotExecutable(t *testing.T) {
	tests := []struct {
		err  error
		code int
	}{
		{syscall.ENOENT, 127}, {syscall.ENOTDIR, 127}, {syscall.ELOOP, 127}, {syscall.ENAMETOOLONG, 127},
		{syscall.EACCES, 126}, {syscall.EPERM, 126}, {syscall.ENOEXEC, 126}, {syscall.ETXTBSY, 126}, {syscall.EIO, 126},
	}
	for _, tt := range tests {
		code, line := notExecutable("prog", tt.err)
		if code != tt.code || !strings.HasPrefix(line, "hpcexec: prog: ") || strings.Count(line, "\n") != 1 {
			t.Errorf("%v: got %d, %q, want %d and one line", tt.err, code, line, tt.code)
		}
	}
}

func TestJoinCause(t *testing.T) {
	cause, left := errors.New("why"), Errorf(ErrUnknownEnd, "2 processes")
	tests := []struct {
		left, cause error
		is          []error
	}{
		{nil, nil, nil},
		{nil, cause, []error{cause}},
		{left, nil, []error{ErrUnknownEnd}},
		{left, cause, []error{ErrUnknownEnd, cause}},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.is), func(t *testing.T) {
			err := joinCause(tt.left, tt.cause)
			if len(tt.is) == 0 && err != nil {
				t.Errorf("got error %v, want nil", err)
			}
			for _, want := range tt.is {
				if !errors.Is(err, want) {
					t.Errorf("got error %v, want it to match %v", err, want)
				}
			}
		})
	}
}

// refiller writes as much to a pipe as it gets from it, as a process in the
// background would that is faster than the reader.
type refiller struct {
	pipe int // write end
	got  int
}

func (r *refiller) Write(b []byte) (int, error) {
	r.got += len(b)
	if r.got > 10*maxBuffer {
		return 0, errors.New("it never ends")
	}
	syscall.Write(r.pipe, b)
	return len(b), nil
}

func TestDrainIsBounded(t *testing.T) {
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(p[1])
	w := &refiller{pipe: p[1]}
	full, err := syscall.Write(p[1], make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	o := newOutput(parentEnd(p[0], "pipe"), w)
	o.finish()
	o.copy()
	<-o.done
	if w.got != full {
		t.Errorf("got %d bytes, want the %d that were in the pipe at the end", w.got, full)
	}
}
