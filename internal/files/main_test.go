package files

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds each copy: what hangs is a failure.
const limit = 60 * time.Second

// streams makes the two ends of a stream, of pipes, as an agent has them.
func streams(t testing.TB) (near, far *pair) {
	t.Helper()
	r1, w1, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r2, w2, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return &pair{r1, w2}, &pair{r2, w1}
}

// serving gives Open for an agent in this process, which is waited for at the
// end of the test.
func serving(t testing.TB, wrap func(io.ReadWriteCloser) io.ReadWriteCloser) func(context.Context) (io.ReadWriteCloser, error) {
	var agents sync.WaitGroup
	t.Cleanup(agents.Wait)
	return func(context.Context) (io.ReadWriteCloser, error) {
		near, far := streams(t)
		agents.Go(func() { Serve(context.Background(), far) })
		if wrap != nil {
			return wrap(near), nil
		}
		return near, nil
	}
}

// A direction is which ends of a copy have an agent.
type direction struct {
	name     string
	src, dst bool
}

func directions() []direction {
	return []direction{{"up", false, true}, {"down", true, false}, {"between", true, true}}
}

// each runs a test in every direction.
func each(t *testing.T, run func(t *testing.T, d direction)) {
	for _, d := range directions() {
		t.Run(d.name, func(t *testing.T) { run(t, d) })
	}
}

func (d direction) ends(t testing.TB, src, dst string) (End, End) {
	from, to := End{Name: "SRC", Path: src}, End{Name: "DST", Path: dst}
	if d.src {
		from.Open = serving(t, nil)
	}
	if d.dst {
		to.Open = serving(t, nil)
	}
	return from, to
}

func (d direction) copy(t testing.TB, src, dst string, opts Options) (Summary, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	from, to := d.ends(t, src, dst)
	return Copy(ctx, from, to, opts)
}

// mustCopy is copy without an error and without anything left out.
func (d direction) mustCopy(t testing.TB, src, dst string, opts Options) Summary {
	t.Helper()
	sum, err := d.copy(t, src, dst, opts)
	if err != nil {
		t.Fatalf("copy: got error %v, failed %v", err, sum.Failed)
	}
	return sum
}

// write makes files of "path": "content"; a path that ends with a slash is a
// directory, and content that begins with "->" a link.
func write(t testing.TB, root string, tree map[string]string) {
	t.Helper()
	for path, content := range tree {
		full := filepath.Join(root, path)
		if strings.HasSuffix(path, "/") {
			if err := os.MkdirAll(full, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		err := os.MkdirAll(filepath.Dir(full), 0o755)
		if target, ok := strings.CutPrefix(content, "->"); ok && err == nil {
			err = os.Symlink(target, full)
		} else if err == nil {
			err = os.WriteFile(full, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// look describes a tree, one line for each name: type, mode, time, size and
// content.
func look(t testing.TB, root string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		line := fmt.Sprintf("%q %v %d", rel, fi.Mode(), fi.ModTime().UnixNano())
		switch {
		case fi.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + target
		case fi.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d bytes %x", len(b), sum(b))
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(lines)
	return lines
}

func sum(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// same fails where two trees differ.
func same(t testing.TB, got, want string) {
	t.Helper()
	diff(t, look(t, got), look(t, want))
}

func diff(t testing.TB, got, want []string) {
	t.Helper()
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

// paths are the names in a tree.
func paths(t testing.TB, root string) string {
	t.Helper()
	var all []string
	filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(root, path); rel != "." {
			all = append(all, rel)
		}
		return err
	})
	return strings.Join(all, " ")
}

// random is content that doesn't compress and has no runs of zeros.
func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1, 2, 3})
	r.Read(b)
	return b
}

func put(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o640); err != nil {
		t.Fatal(err)
	}
	when := time.Unix(1_600_000_000, 123_456_789)
	if err := os.Chtimes(path, when, when); err != nil {
		t.Fatal(err)
	}
}

func wantContent(t testing.TB, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got %d other bytes, want %d", filepath.Base(path), len(got), len(want))
	}
}

func blocks(t testing.TB, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}
