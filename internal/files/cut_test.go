package files

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
)

func mkfifo(t testing.TB, path string) {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A cutter ends a stream after some bytes, in the middle of whatever it is.
type cutter struct {
	io.ReadWriteCloser
	left *atomic.Int64 // of both directions
}

func (c *cutter) take(n int) int {
	if left := c.left.Add(-int64(n)) + int64(n); left < int64(n) {
		c.ReadWriteCloser.Close()
		return int(max(left, 0))
	}
	return n
}

func (c *cutter) Read(p []byte) (int, error) {
	n, err := c.ReadWriteCloser.Read(p)
	if m := c.take(n); m < n {
		return m, io.EOF
	}
	return n, err
}

func (c *cutter) Write(p []byte) (int, error) {
	n := c.take(len(p))
	if n < len(p) {
		return n, syscall.EPIPE
	}
	return c.ReadWriteCloser.Write(p)
}

func (c *cutter) Close() error {
	c.ReadWriteCloser.Close() // for the second time, maybe
	return nil
}

// A copy that is cut, wherever it is, leaves no half file under a name; the
// next one goes on, and then all is as it should be.
func TestCut(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	src := t.TempDir()
	big := random(3 * resumable)
	put(t, src+"/big", big)
	put(t, src+"/old", []byte("new content"))
	for i := range 50 {
		put(t, src+"/f"+string(rune('A'+i)), random(1000*i))
	}
	const total = 3*resumable + 1_300_000
	for _, d := range directions()[:2] {
		t.Run(d.name, func(t *testing.T) {
			resumed := 0
			for range 4 {
				dst := t.TempDir()
				put(t, dst+"/old", []byte("old content"))
				cuts := 0
				for {
					var left atomic.Int64
					left.Store(rng.Int64N(total))
					if cuts == 3 {
						left.Store(1 << 40)
					}
					from, to := d.ends(t, src+"/.", dst)
					wrap := serving(t, func(rw io.ReadWriteCloser) io.ReadWriteCloser { return &cutter{rw, &left} })
					if d.src {
						from.Open = wrap
					} else {
						to.Open = wrap
					}
					ctx, cancel := context.WithTimeout(context.Background(), limit)
					sum, err := Copy(ctx, from, to, Options{})
					cancel()
					if sum.Resumed > 0 {
						resumed++
					}
					if err == nil {
						break
					}
					cuts++
					if !errors.Is(err, hpcexec.ErrUnavailable) {
						t.Errorf("cut: got %v, want ErrUnavailable", err)
					}
					whole(t, src, dst)
				}
				same(t, dst, src)
			}
			if resumed == 0 {
				t.Error("no copy went on with what was there")
			}
		})
	}
}

// whole fails where a file is neither as in the source nor as it was. An agent
// may still be cleaning up.
func whole(t *testing.T, src, dst string) {
	t.Helper()
	entries, err := os.ReadDir(dst)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if isOurs(e.Name()) {
			continue
		}
		got, err := os.ReadFile(filepath.Join(dst, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(src, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) && string(got) != "old content" {
			t.Errorf("%s: got %d bytes, want %d", e.Name(), len(got), len(want))
		}
	}
}

// cutOnce copies src to dst until n bytes have passed.
func cutOnce(t *testing.T, d direction, src, dst string, n int64) Summary {
	t.Helper()
	var left atomic.Int64
	left.Store(n)
	from, to := d.ends(t, src, dst)
	wrap := serving(t, func(rw io.ReadWriteCloser) io.ReadWriteCloser { return &cutter{rw, &left} })
	if d.src {
		from.Open = wrap
	} else {
		to.Open = wrap
	}
	sum, err := Copy(context.Background(), from, to, Options{})
	if !errors.Is(err, hpcexec.ErrUnavailable) || hpcexec.Hint(err) == "" {
		t.Fatalf("cut: got error %v with hint %q, want ErrUnavailable and a hint", err, hpcexec.Hint(err))
	}
	return sum
}

// partOf waits for what is kept of a file and gives its path.
func partOf(t *testing.T, dst string) string {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		all, _ := filepath.Glob(dst + "/.*" + partSuffix)
		if len(all) != 1 {
			continue
		}
		if f, err := os.Open(all[0]); err == nil { // nobody writes to it any more
			locked := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
			f.Close()
			if locked {
				return all[0]
			}
		}
	}
	t.Fatalf("nothing is kept: %s", paths(t, dst))
	return ""
}

// What a copy goes on with is verified before, and the whole after.
func TestResume(t *testing.T) {
	tests := []struct {
		name    string
		change  func(t *testing.T, src, part string)
		resumed bool
	}{
		{"as it was left", func(*testing.T, string, string) {}, true},
		{"damaged", func(t *testing.T, _, part string) {
			f, err := os.OpenFile(part, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			f.WriteAt([]byte("damage"), 1000)
			f.Close()
		}, false},
		{"longer than the source", func(t *testing.T, _, part string) { os.Truncate(part, 4*resumable) }, false},
		{"zeros at its end after a crash", func(t *testing.T, _, part string) {
			fi, _ := os.Stat(part)
			os.Truncate(part, fi.Size()+1000)
		}, false},
		{"empty", func(t *testing.T, _, part string) { os.Truncate(part, 0) }, false},
		{"a link", func(t *testing.T, src, part string) {
			os.Rename(part, part+".away")
			os.Symlink(src+"/other", part)
		}, false},
		{"a hard link", func(t *testing.T, src, part string) {
			os.Remove(part)
			os.Link(src+"/other", part)
		}, false},
		{"source changed, same size", func(t *testing.T, src, _ string) {
			b := random(3 * resumable)
			b[0] ^= 1
			os.WriteFile(src+"/big", b, 0o640)
		}, false},
	}
	for _, d := range directions()[:2] {
		for _, tt := range tests {
			t.Run(d.name+" "+tt.name, func(t *testing.T) {
				src, dst := t.TempDir(), t.TempDir()
				put(t, src+"/big", random(3*resumable))
				put(t, src+"/other", []byte("not to be touched"))
				sum := cutOnce(t, d, src+"/big", dst, 2*resumable)
				part := partOf(t, dst)
				if sum.Partial != "big" {
					t.Errorf("partial: got %q, want big", sum.Partial)
				}
				tt.change(t, src, part)
				sum = d.mustCopy(t, src+"/big", dst, Options{})
				if got := sum.Resumed > 0; got != tt.resumed {
					t.Errorf("resumed: got %d bytes, want some: %v", sum.Resumed, tt.resumed)
				}
				want, _ := os.ReadFile(src + "/big")
				wantContent(t, dst+"/big", want)
				wantContent(t, src+"/other", []byte("not to be touched"))
			})
		}
	}
}

// Two copies of the same at the same time don't write to one file.
func TestTwoAtOnce(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	big := random(4 * resumable)
	put(t, src+"/big", big)
	errs := make(chan error, 4)
	for i := range 4 {
		go func() {
			_, err := directions()[i%2].copy(t, src+"/big", dst, Options{})
			errs <- err
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	wantContent(t, dst+"/big", big)
	if got := paths(t, dst); got != "big" {
		t.Errorf("got %q, want big", got)
	}
}

// A cancelled copy ends, says what it keeps and leaves nothing else.
func TestCancel(t *testing.T) {
	each(t, func(t *testing.T, d direction) {
		src, dst := t.TempDir(), t.TempDir()
		put(t, src+"/big", random(8*resumable))
		ctx, cancel := context.WithCancelCause(context.Background())
		cause := errors.New("enough")
		from, to := d.ends(t, src+"/.", dst)
		sum, err := Copy(ctx, from, to, Options{Progress: func(p Progress) {
			if p.Bytes > resumable {
				cancel(cause)
			}
		}})
		cancel(nil)
		if err == nil {
			t.Skip("it was quicker than its progress") // rare: all of it is there
		}
		if !errors.Is(err, cause) {
			t.Errorf("got %v, want %v", err, cause)
		}
		if sum.Partial != "big" {
			t.Errorf("partial: got %q, want big", sum.Partial)
		}
		part := partOf(t, dst)
		if got := paths(t, dst); got != filepath.Base(part) {
			t.Errorf("got %q, want %q alone", got, filepath.Base(part))
		}
	})
}
