package sshmux

import (
	"io"
	"os"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/hpcexec/hpcexec"
)

// A gate stands before a caller's Writer. Once it is shut nobody begins to
// write to it, and one Write at a time goes through.
type gate struct {
	shut atomic.Bool
	mu   sync.Mutex
	w    io.Writer
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut.Load() {
		return 0, io.ErrClosedPipe
	}
	return g.w.Write(p)
}

// close shuts the gate. It doesn't wait for a Write in progress, which may
// never end.
func (g *gate) close() {
	g.shut.Store(true)
	if g.mu.TryLock() { // nobody is between the look at shut and the Write
		g.mu.Unlock()
	}
}

// gated is a caller's streams, the writers each behind a gate.
func gated(in io.Reader, out, err io.Writer) stdio {
	s := stdio{in: in}
	if out != nil {
		s.out = &gate{w: out}
	}
	if err != nil {
		s.err = &gate{w: err}
	}
	return s
}

// oneStream says whether a command's stdout and stderr go to the same place, so
// that they must come as one stream to keep their order.
func oneStream(req *hpcexec.Request) bool {
	if req.TTY != nil || req.Stdout == nil || req.Stderr == nil {
		return false
	}
	return same(req.Stdout, req.Stderr) || sameFile(req.Stdout, req.Stderr)
}

// sameFile says whether two writers are one file, as after `>log 2>&1`.
func sameFile(a, b io.Writer) bool {
	fa, ok1 := a.(*os.File)
	fb, ok2 := b.(*os.File)
	if !ok1 || !ok2 {
		return false
	}
	ia, err1 := fa.Stat()
	ib, err2 := fb.Stat()
	return err1 == nil && err2 == nil && os.SameFile(ia, ib)
}

func same(a, b io.Writer) bool {
	t := reflect.TypeOf(a)
	return t == reflect.TypeOf(b) && t.Comparable() && reflect.ValueOf(a).Comparable() && a == b
}

// shut makes sure that nobody begins to write to the streams any more, or to
// read from descriptors.
func (s stdio) shut() {
	for _, v := range []any{s.in, s.out, s.err} {
		switch v := v.(type) {
		case *gate:
			v.close()
		case *fdStream:
			v.stop()
		}
	}
}

const (
	minBuffer = 8 << 10
	maxBuffer = 256 << 10
)

// copyOut copies what a command writes, with a buffer that grows for those who
// fill it, so that a thousand quiet commands need little. After an error of w
// it goes on reading, as a channel that isn't read from blocks its command's
// other streams; failed is called once then, and unread once when more comes
// all the same. Both may be nil.
func copyOut(w io.Writer, r io.Reader, failed, unread func()) {
	buf := make([]byte, minBuffer)
	broken := false
	for {
		n, err := r.Read(buf)
		switch {
		case n == 0 || w == nil:
		case broken:
			if unread != nil {
				unread()
			}
			w = nil
		default:
			if _, werr := w.Write(buf[:n]); werr != nil {
				broken = true
				if failed != nil {
					failed()
				}
			}
		}
		if err != nil {
			return
		}
		if n == len(buf) && n < maxBuffer {
			buf = make([]byte, min(4*n, maxBuffer))
		}
	}
}

// copyIn copies what a command reads and then calls end, unless w is broken.
// The error of r counts as its end.
func copyIn(w io.Writer, r io.Reader, end func()) {
	buf := make([]byte, minBuffer)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			end()
			return
		}
		if n == len(buf) && n < maxBuffer {
			buf = make([]byte, min(4*n, maxBuffer))
		}
	}
}
