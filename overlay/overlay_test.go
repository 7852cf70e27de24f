package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	hpcexec "github.com/hpcexec/hpcexec"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv("OVERLAY_TEST_MODE"); mode != "" { // see child_test.go
		os.Exit(child(mode))
	}
	goleak.VerifyTestMain(m)
}

// create makes an overlay in a directory of its own.
func create(t *testing.T) *Overlay {
	t.Helper()
	o, err := Create(filepath.Join(t.TempDir(), "overlays", "o"), CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	list := []string{}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestCreate(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	for _, name := range []string{"plain", `it's "odd"`, "a:b,c", "line\nbreak", strings.Repeat("n", 255), ".hidden"} {
		t.Run(name[:min(len(name), 20)], func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "not", "there", name)
			opts := CreateOptions{Image: Image{Path: "/i.sif", Digest: "sha256:1"}, Layers: []string{"s1", "s2"}}
			o, err := Create(dir, opts)
			if err != nil {
				t.Fatal(err)
			}
			for path, want := range map[string]fs.FileMode{
				dir: 0o700, o.Layer(): 0o700, o.Upper(): 0o755, o.Upper() + "/session": 0o700, o.Layer() + "/work": 0o700, o.Tmp(): 0o700,
			} {
				if info, err := os.Lstat(path); err != nil || info.Mode() != want|fs.ModeDir {
					t.Errorf("%s: got %v %v, want mode %v", path, info, err, want)
				}
			}
			again, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := fmt.Sprint(again.Meta()), fmt.Sprint(o.Meta()); got != want || again.Meta().Image != opts.Image || len(again.Meta().Layers) != 2 {
				t.Errorf("got %s, want %s", got, want)
			}
			if got := names(t, filepath.Dir(dir)); len(got) != 1 {
				t.Errorf("got %q beside it, want nothing", got)
			}
			if _, err := Create(dir, CreateOptions{}); !errors.Is(err, fs.ErrExist) || !errors.Is(err, hpcexec.ErrInvalid) {
				t.Errorf("again: got %v, want fs.ErrExist", err)
			}
		})
	}
}

func TestCreateErrors(t *testing.T) {
	tmp := t.TempDir()
	os.WriteFile(filepath.Join(tmp, "file"), nil, 0o600)
	os.MkdirAll(filepath.Join(tmp, "full", "of"), 0o700)
	os.Mkdir(filepath.Join(tmp, "empty"), 0o700)
	tests := []struct {
		name, dir string
		wantErr   error
	}{
		{"relative", "x", hpcexec.ErrInvalid},
		{"directory in use", filepath.Join(tmp, "full"), fs.ErrExist},
		{"file", filepath.Join(tmp, "file"), syscall.ENOTDIR},
		{"below a file", filepath.Join(tmp, "file", "x"), syscall.ENOTDIR},
		{"proc", "/proc/hpcexec/x", syscall.ENOENT},
		{"empty directory", filepath.Join(tmp, "empty"), fs.ErrExist},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Create(tt.dir, CreateOptions{}); !errors.Is(err, tt.wantErr) {
				t.Errorf("got %v, want %v", err, tt.wantErr)
			}
		})
	}
	if got := fmt.Sprint(names(t, tmp)); got != "[empty file full]" {
		t.Errorf("got %s, want no leftovers", got)
	}
}

// TestDiskErrors: what the file system says becomes a class and a hint.
func TestDiskErrors(t *testing.T) {
	tests := []struct {
		errno   syscall.Errno
		wantErr error
	}{
		{syscall.ENOSPC, ErrFull},
		{syscall.EDQUOT, ErrFull},
		{syscall.EROFS, ErrNotWritable},
		{syscall.EACCES, ErrNotWritable},
		{syscall.EPERM, ErrNotWritable},
		{syscall.ESTALE, hpcexec.ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.errno.Error(), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "o")
			_, err := Create(dir, CreateOptions{step: func(name string) error {
				if name == "write meta" {
					return &fs.PathError{Op: "write", Path: dir, Err: tt.errno}
				}
				return nil
			}})
			if !errors.Is(err, tt.wantErr) || !errors.Is(err, tt.errno) || !errors.Is(err, hpcexec.ErrUnavailable) {
				t.Errorf("got %v, want %v", err, tt.wantErr)
			}
			if hpcexec.Hint(err) == "" {
				t.Error("no hint")
			}
			if got := names(t, filepath.Dir(dir)); len(got) != 0 {
				t.Errorf("got leftovers %q", got)
			}
		})
	}
}

var createSteps = []string{
	"make dir", "probe", "make layer", "make layer/upper", "make layer/upper/session", "make layer/work", "make tmp",
	"write meta", "rename", "sync parent",
}

// TestCreateKilled: killed before any step, there is no overlay or a whole one,
// and what is left is recognised and swept.
func TestCreateKilled(t *testing.T) {
	for i, step := range createSteps {
		t.Run(step, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "o")
			runKilled(t, "create", dir, step)
			_, err := Open(dir)
			if whole := i > len(createSteps)-2; whole != (err == nil) {
				t.Errorf("got %v, want a whole overlay: %v", err, whole)
			}
			for _, n := range names(t, parent) {
				if n != "o" && !IsLeftover(n) {
					t.Errorf("leftover %q isn't recognised", n)
				}
			}
			if n, err := Sweep(t.Context(), parent, time.Hour); n != 0 || err != nil {
				t.Errorf("got %d %v, want young leftovers kept", n, err)
			}
			if _, err := Sweep(t.Context(), parent, -time.Hour); err != nil {
				t.Error(err)
			}
			for _, n := range names(t, parent) {
				if n != "o" {
					t.Errorf("%q is left after Sweep", n)
				}
			}
			if _, err := Open(dir); err != nil {
				if _, err := Create(dir, CreateOptions{}); err != nil {
					t.Errorf("create again: %v", err)
				}
			}
		})
	}
}

func TestOpenErrors(t *testing.T) {
	tests := []struct {
		name    string
		harm    func(o *Overlay)
		wantErr error
	}{
		{"gone", func(o *Overlay) { os.RemoveAll(o.Dir()) }, fs.ErrNotExist},
		{"no meta", func(o *Overlay) { os.Remove(filepath.Join(o.Dir(), metaFile)) }, fs.ErrNotExist},
		{"no upper", func(o *Overlay) { os.RemoveAll(o.Upper()) }, fs.ErrNotExist},
		{"newer", func(o *Overlay) {
			os.WriteFile(filepath.Join(o.Dir(), metaFile), []byte(`{"format":99}`), 0o600)
		}, hpcexec.ErrInvalid},
		{"other kind", func(o *Overlay) {
			os.WriteFile(filepath.Join(o.Dir(), metaFile), []byte(`{"format":1,"kind":"ext3"}`), 0o600)
		}, hpcexec.ErrInvalid},
		{"upper is a link", func(o *Overlay) {
			os.Rename(o.Upper(), o.Upper()+"x")
			os.Symlink("upperx", o.Upper())
		}, hpcexec.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := create(t)
			tt.harm(o)
			if _, err := Open(o.Dir()); !errors.Is(err, tt.wantErr) {
				t.Errorf("got %v, want %v", err, tt.wantErr)
			}
		})
	}
}

func TestProbe(t *testing.T) {
	dir := t.TempDir()
	f, err := Probe(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !f.Xattr || !f.Whiteout {
		t.Errorf("got %+v, want both on a local file system", f)
	}
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("got leftovers %q", got)
	}
	if _, err := Probe("/proc"); err == nil {
		t.Error("/proc: got nil, want an error")
	}
}
