package wire

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hpcexec/hpcexec"
)

// A writer appends numbers, big endian, and texts with their length.
type writer struct{ b []byte }

func (w *writer) uint32(v uint32) { w.b = binary.BigEndian.AppendUint32(w.b, v) }
func (w *writer) uint64(v uint64) { w.b = binary.BigEndian.AppendUint64(w.b, v) }

func (w *writer) string(s string) {
	w.uint32(uint32(len(s)))
	w.b = append(w.b, s...)
}

func (w *writer) list(l []string) {
	w.uint32(uint32(len(l)))
	for _, s := range l {
		w.string(s)
	}
}

// time writes nanoseconds since 1970; 0 is the zero time.
func (w *writer) time(t time.Time) {
	if t.IsZero() {
		w.uint64(0)
		return
	}
	w.uint64(uint64(t.UnixNano()))
}

// A reader takes apart what a writer made. After an error it gives zero
// values; end has the error.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(text string) {
	if r.err == nil {
		r.err = fmt.Errorf("%s", text)
		r.b = nil
	}
}

func (r *reader) take(n uint32) []byte {
	if uint64(n) > uint64(len(r.b)) {
		r.fail("it is cut off")
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) string() string { return string(r.take(r.uint32())) }

func (r *reader) list() []string {
	n := r.uint32()
	if uint64(n) > uint64(len(r.b)/4) { // each text has a length
		r.fail("a list is longer than the message")
		return nil
	}
	if n == 0 {
		return nil
	}
	l := make([]string, n)
	for i := range l {
		l[i] = r.string()
	}
	return l
}

func (r *reader) time() time.Time {
	if ns := int64(r.uint64()); ns != 0 {
		return time.Unix(0, ns)
	}
	return time.Time{}
}

// end is the error of the whole message, which has to be used up.
func (r *reader) end(what string) error {
	if r.err == nil && len(r.b) > 0 {
		r.fail(fmt.Sprintf("%d bytes are left over", len(r.b)))
	}
	if r.err != nil {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "%s message: %w", what, r.err)
	}
	return nil
}
