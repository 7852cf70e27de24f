package snapshots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	hpcexec "github.com/hpcexec/hpcexec"
)

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

func ids(t *testing.T, s *Store) []string {
	t.Helper()
	snaps, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, snap := range snaps {
		if snap.Problem != "" {
			t.Errorf("%s: %s", snap.ID, snap.Problem)
		}
		list = append(list, snap.ID)
	}
	return list
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
	var phases []string
	a := create(t, s, CreateOptions{
		Session: "train", Message: "first", Image: Image{Path: "/i.sif", Digest: "sha256:1"}, Origin: json.RawMessage(`{"x":1}`),
		Progress: func(p Progress) { phases = append(phases, fmt.Sprint(p.Phase, p.Bytes)) },
	})
	if a.Inodes != 4 || a.Unpacked < 4000 || a.Size == 0 || len(a.SHA256) != 64 || !strings.HasPrefix(a.Tool, "mksquashfs 4") || a.User == "" || a.Host == "" {
		t.Errorf("got %+v, want every member", a)
	}
	if want := fmt.Sprint("verify", a.Size); len(phases) == 0 || phases[len(phases)-1] != want {
		t.Errorf("got progress %v, want %s at last", phases, want)
	}
	b := create(t, s, CreateOptions{Layers: a.Chain()})
	if b.Parent() != a.ID || a.Parent() != "" {
		t.Errorf("got parents %q and %q, want %q and none", b.Parent(), a.Parent(), a.ID)
	}
	if got := fmt.Sprint(ids(t, s)); got != fmt.Sprint([]string{a.ID, b.ID}) {
		t.Errorf("got %s, want both, the older first", got)
	}
	again, err := s.Get(a.ID)
	if err != nil || again.SHA256 != a.SHA256 || again.Message != "first" || again.Image != a.Image || !again.Created.Equal(a.Created) || len(again.Origin) == 0 {
		t.Errorf("got %+v %v, want %+v", again, err, a)
	}
	got, err := s.Layers(b.ID[:6])
	want := []string{filepath.Join(s.Root(), a.ID+".sqfs"), filepath.Join(s.Root(), b.ID+".sqfs")}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v %v, want %v", got, err, want)
	}
	for _, n := range append(names(t, s.Root()), ".") {
		info, _ := os.Lstat(filepath.Join(s.Root(), n))
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: got mode %v, want it closed to others", n, info.Mode())
		}
	}
	for _, id := range b.Chain() {
		if err := s.Verify(t.Context(), id, nil); err != nil {
			t.Error(err)
		}
	}
}

func TestCreateErrors(t *testing.T) {
	s := open(t, Options{})
	file := filepath.Join(t.TempDir(), "f")
	os.WriteFile(file, nil, 0o600)
	long := make([]string, MaxLayers)
	for i := range long {
		long[i] = "aaaaaaaaaaaa"
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	cancel(why)
	tests := []struct {
		name    string
		ctx     context.Context
		opts    CreateOptions
		wantErr error
	}{
		{"relative", t.Context(), CreateOptions{Upper: "x"}, hpcexec.ErrInvalid},
		{"missing", t.Context(), CreateOptions{Upper: "/nowhere/x"}, hpcexec.ErrInvalid},
		{"a file", t.Context(), CreateOptions{Upper: file}, hpcexec.ErrInvalid},
		{"no such layer", t.Context(), CreateOptions{Upper: upper(t), Layers: []string{"aaaaaaaaaaaa"}}, ErrNotFound},
		{"no id", t.Context(), CreateOptions{Upper: upper(t), Layers: []string{"../../../x"}}, ErrNotFound},
		{"too many layers", t.Context(), CreateOptions{Upper: upper(t), Layers: long}, hpcexec.ErrInvalid},
		{"cancelled", ctx, CreateOptions{Upper: upper(t)}, why},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := s.Create(tt.ctx, tt.opts); !errors.Is(err, tt.wantErr) {
				t.Errorf("got %v, want %v", err, tt.wantErr)
			}
		})
	}
	if got := names(t, s.Root()); len(got) != 0 {
		t.Errorf("got %q left, want nothing", got)
	}
	if _, err := Open("relative", Options{}); !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

