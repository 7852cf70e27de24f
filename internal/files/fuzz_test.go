package files

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A recorder keeps what passes.
type recorder struct {
	io.ReadWriteCloser
	mu      sync.Mutex
	in, out []byte
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.ReadWriteCloser.Read(p)
	r.mu.Lock()
	r.in = append(r.in, p[:n]...)
	r.mu.Unlock()
	return n, err
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.out = append(r.out, p...)
	r.mu.Unlock()
	return r.ReadWriteCloser.Write(p)
}

// exchange is what both ends of real copies said, in each direction.
func exchange(t testing.TB) (frames []frame) {
	src, dst := t.TempDir(), t.TempDir()
	write(t, src, map[string]string{"a/x": "hello", "a/l": "->x", "e/": "", "big": strings.Repeat("data", chunk)})
	mkfifo(t, src+"/pipe")
	write(t, dst, map[string]string{"new/big/": "", "new/gone": "", "sum/big": strings.Repeat("data", chunk)})
	for _, opts := range []Options{{Verify: true}, {Sync: true, Delete: true, DryRun: true}, {Sync: true, Checksum: true, Delete: true}} {
		for _, to := range []string{"/new", "/sum", "/none/none"} {
			for _, d := range directions()[:2] {
				r := &recorder{}
				from, far := d.ends(t, src, dst+to)
				open := serving(t, func(rw io.ReadWriteCloser) io.ReadWriteCloser { r.ReadWriteCloser = rw; return r })
				if d.src {
					from.Open = open
				} else {
					far.Open = open
				}
				Copy(context.Background(), from, far, opts)
				for _, b := range [][]byte{r.in, r.out} {
					c := newConn(struct {
						io.Reader
						io.WriteCloser
					}{bytes.NewReader(b), nopCloser{io.Discard}})
					for {
						f, err := c.recv(nil)
						if err != nil {
							break
						}
						frames = append(frames, f)
					}
					c.close()
				}
			}
		}
	}
	return frames
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// Whatever a message is, it is read or refused, and what was read is written
// the same.
func FuzzMessages(f *testing.F) {
	types := map[byte]int{}
	for _, m := range exchange(f) {
		if types[m.typ]++; types[m.typ] <= 5 && len(m.body) < 4096 {
			f.Add(m.typ, m.body)
		}
	}
	for _, typ := range []byte{frameHello, frameJob, frameFail, frameTop, frameDir, frameEntry, frameDirEnd, frameEnd, frameSmall, frameFile, frameData, frameClose, frameSame, frameWant, frameAction, frameResult, frameProblem} {
		if types[typ] == 0 {
			f.Fatalf("no frame of type %q among the seeds", typ)
		}
	}
	f.Fuzz(func(t *testing.T, typ byte, body []byte) {
		var again []byte
		var err error
		switch typ {
		case frameJob:
			var j job
			j, err = parseJob(body)
			again = j.append(nil)
			return // any byte that isn't 0 is true
		case frameFail, frameProblem:
			var p problem
			p, err = parseProblem(body)
			again = p.append(nil)
		case frameTop, frameEntry:
			var e entry
			e, err = parseEntry(body)
			if err == nil && e.mode&^0o777 != 0 {
				t.Errorf("mode: got %o", e.mode)
			}
			return // bits of the mode are dropped
		case frameFile, frameSmall:
			var h fileHead
			h, _, err = parseHead(body)
			if err == nil && (h.size < 0 || h.start < 0 || h.start > h.size) {
				t.Errorf("got %+v", h)
			}
			return
		case frameClose:
			var c closing
			c, err = parseClosing(body)
			again = c.append(nil)
		case frameWant:
			var w want
			w, err = parseWant(body)
			again = w.append(nil)
			if err == nil && w.path != "" && !filepath.IsLocal(w.path) {
				t.Errorf("path: got %q", w.path)
			}
		case frameAction:
			_, err = parseAction(body)
			return
		case frameResult:
			var r result
			r, err = parseResult(body)
			again = r.append(nil)
		default:
			return
		}
		if err == nil && !bytes.Equal(again, body) {
			t.Errorf("%q: got %x, want %x", typ, again, body)
		}
	})
}

// Whatever a sender sends, nothing is made outside of the destination, and the
// receiver ends.
func FuzzReceive(f *testing.F) {
	var stream []byte
	n := 0
	for _, m := range exchange(f) {
		if m.typ == frameTop {
			stream = nil
		}
		if len(stream) > 1<<16 || len(m.body) > 4096 {
			continue
		}
		stream = append(stream, m.typ, 0, 0, byte(len(m.body)>>8), byte(len(m.body)))
		stream = append(stream, m.body...)
		if m.typ == frameEnd || m.typ == frameClose || m.typ == frameSmall {
			f.Add(bytes.Clone(stream))
			n++
		}
	}
	if n < 5 {
		f.Fatalf("got %d seeds, want 5", n)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		base := t.TempDir()
		if err := os.Mkdir(base+"/dst", 0o755); err != nil {
			t.Fatal(err)
		}
		c := newConn(struct {
			io.Reader
			io.WriteCloser
		}{bytes.NewReader(in), nopCloser{io.Discard}})
		defer c.close()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		receive(ctx, c, job{path: base + "/dst", rules: rules{sync: true, del: true}}, &nearPeer{opts: &Options{}})
		if ctx.Err() != nil {
			t.Error("it doesn't end")
		}
		names, err := os.ReadDir(base)
		if err != nil || len(names) != 1 {
			t.Errorf("got %v, %v", names, err)
		}
		for name := range strings.FieldsSeq(paths(t, base)) {
			if strings.HasSuffix(name, tempSuffix) {
				t.Errorf("got %s", name)
			}
		}
	})
}
