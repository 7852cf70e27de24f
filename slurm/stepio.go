package slurm

import (
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// A laterReader is a Stdin that begins when the command has begun. At its end
// the terminal on the way types the end-of-file key once, for it is raw; the
// one on the node wants it twice in the middle of a line.
type laterReader struct {
	s    *step
	r    io.Reader // nil: nothing more
	last byte      // of what was read
	key  bool      // the key was added
}

func (l *laterReader) Read(p []byte) (int, error) {
	select {
	case <-l.s.started:
	case <-l.s.over:
	}
	if l.r == nil {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := l.r.Read(p)
	if n > 0 {
		l.last = p[n-1]
	}
	if err == nil {
		return n, nil
	}
	if l.last == 0 || l.last == '\n' || l.key {
		l.r = nil
		return n, nil
	}
	l.key, l.r = true, strings.NewReader("\x04") // Ctrl-D, with the next Read
	return n, nil
}

// sameWriter says whether both outputs go to one writer, which then gets them
// in their order.
func sameWriter(a, b io.Writer) bool {
	return a != nil && b != nil && comparable(a, b) && a == b
}

func comparable(a, b io.Writer) bool {
	return reflect.TypeOf(a).Comparable() && reflect.TypeOf(b).Comparable()
}

// seconds is a time-out as sleep takes it: whole seconds where they are, else
// with a fraction, which sleeps that don't know one make a second longer.
func seconds(d time.Duration) string {
	if d <= 0 {
		return "0"
	}
	if d >= time.Minute || d%time.Second == 0 {
		return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
	}
	return strconv.FormatFloat(max(d.Seconds(), 0.001), 'f', 3, 64)
}
