package snapshots

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	hpcexec "github.com/hpcexec/hpcexec"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, opts Options) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "store"), opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// upper is a small upper directory.
func upper(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"a": "one", "dir/b": strings.Repeat("two ", 1000)} {
		p := filepath.Join(dir, name)
		os.MkdirAll(filepath.Dir(p), 0o755)
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func create(t *testing.T, s *Store, opts CreateOptions) Snapshot {
	t.Helper()
	if opts.Upper == "" {
		opts.Upper = upper(t)
	}
	snap, err := s.Create(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestCreate(t *testing.T) {
	s := open(t, Options{})
	a := create(t, s, CreateOptions{Session: "train", Message: "first", Image: Image{Path: "/i.sif", Digest: "sha256:1"}})
	if a.Inodes != 4 || a.Unpacked < 4000 || a.Size == 0 || len(a.SHA256) != 64 || !strings.HasPrefix(a.Tool, "mksquashfs 4") || a.User == "" || a.Host == "" {
		t.Errorf("got %+v, want every member", a)
	}
	b := create(t, s, CreateOptions{Layers: a.Chain()})
	if b.Parent() != a.ID || a.Parent() != "" {
		t.Errorf("got parents %q and %q, want %q and none", b.Parent(), a.Parent(), a.ID)
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 2 || fmt.Sprint(list[0]) != fmt.Sprint(a) || fmt.Sprint(list[1]) != fmt.Sprint(b) {
		t.Errorf("got %v %v, want both, the older first", list, err)
	}
	got, err := s.Layers(b.ID[:6])
	want := []string{filepath.Join(s.Root(), a.ID+".sqfs"), filepath.Join(s.Root(), b.ID+".sqfs")}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v %v, want %v", got, err, want)
	}
	for _, n := range names(t, s.Root()) {
		info, _ := os.Lstat(filepath.Join(s.Root(), n))
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: got mode %v, want it closed to others", n, info.Mode())
		}
	}
	if _, err := s.Get("nothing"); !errors.Is(err, ErrNotFound) || !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	if _, err := s.Create(t.Context(), CreateOptions{Upper: upper(t), Layers: []string{"aaaaaaaaaaaa"}}); !errors.Is(err, ErrNotFound) {
		t.Errorf("missing layer: got %v, want ErrNotFound", err)
	}
	if _, err := os.Lstat(s.data(a.ID)); errors.Is(err, fs.ErrNotExist) {
		t.Error("no data")
	}
}
