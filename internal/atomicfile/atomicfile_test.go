package atomicfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
)

// TestMain lets the test binary be a process that writes a file and is killed
// at a step; see TestKilled.
func TestMain(m *testing.M) {
	if path := os.Getenv("ATOMICFILE_TEST_PATH"); path != "" {
		w := writer{step: func(name string) error {
			if name == os.Getenv("ATOMICFILE_TEST_STEP") {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			return nil
		}}
		do := w.write
		if os.Getenv("ATOMICFILE_TEST_CREATE") != "" {
			do = w.create
		}
		if err := do(path, []byte("new"), 0o600); err != nil {
			panic(err)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "absent"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	for i, perm := range []fs.FileMode{0o600, 0o644} {
		want := fmt.Sprint("content ", i)
		if err := Write(path, []byte(want), perm); err != nil {
			t.Fatal(err)
		}
		if got := read(t, path); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if info, _ := os.Stat(path); info.Mode().Perm() != perm {
			t.Errorf("got mode %v, want %v: the umask has no part in it", info.Mode(), perm)
		}
	}
	if got := names(t, filepath.Dir(path)); len(got) != 1 {
		t.Errorf("got files %v, want one", got)
	}
	long := filepath.Join(filepath.Dir(path), strings.Repeat("n", 255))
	if err := Write(long, nil, 0o600); err != nil {
		t.Errorf("a name of 255 characters: %v", err)
	}
}

func TestWriteErrors(t *testing.T) {
	dir := t.TempDir()
	if err := Write(filepath.Join(dir, "no", "f"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: got %v, want fs.ErrNotExist", err)
	}
	os.Mkdir(filepath.Join(dir, "sub"), 0o700)
	if err := Write(filepath.Join(dir, "sub"), nil, 0o600); err == nil {
		t.Error("target is a directory: got nil, want an error")
	}
	stop := errors.New("stop")
	for _, step := range []string{"create temp", "write temp", "rename"} {
		path := filepath.Join(dir, "f")
		os.WriteFile(path, []byte("old"), 0o600)
		w := writer{step: func(name string) error {
			if name == step {
				return stop
			}
			return nil
		}}
		if err := w.write(path, []byte("new"), 0o600); !errors.Is(err, stop) {
			t.Errorf("%s: got %v, want the step's error", step, err)
		}
		if got := read(t, path); got != "old" {
			t.Errorf("%s: got %q, want the old content", step, got)
		}
	}
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("got %v, want no leftovers of failed writes", got)
	}
}

func TestCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			err := Create(path, fmt.Append(nil, i), 0o600)
			switch {
			case err == nil:
				won.Add(1)
				if got := read(t, path); got != fmt.Sprint(i) {
					t.Errorf("the winner %d finds %q", i, got)
				}
			case !errors.Is(err, fs.ErrExist):
				t.Errorf("got %v, want fs.ErrExist", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("got %d winners, want 1", won.Load())
	}
	if got := names(t, filepath.Dir(path)); len(got) != 1 {
		t.Errorf("got files %v, want one", got)
	}
}

// TestKilled: a writer killed before any step leaves the old content or the
// new one, and leftovers that are recognised.
func TestKilled(t *testing.T) {
	tests := []struct {
		step   string
		create bool
		want   string
	}{
		{"create temp", false, "old"},
		{"write temp", false, "old"},
		{"rename", false, "old"},
		{"sync dir", false, "new"},
		{"", false, "new"},
		{"create temp", true, "absent"},
		{"write temp", true, "absent"},
		{"link", true, "absent"},
		{"sync dir", true, "new"},
		{"", true, "new"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.step, tt.create), func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "f")
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "ATOMICFILE_TEST_PATH="+path, "ATOMICFILE_TEST_STEP="+tt.step)
			if tt.create {
				cmd.Env = append(cmd.Env, "ATOMICFILE_TEST_CREATE=1")
			} else {
				os.WriteFile(path, []byte("old"), 0o600)
			}
			out, err := cmd.CombinedOutput()
			if (err != nil) != (tt.step != "") {
				t.Fatalf("got %v %s", err, out)
			}
			if got := read(t, path); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			for _, n := range names(t, dir) {
				if n != "f" && !IsTemp(n) {
					t.Errorf("leftover %s isn't recognised", n)
				}
			}
			if _, err := Sweep(dir, time.Hour); err != nil {
				t.Fatal(err)
			}
			if len(names(t, dir)) == 0 && tt.want == "new" {
				t.Error("Sweep removed the file")
			}
			if _, err := Sweep(dir, -time.Minute); err != nil {
				t.Fatal(err)
			}
			for _, n := range names(t, dir) {
				if n != "f" {
					t.Errorf("Sweep left %s", n)
				}
			}
		})
	}
}

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	past := time.Now().Add(-2 * time.Hour)
	for name, old := range map[string]bool{".tmp.a.f": true, ".tmp.b.f": false, "f": true} {
		p := filepath.Join(dir, name)
		os.WriteFile(p, nil, 0o600)
		if old {
			os.Chtimes(p, past, past)
		}
	}
	n, err := Sweep(dir, time.Hour)
	if n != 1 || err != nil {
		t.Errorf("got %d %v, want 1 removed", n, err)
	}
	if got := fmt.Sprint(names(t, dir)); got != "[.tmp.b.f f]" {
		t.Errorf("got %s left, want the young one and the file", got)
	}
}

