package files

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"
)

// Hello is the first thing that an agent says, so that whoever started it knows
// an agent from another program's output.
const hello = "hpcexec-files 1\n"

// Main is the command `hpcexec files`, without arguments: the far end of a
// copy, on stdin and stdout.
func Main([]string) int {
	debug.SetGCPercent(400) // frames are short-lived memory
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	signal.Ignore(syscall.SIGPIPE)
	widenPipe(os.Stdin)
	widenPipe(os.Stdout)
	if err := Serve(ctx, &pair{os.Stdin, os.Stdout}); err != nil {
		fmt.Fprintf(os.Stderr, "hpcexec files: %v\n", err)
		return 125
	}
	return 0
}

// pipeSize is the most that a user may have: fewer wake-ups for each megabyte.
const pipeSize = 1 << 20

// widenPipe gives a pipe a larger buffer, where that is allowed.
func widenPipe(f *os.File) {
	rc, err := f.SyscallConn() // Fd would make it blocking
	if err == nil {
		rc.Control(func(fd uintptr) { unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
	}
}

// A pair is one stream of two.
type pair struct {
	r io.ReadCloser
	w io.WriteCloser
}

func (p *pair) Read(b []byte) (int, error)  { return p.r.Read(b) }
func (p *pair) Write(b []byte) (int, error) { return p.w.Write(b) }

func (p *pair) Close() error {
	err := p.w.Close()
	if e := p.r.Close(); err == nil {
		err = e
	}
	return err
}

// Serve is the far end of one copy, on a stream that it closes. What the near
// end was told isn't an error.
func Serve(ctx context.Context, rw io.ReadWriteCloser) error {
	c := newConn(rw)
	defer c.close()
	stop := context.AfterFunc(ctx, func() { c.close() })
	defer stop()
	if err := c.send(frameHello, []byte(hello)); err != nil {
		return err
	}
	f, err := c.recv(nil)
	if err != nil {
		return err
	}
	j, err := parseJob(f.body)
	if err == nil && f.typ != frameJob {
		err = errProtocol
	}
	if err != nil {
		p := problemOf(classFatal, "", err)
		c.send(frameFail, p.append(nil))
		c.flush()
		return err
	}
	if j.send {
		_, err = send(ctx, c, j.path, &farPeer{c})
	} else {
		_, err = receive(ctx, c, j, &farPeer{c})
	}
	return err
}

// A farPeer tells the near end what goes on, where it can't know.
type farPeer struct{ c *conn }

func (p *farPeer) problem(pr problem) { p.c.send(frameProblem, pr.append(nil)) }

func (p *farPeer) act(a action) {
	p.c.send(frameAction, appendString([]byte{a.op}, a.path))
}

func (p *farPeer) partial(path string) { p.c.send(framePartial, []byte(path)) }

func (p *farPeer) sent(string, int64)     {}
func (p *farPeer) received(string, int64) {}
func (p *farPeer) wanted(int64)           {}
func (p *farPeer) fileDone()              {}