func TestGet(t *testing.T) {
	s := open(t, Options{})
	a := create(t, s, CreateOptions{})
	b := a // the same id but for the last letter
	b.ID = a.ID[:11] + "b"
	if b.ID == a.ID {
		b.ID = a.ID[:11] + "c"
	}
	data, _ := os.ReadFile(s.manifest(a.ID))
	os.WriteFile(s.manifest(b.ID), []byte(strings.ReplaceAll(string(data), a.ID, b.ID)), 0o600)
	os.Link(s.data(a.ID), s.data(b.ID))
	tests := []struct {
		name, id string
		want     string
		wantErr  error
	}{
		{"whole", a.ID, a.ID, nil},
		{"the other", b.ID, b.ID, nil},
		{"ambiguous", a.ID[:5], "", hpcexec.ErrInvalid},
		{"none", "zzzz", "", ErrNotFound},
		{"whole, none", "zzzzzzzzzzzz", "", ErrNotFound},
		{"empty", "", "", ErrNotFound},
		{"path", "../x", "", ErrNotFound},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := s.Get(tt.id)
			if got.ID != tt.want || !errors.Is(err, tt.wantErr) {
				t.Errorf("got %q %v, want %q %v", got.ID, err, tt.want, tt.wantErr)
			}
			if err != nil && hpcexec.Hint(err) == "" {
				t.Errorf("%v has no hint", err)
			}
		})
	}
}