type state struct {
	Format int    `json:"format"`
	Name   string `json:"name"`
}

func TestJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.json")
	want := state{Format: 2, Name: "a"}
	if err := WriteJSON(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	var got state
	if err := ReadJSON(path, &got, 2); err != nil || got != want {
		t.Errorf("got %v %v, want %v", got, err, want)
	}
	if err := CreateJSON(path, want, 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want fs.ErrExist", err)
	}
	if err := WriteJSON(path, map[string]int{"x": 1}, 0o600); err == nil {
		t.Error("a file without a format version was written")
	}
	if err := ReadJSON(path, &got, 2); err != nil {
		t.Errorf("the refused write harmed the file: %v", err)
	}
}

func TestReadJSONErrors(t *testing.T) {
	tests := []struct {
		name, content string
		wantErr       error
	}{
		{"good", `{"format":1,"name":"x"}`, nil},
		{"more members", `{"format":1,"later":[1]}`, nil},
		{"newer", `{"format":3}`, hpcexec.ErrInvalid},
		{"empty", ``, ErrCorrupt},
		{"zeros", "\x00\x00\x00", ErrCorrupt}, // what a crash of the node leaves of an unsynced file
		{"cut off", `{"format":1,"na`, ErrCorrupt},
		{"no format", `{"name":"x"}`, ErrCorrupt},
		{"negative format", `{"format":-1}`, ErrCorrupt},
		{"other type", `{"format":1,"name":[]}`, ErrCorrupt},
		{"two values", `{"format":1} {}`, ErrCorrupt},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			os.WriteFile(path, []byte(tt.content), 0o600)
			var s state
			err := ReadJSON(path, &s, 2)
			if !errors.Is(err, tt.wantErr) {
				t.Errorf("got %v, want %v", err, tt.wantErr)
			}
			if err != nil && !strings.Contains(err.Error(), path) {
				t.Errorf("got %q, want the path in it", err)
			}
		})
	}
	if err := ReadJSON(filepath.Join(t.TempDir(), "f"), &state{}, 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, s := range []string{`{"format":1,"name":"x"}`, ``, `{"format":99}`, `{"format":1,"name":3}`, `[]`, `null`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var s state
		if err := Unmarshal("f", data, &s, 1); err == nil {
			if s.Format != 1 || !json.Valid(data) {
				t.Errorf("accepted %q as %v", data, s)
			}
		}
	})
}
