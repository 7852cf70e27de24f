package files

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
)

// A liar is an agent that does what a test says.
func liar(t *testing.T, lie func(c *conn)) func(context.Context) (io.ReadWriteCloser, error) {
	var liars sync.WaitGroup
	t.Cleanup(liars.Wait)
	return func(context.Context) (io.ReadWriteCloser, error) {
		near, far := streams(t)
		liars.Go(func() {
			c := newConn(far)
			defer c.close()
			c.send(frameHello, []byte(hello))
			if _, err := c.recv(nil); err == nil {
				lie(c)
			}
			c.flush()
			io.Copy(io.Discard, far) // until the near end gives up
		})
		return near, nil
	}
}

func (e entry) bytes() []byte { return e.append(nil) }

// A sender in a container can't write anywhere but below the destination.
func TestHostileSender(t *testing.T) {
	dir := entry{kind: kindDir, mode: 0o755}
	file := func(name string) []byte { return entry{name: name, kind: kindFile, mode: 0o644, size: 4}.bytes() }
	enter := func(c *conn) {
		c.send(frameTop, dir.bytes())
		c.send(frameDir)
	}
	// content answers the next want.
	content := func(c *conn, change func(*fileHead)) {
		f, err := c.recv(nil)
		if err != nil || f.typ != frameWant {
			return
		}
		w, _ := parseWant(f.body)
		h := fileHead{id: w.id, mode: 0o644, size: 4}
		if change != nil {
			change(&h)
		}
		c.send(frameSmall, h.append(nil), []byte("evil"))
	}
	tests := []struct {
		name string
		lie  func(c *conn)
	}{
		{"name is ..", func(c *conn) { enter(c); c.send(frameEntry, file("..")); content(c, nil) }},
		{"name is .", func(c *conn) { enter(c); c.send(frameEntry, file(".")) }},
		{"name is empty", func(c *conn) { enter(c); c.send(frameEntry, file("")) }},
		{"name has a slash", func(c *conn) { enter(c); c.send(frameEntry, file("../escape")); content(c, nil) }},
		{"name is absolute", func(c *conn) { enter(c); c.send(frameEntry, file("/tmp/escape")); content(c, nil) }},
		{"name has a zero byte", func(c *conn) { enter(c); c.send(frameEntry, file("a\x00b")) }},
		{"name is huge", func(c *conn) { enter(c); c.send(frameEntry, file(strings.Repeat("n", 256))) }},
		{"name is longer than a message may be", func(c *conn) { enter(c); c.send(frameEntry, file(strings.Repeat("n", maxPath+1))) }},
		{"top has a name", func(c *conn) { c.send(frameTop, file("top")) }},
		{"no top", func(c *conn) { c.send(frameDir) }},
		{"device", func(c *conn) { enter(c); c.send(frameEntry, entry{name: "dev", kind: 'b'}.bytes()) }},
		{"link without target", func(c *conn) { enter(c); c.send(frameEntry, entry{name: "l", kind: kindLink}.bytes()) }},
		{"negative size", func(c *conn) { enter(c); c.send(frameEntry, entry{name: "f", kind: kindFile, size: -1}.bytes()) }},
		{"size that overflows", func(c *conn) {
			enter(c)
			c.send(frameEntry, entry{name: "f", kind: kindFile, size: math.MaxInt64}.bytes())
		}},
		{"directory that wasn't told of", func(c *conn) { enter(c); c.send(frameDirEnd, []byte{1}); c.send(frameDir, []byte("../x")) }},
		{"directory that was a link", func(c *conn) {
			enter(c)
			c.send(frameEntry, entry{name: "l", kind: kindLink, target: "../outside"}.bytes())
			c.send(frameDirEnd, []byte{1})
			c.send(frameDir, []byte("l"))
		}},
		{"directory twice", func(c *conn) { enter(c); c.send(frameDirEnd, []byte{1}); c.send(frameDir) }},
		{"directory within another", func(c *conn) {
			enter(c)
			c.send(frameEntry, entry{name: "d", kind: kindDir}.bytes())
			c.send(frameDir, []byte("d"))
		}},
		{"entry after the end", func(c *conn) {
			enter(c)
			c.send(frameEntry, file("f")) // so that the receiver stays
			c.send(frameDirEnd, []byte{1})
			c.send(frameEnd)
			c.send(frameEntry, file("g"))
		}},
		{"file that wasn't asked for", func(c *conn) {
			enter(c)
			h := fileHead{id: 99, size: 4}
			c.send(frameSmall, h.append(nil), []byte("evil"))
		}},
		{"file twice", func(c *conn) {
			enter(c)
			c.send(frameEntry, file("f"))
			content(c, nil)
			h := fileHead{id: 0, size: 4}
			c.send(frameSmall, h.append(nil), []byte("evil"))
		}},
		{"file of another length", func(c *conn) { enter(c); c.send(frameEntry, file("f")); content(c, func(h *fileHead) { h.size = 5 }) }},
		{"same, unasked", func(c *conn) { enter(c); c.send(frameSame, binary.BigEndian.AppendUint32(nil, 7)) }},
		{"data of no file", func(c *conn) { enter(c); c.send(frameData, make([]byte, 100)) }},
		{"data outside of the file", func(c *conn) {
			enter(c)
			c.send(frameEntry, file("f"))
			h := fileHead{size: 4}
			c.send(frameFile, h.append(nil))
			c.send(frameData, binary.BigEndian.AppendUint64(nil, 3), []byte("evil"))
		}},
		{"data at an offset that overflows", func(c *conn) {
			enter(c)
			c.send(frameEntry, file("f"))
			h := fileHead{size: 4}
			c.send(frameFile, h.append(nil))
			c.send(frameData, binary.BigEndian.AppendUint64(nil, math.MaxInt64), []byte("evil"))
		}},
		{"data before the data so far", func(c *conn) {
			enter(c)
			c.send(frameEntry, file("f"))
			h := fileHead{size: 4}
			c.send(frameFile, h.append(nil))
			c.send(frameData, binary.BigEndian.AppendUint64(nil, 2), []byte("ev"))
			c.send(frameData, binary.BigEndian.AppendUint64(nil, 0), []byte("ev"))
		}},
		{"file within another", func(c *conn) {
			enter(c)
			c.send(frameEntry, file("f"))
			c.send(frameEntry, file("g"))
			c.send(frameFile, (&fileHead{id: 0, size: 4}).append(nil))
			c.send(frameFile, (&fileHead{id: 1, size: 4}).append(nil))
		}},
		{"file that goes on where it never was", func(c *conn) {
			enter(c)
			c.send(frameEntry, file("f"))
			c.send(frameFile, (&fileHead{size: 4, start: 2}).append(nil))
		}},
		{"end of another file", func(c *conn) {
			enter(c)
			c.send(frameEntry, file("f"))
			c.send(frameClose, (&closing{id: 0}).append(nil))
		}},
		{"checksum of another length", func(c *conn) {
			enter(c)
			c.send(frameEntry, file("f"))
			content(c, func(h *fileHead) { h.hash = []byte("short") })
		}},
		{"frame of no type", func(c *conn) { enter(c); c.send('?') }},
		{"frame longer than the limit", func(c *conn) {
			c.mu.Lock()
			c.w.Write([]byte{frameTop, 0xff, 0xff, 0xff, 0xff})
			c.mu.Unlock()
			c.flush()
		}},
		{"frame that is cut off", func(c *conn) { c.send(frameTop, dir.bytes()[:5]) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := t.TempDir()
			write(t, base, map[string]string{"outside/f": "mine", "dst/": ""})
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			_, err := Copy(ctx, End{Name: "FAR", Path: "x", Open: liar(t, tt.lie)}, End{Name: "NEAR", Path: base + "/dst"}, Options{})
			if !errors.Is(err, errProtocol) || !errors.Is(err, hpcexec.ErrUnavailable) {
				t.Errorf("error: got %v, want one of the protocol", err)
			}
			wantContent(t, base+"/outside/f", []byte("mine"))
			for name := range strings.FieldsSeq(paths(t, base)) {
				if !strings.HasPrefix(name, "dst") && !strings.HasPrefix(name, "outside") || strings.Contains(name, "hpcexec-tmp") {
					t.Errorf("got %s", name)
				}
			}
		})
	}
}