// TestDamaged: what happened to a file is found, and hides no other snapshot.
func TestDamaged(t *testing.T) {
	tests := []struct {
		name   string
		harm   func(s *Store, id string)
		listed bool // with a problem
		verify bool // only Verify finds it
	}{
		{"data gone", func(s *Store, id string) { os.Remove(s.data(id)) }, true, false},
		{"data shorter", func(s *Store, id string) {
			os.Chmod(s.data(id), 0o600)
			os.Truncate(s.data(id), 100)
		}, true, false},
		{"data a link", func(s *Store, id string) {
			os.Rename(s.data(id), s.data(id)+"x")
			os.Symlink(id+".sqfsx", s.data(id))
		}, true, false},
		{"manifest empty", func(s *Store, id string) { os.Truncate(s.manifest(id), 0) }, true, false},
		{"manifest of another", func(s *Store, id string) {
			data, _ := os.ReadFile(s.manifest(id))
			os.WriteFile(s.manifest(id), []byte(strings.ReplaceAll(string(data), id, "bbbbbbbbbbbb")), 0o600)
		}, true, false},
		{"manifest with a path", func(s *Store, id string) {
			data, _ := os.ReadFile(s.manifest(id))
			os.WriteFile(s.manifest(id), []byte(strings.Replace(string(data), `"id"`, `"layers":["../../etc/x"],"id"`, 1)), 0o600)
		}, true, false},
		{"a bit", func(s *Store, id string) {
			os.Chmod(s.data(id), 0o600)
			f, _ := os.OpenFile(s.data(id), os.O_RDWR, 0)
			f.WriteAt([]byte{0xff}, 200)
			f.Close()
		}, false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t, Options{})
			a := create(t, s, CreateOptions{})
			good := create(t, s, CreateOptions{})
			tt.harm(s, a.ID)
			list, err := s.List(t.Context())
			if err != nil || len(list) != 2 {
				t.Fatalf("got %v %v, want both", list, err)
			}
			for _, snap := range list {
				if (snap.Problem != "") != (snap.ID == a.ID && tt.listed) {
					t.Errorf("%s: got problem %q, listed: %v", snap.ID, snap.Problem, tt.listed)
				}
			}
			if err := s.Verify(t.Context(), a.ID, nil); !errors.Is(err, ErrDamaged) {
				t.Errorf("Verify: got %v, want ErrDamaged", err)
			}
			if _, err := s.Layers(a.ID); (err == nil) != tt.verify {
				t.Errorf("Layers: got %v, want it found: %v", err, !tt.verify)
			}
			if err := s.Verify(t.Context(), good.ID, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMissingLayer: a snapshot whose layer is gone is refused with its name.
func TestMissingLayer(t *testing.T) {
	s := open(t, Options{})
	a := create(t, s, CreateOptions{})
	b := create(t, s, CreateOptions{Layers: a.Chain()})
	os.Remove(s.data(a.ID))
	if _, err := s.Layers(b.ID); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), a.ID) {
		t.Errorf("got %v, want ErrDamaged that names %s", err, a.ID)
	}
}

var createSteps = []string{"pack", "sync", "rename", "manifest", "look again"}

// TestCreateKilled: killed before any step, the snapshot is there as a whole or
// not at all, and what is left is removed, at once where the process is known
// to be dead.
func TestCreateKilled(t *testing.T) {
	for i, step := range createSteps {
		t.Run(step, func(t *testing.T) {
			s := open(t, Options{})
			kept := create(t, s, CreateOptions{})
			runKilled(t, s, "create", upper(t), step)
			got := ids(t, s)
			want := 1
			if i == len(createSteps)-1 {
				want = 2
			}
			if len(got) != want || got[0] != kept.ID {
				t.Errorf("got %v, want %d snapshots", got, want)
			}
			for _, id := range got {
				if err := s.Verify(t.Context(), id, nil); err != nil {
					t.Error(err)
				}
			}
			if _, err := s.sweep(t.Context(), later(2*orphanAge)); err != nil {
				t.Fatal(err)
			}
			if left := names(t, s.Root()); len(left) != 2*want {
				t.Errorf("got %q left, want two files for each of %d", left, want)
			}
		})
	}
}

// TestCreateFails: an error at any step leaves nothing.
func TestCreateFails(t *testing.T) {
	for _, step := range createSteps {
		t.Run(step, func(t *testing.T) {
			stop := errors.New("stop")
			s := open(t, Options{step: func(name string) error {
				if name == step {
					return stop
				}
				return nil
			}})
			if _, err := s.Create(t.Context(), CreateOptions{Upper: upper(t)}); !errors.Is(err, stop) {
				t.Errorf("got %v, want the step's error", err)
			}
			if got := names(t, s.Root()); len(got) != 0 {
				t.Errorf("got %q left, want nothing", got)
			}
		})
	}
}

// TestUnreadable: a user's closed files are in the snapshot, as they are.
func TestUnreadable(t *testing.T) {
	if asUser(t) {
		return
	}
	up := upper(t)
	closed := filepath.Join(up, "closed")
	os.Mkdir(closed, 0o755)
	os.WriteFile(filepath.Join(closed, "f"), []byte("secret"), 0)
	os.Chmod(closed, 0)
	t.Cleanup(func() { os.Chmod(closed, 0o700) })
	s := open(t, Options{})
	snap, err := s.Create(t.Context(), CreateOptions{Upper: up})
	if errors.Is(err, hpcexec.ErrInvalid) && strings.Contains(err.Error(), "user namespaces") && noNamespaces() {
		t.Log("no user namespaces here: refused, as it must be")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(closed); err != nil || info.Mode().Perm() != 0 {
		t.Errorf("got %v %v: the directory itself was changed", info.Mode(), err)
	}
	dir := filepath.Join(t.TempDir(), "out")
	if err := s.Unpack(t.Context(), snap.ID, dir); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "closed")
	if info, err := os.Lstat(out); err != nil || info.Mode().Perm() != 0 {
		t.Errorf("got %v %v, want mode 0", info, err)
	}
	os.Chmod(out, 0o700)
	os.Chmod(filepath.Join(out, "f"), 0o600)
	if data, err := os.ReadFile(filepath.Join(out, "f")); string(data) != "secret" {
		t.Errorf("got %q %v, want the content", data, err)
	}
}

// noNamespaces says whether this machine forbids them to users.
func noNamespaces() bool {
	data, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
	if strings.TrimSpace(string(data)) == "0" || errors.Is(err, fs.ErrNotExist) {
		return true
	}
	data, _ = os.ReadFile("/proc/sys/kernel/unprivileged_userns_clone")
	if strings.TrimSpace(string(data)) == "0" {
		return true
	}
	data, _ = os.ReadFile("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
	return strings.TrimSpace(string(data)) == "1"
}