// A link that was copied is never written through, neither in the same copy
// nor in a later one.
func TestLinkThenFile(t *testing.T) {
	base := t.TempDir()
	write(t, base, map[string]string{"outside/f": "mine", "dst/x": "->../outside", "dst/f": "->../outside/f", "dst/sub/g": "->../../outside/f"})
	write(t, base, map[string]string{"src/x/f": "evil", "src/x/new": "evil", "src/f": "evil", "src/sub/g": "evil"})
	for _, opts := range []Options{{}, {Sync: true}, {Sync: true, Delete: true}} {
		each(t, func(t *testing.T, d direction) {
			d.copy(t, base+"/src/.", base+"/dst", opts)
			wantContent(t, base+"/outside/f", []byte("mine"))
			if got := paths(t, base+"/outside"); got != "f" {
				t.Errorf("outside: got %q", got)
			}
			wantContent(t, base+"/dst/f", []byte("evil")) // the link was replaced
		})
	}
	// The name of the source in a directory that is there.
	os.RemoveAll(base + "/dst")
	write(t, base, map[string]string{"dst/src": "->../outside"})
	each(t, func(t *testing.T, d direction) {
		if _, err := d.copy(t, base+"/src", base+"/dst", Options{}); !errors.Is(err, hpcexec.ErrInvalid) {
			t.Errorf("copy over a link: got %v, want ErrInvalid", err)
		}
		if got := paths(t, base+"/outside"); got != "f" {
			t.Errorf("outside: got %q", got)
		}
	})
}

// A receiver in a container gets what is copied and nothing else.
func TestHostileReceiver(t *testing.T) {
	asking := func(path string) func(c *conn) {
		return func(c *conn) {
			w := want{path: path}
			c.send(frameWant, w.append(nil))
		}
	}
	tests := []struct {
		name     string
		lie      func(c *conn)
		protocol bool
	}{
		{"path with ..", asking("../outside/f"), true},
		{"path with .. within", asking("d/../../outside/f"), true},
		{"absolute path", asking("/etc/passwd"), true},
		{"path with a zero byte", asking("d\x00"), true},
		{"path of empty components", asking("d//f"), true},
		{"path that is too deep", asking(strings.Repeat("d/", maxDepth+1) + "d"), true},
		{"path through a link", asking("link/f"), false},
		{"link itself", asking("flink"), false},
		{"directory", asking("d"), false},
		{"pipe", asking("pipe"), false},
		{"offset beyond the end", func(c *conn) {
			w := want{path: "d/x", size: 1, offset: 1 << 50}
			c.send(frameWant, w.append(nil))
		}, false},
		{"more files than there are", func(c *conn) {
			for range 100 {
				w := want{path: "d/x"}
				c.send(frameWant, w.append(nil))
			}
		}, true},
		{"frame of no type", func(c *conn) { c.send('?') }, true},
		{"result that can't be read", func(c *conn) { c.send(frameResult, []byte("x")) }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := t.TempDir()
			write(t, base, map[string]string{"outside/f": "secret", "src/d/x": "x", "src/link": "->../outside", "src/flink": "->../outside/f"})
			mkfifo(t, base+"/src/pipe")
			var got []byte
			lie := func(c *conn) {
				for { // so that files were told of
					f, err := c.recv(nil)
					if err != nil {
						return
					}
					if f.typ == frameEnd {
						break
					}
				}
				tt.lie(c)
				c.flush()
				for range 100 {
					f, err := c.recv(nil)
					if err != nil {
						return
					}
					if f.typ == frameSmall || f.typ == frameData {
						got = append(got, f.body...)
					}
					if f.typ == frameClose || f.typ == frameSmall || f.typ == frameFail {
						break
					}
				}
				if !tt.protocol {
					c.send(frameResult, (&result{}).append(nil))
				}
			}
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			_, err := Copy(ctx, End{Name: "NEAR", Path: base + "/src"}, End{Name: "FAR", Path: "x", Open: liar(t, lie)}, Options{})
			if tt.protocol && !errors.Is(err, errProtocol) || !tt.protocol && err != nil {
				t.Errorf("error: got %v, want one of the protocol: %v", err, tt.protocol)
			}
			if strings.Contains(string(got), "secret") {
				t.Errorf("it got %q", got)
			}
		})
	}
}

// Directories that become links and back, while the walk and the copy go on,
// lead nowhere.
func TestSwaps(t *testing.T) {
	base := t.TempDir()
	tree := map[string]string{}
	for i := range 200 {
		tree[fmt.Sprintf("src/d/e/f%d", i)] = "mine"
		tree[fmt.Sprintf("outside/e/f%d", i)] = "secret"
	}
	write(t, base, tree)
	write(t, base, map[string]string{"link": "->" + base + "/outside"})
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.Rename(base+"/src/d", base+"/away")
			os.Rename(base+"/link", base+"/src/d")
			time.Sleep(50 * time.Microsecond)
			os.Rename(base+"/src/d", base+"/link")
			os.Rename(base+"/away", base+"/src/d")
			time.Sleep(50 * time.Microsecond)
		}
	})
	for i := range 40 {
		dst := filepath.Join(base, "dst"+fmt.Sprint(i))
		directions()[i%3].copy(t, base+"/src", dst, Options{})
		filepath.WalkDir(dst, func(path string, e os.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				if b, _ := os.ReadFile(path); string(b) != "mine" {
					t.Errorf("%s: got %q", path, b)
				}
			}
			return nil
		})
	}
	close(stop)
	swapping.Wait()
	// The other way: what is swapped is the destination.
	if got := paths(t, base+"/outside"); strings.Contains(got, "hpcexec") {
		t.Errorf("outside: got %q", got)
	}
}

// A receiver that wants nothing more and says nothing more is cut by the
// caller's context.
func TestSilentPeer(t *testing.T) {
	for _, up := range []bool{true, false} {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		src := t.TempDir()
		put(t, src+"/f", random(8<<20))
		far := End{Name: "FAR", Path: "x", Open: liar(t, func(*conn) {})}
		ends := [2]End{{Path: src}, far}
		if !up {
			ends = [2]End{far, {Path: t.TempDir()}}
		}
		if _, err := Copy(ctx, ends[0], ends[1], Options{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
	}
}
