package rundir

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/hostid"
)

func TestMain(m *testing.M) {
	if home := os.Getenv("RUNDIR_TEST_HOME"); home != "" { // see TestProcesses
		f := newFinder(home, os.Getenv("RUNDIR_TEST_BASE"))
		dir, err := f.get()
		fmt.Println(dir, err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func newFinder(home string, bases ...string) *finder {
	id, err := hostid.Self()
	if err != nil {
		panic(err)
	}
	return &finder{home: home, id: id, bases: bases, local: localFS, now: time.Now()}
}

// base is a directory with the permissions of /tmp.
func base(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mustGet(t *testing.T, f *finder) string {
	t.Helper()
	dir, err := f.get()
	if err != nil {
		t.Fatalf("got error %v, want a directory", err)
	}
	return dir
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	list, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestGet(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	dir, err := Get(home)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if len(dir) > maxDir {
		t.Errorf("%s has %d characters, want at most %d", dir, len(dir), maxDir)
	}
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
		t.Errorf("got %v %v, want a directory with mode 0700", info.Mode(), err)
	}
	again, err := Get(home)
	if again != dir || err != nil {
		t.Errorf("second call: got %s %v, want %s", again, err, dir)
	}
	for _, p := range glob(t, home+"/run/*") {
		if info, _ := os.Lstat(p); info.Mode().Perm() != 0o600 {
			t.Errorf("%s: got mode %v, want 0600", p, info.Mode())
		}
	}
	if other, err := Get(filepath.Join(t.TempDir(), "other")); other == dir || err != nil {
		t.Errorf("another home: got %s %v, want another directory", other, err)
	} else {
		os.RemoveAll(other)
	}
}

// TestRemade: whatever became of the directory or its pointer, the next call
// gives a good one and never one that isn't ours alone.
func TestRemade(t *testing.T) {
	tests := []struct {
		name string
		harm func(t *testing.T, dir, pointer string)
		same bool // the directory is still good
	}{
		{"nothing", func(*testing.T, string, string) {}, true},
		{"directory gone", func(t *testing.T, dir, _ string) { os.RemoveAll(dir) }, false},
		{"directory open to others", func(t *testing.T, dir, _ string) { os.Chmod(dir, 0o755) }, false},
		{"directory is a link", func(t *testing.T, dir, _ string) {
			os.Rename(dir, dir+"x")
			os.Symlink(dir+"x", dir)
		}, false},
		{"directory is a file", func(t *testing.T, dir, _ string) {
			os.RemoveAll(dir)
			os.WriteFile(dir, nil, 0o700)
		}, false},
		{"pointer gone", func(t *testing.T, _, p string) { os.Remove(p) }, false},
		{"pointer empty", func(t *testing.T, _, p string) { os.Truncate(p, 0) }, false},
		{"pointer open to others", func(t *testing.T, _, p string) { os.Chmod(p, 0o666) }, false},
		{"pointer elsewhere", func(t *testing.T, dir, p string) {
			data, _ := os.ReadFile(p)
			os.MkdirAll(dir+"/x", 0o700)
			os.WriteFile(p, []byte(strings.ReplaceAll(string(data), dir, dir+"/x")), 0o600)
		}, false},
	}
	if os.Geteuid() == 0 {
		for name, harm := range map[string]func(dir, pointer string){
			"directory of another user": func(dir, _ string) { os.Chown(dir, 65533, 65533) },
			"pointer of another user":   func(_, p string) { os.Chown(p, 65533, 65533) },
		} {
			tests = append(tests, tests[0])
			last := &tests[len(tests)-1]
			last.name, last.same = name, false
			last.harm = func(_ *testing.T, dir, p string) { harm(dir, p) }
		}
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			home, base := t.TempDir(), base(t)
			dir := mustGet(t, newFinder(home, base))
			list := glob(t, home+"/run/*.json")
			if len(list) != 1 {
				t.Fatalf("got pointers %v, want one", list)
			}
			tt.harm(t, dir, list[0])
			again := mustGet(t, newFinder(home, base))
			if (again == dir) != tt.same {
				t.Errorf("got %s after %s, want same: %v", again, dir, tt.same)
			}
			if info, err := os.Lstat(again); err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
				t.Errorf("got %v %v, want a directory with mode 0700", info, err)
			}
			if filepath.Dir(again) != base {
				t.Errorf("got %s, want a directory in %s", again, base)
			}
			if third := mustGet(t, newFinder(home, base)); third != again {
				t.Errorf("third call: got %s, want %s", third, again)
			}
		})
	}
}

// TestBases: a base directory that isn't fit is passed over, and if none is the
// error says why for each.
func TestBases(t *testing.T) {
	good, noSticky := base(t), t.TempDir()
	os.Chmod(noSticky, 0o777)
	remote := base(t)
	local := func(dir string) error {
		if strings.HasPrefix(dir, remote) {
			return errors.New("file system nfs isn't known to be local to the node")
		}
		return nil
	}
	missing := filepath.Join(t.TempDir(), "missing")
	f := newFinder(t.TempDir(), missing, noSticky, remote, good)
	f.local = local
	if dir := mustGet(t, f); filepath.Dir(dir) != good {
		t.Errorf("got %s, want one in %s", dir, good)
	}
	f = newFinder(t.TempDir(), missing, noSticky, remote)
	f.local = local
	_, err := f.get()
	if !errors.Is(err, hpcexec.ErrUnavailable) || hpcexec.Hint(err) == "" {
		t.Fatalf("got %v, want ErrUnavailable with a hint", err)
	}
	for _, want := range []string{"no such file", "no sticky bit", "nfs"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %q, want %q in it", err, want)
		}
	}
}

func TestHomeNotWritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o600)
	_, err := newFinder(file, base(t)).get()
	if !errors.Is(err, hpcexec.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
}

// TestPrivateTmp: where /tmp is another directory (a job's own), the runtime
// directory is another one, and neither view takes the other's pointer away.
func TestPrivateTmp(t *testing.T) {
	home, parent := t.TempDir(), t.TempDir()
	tmp := filepath.Join(parent, "tmp")
	mount := func(name string) { // stands for a mount: another inode under the same path
		os.Remove(tmp)
		os.Mkdir(filepath.Join(parent, name), 0o700)
		os.Symlink(name, tmp)
	}
	mount("login")
	login := mustGet(t, newFinder(home, tmp))
	mount("job")
	job := mustGet(t, newFinder(home, tmp))
	if job == login {
		t.Errorf("got %s in both views", job)
	}
	mount("login")
	if again := mustGet(t, newFinder(home, tmp)); again != login {
		t.Errorf("got %s, want %s again", again, login)
	}
}

// TestOtherBoots: what earlier boots of this machine left is removed, what may
// belong to another machine of the same name isn't.
func TestOtherBoots(t *testing.T) {
	home, base := t.TempDir(), base(t)
	before := newFinder(home, base)
	before.id.BootID = "11111111-0000-0000-0000-000000000000"
	oldDir := mustGet(t, before)
	os.WriteFile(filepath.Join(oldDir, "socket"), nil, 0o600)
	oldPointer := glob(t, home+"/run/*.json")[0]

	dir := mustGet(t, newFinder(home, base))
	if _, err := os.Lstat(oldDir); err == nil {
		t.Error("the directory of the earlier boot is still there")
	}
	if _, err := os.Lstat(oldPointer); err != nil {
		t.Error("a young pointer of a boot of the same name was removed")
	}
	past := time.Now().Add(-stale - time.Hour)
	os.Chtimes(oldPointer, past, past)
	os.RemoveAll(dir)
	mustGet(t, newFinder(home, base))
	if _, err := os.Lstat(oldPointer); err == nil {
		t.Error("the old pointer is still there")
	}
}

// TestKeptInUse: a pointer in use is never so old that it is swept.
func TestKeptInUse(t *testing.T) {
	home, base := t.TempDir(), base(t)
	dir := mustGet(t, newFinder(home, base))
	p := glob(t, home+"/run/*.json")[0]
	past := time.Now().Add(-stale)
	for _, file := range []string{p, dir, filepath.Join(dir, ownerFile)} {
		os.Chtimes(file, past, past)
	}
	mustGet(t, newFinder(home, base))
	for _, file := range []string{p, dir, filepath.Join(dir, ownerFile)} {
		if info, err := os.Lstat(file); err != nil || time.Since(info.ModTime()) > time.Minute {
			t.Errorf("%s: got %v %v, want it renewed", file, info.ModTime(), err)
		}
	}
}

// TestProcesses: any number of processes that need the directory at once get
// the same one, also where an earlier one is gone.
func TestProcesses(t *testing.T) {
	home, base := t.TempDir(), base(t)
	for round := range 4 {
		var mu sync.Mutex
		got := map[string]int{}
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), "RUNDIR_TEST_HOME="+home, "RUNDIR_TEST_BASE="+base)
				out, err := cmd.CombinedOutput()
				mu.Lock()
				defer mu.Unlock()
				got[fmt.Sprint(string(out), err)]++
			})
		}
		wg.Wait()
		if len(got) != 1 {
			t.Fatalf("round %d: got %v, want one answer", round, got)
		}
		dirs := glob(t, base+"/"+prefix+"*")
		if len(dirs) != 1 {
			t.Errorf("round %d: got directories %v, want one", round, dirs)
		}
		for _, d := range dirs {
			os.RemoveAll(d)
		}
	}
}

// TestCrash: after a crash at any step the next call works.
func TestCrash(t *testing.T) {
	for _, step := range []string{"make dir", "write owner", "write pointer"} {
		t.Run(step, func(t *testing.T) {
			home, base := t.TempDir(), base(t)
			f := newFinder(home, base)
			stop := errors.New("stop")
			f.step = func(name string) error {
				if name == step {
					return stop
				}
				return nil
			}
			if _, err := f.get(); !errors.Is(err, stop) {
				t.Fatalf("got %v, want the step's error", err)
			}
			if left := glob(t, base+"/*"); len(left) != 0 {
				t.Errorf("got %v left over after an error, want nothing", left)
			}
			dir := mustGet(t, newFinder(home, base))
			if again := mustGet(t, newFinder(home, base)); again != dir {
				t.Errorf("got %s, want %s", again, dir)
			}
		})
	}
}

// TestSlowRacer: a process that found no pointer and was slow doesn't win over
// those who made two since, though the number it takes is free again.
func TestSlowRacer(t *testing.T) {
	home, base := t.TempDir(), base(t)
	f := newFinder(home, base)
	want := ""
	f.step = func(name string) error {
		if name == "write pointer" && want == "" {
			os.RemoveAll(mustGet(t, newFinder(home, base)))
			want = mustGet(t, newFinder(home, base))
			if got := glob(t, home+"/run/*.json"); len(got) != 1 || !strings.HasSuffix(got[0], ".2.json") {
				t.Errorf("got %v, want number 2 alone", got)
			}
		}
		return nil
	}
	if got := mustGet(t, f); got != want {
		t.Errorf("got %s, want %s, which others use", got, want)
	}
}

func TestSocketPath(t *testing.T) {
	longest := "/var/tmp/" + prefix + strings.Repeat("x", randomLen)
	if len(longest) > maxDir {
		t.Fatalf("%s has %d characters, want at most %d", longest, len(longest), maxDir)
	}
	tests := []struct {
		name, in string
		kept     bool
	}{
		{"session", "train", true},
		{"master", "@ada+login=2", true},
		{"63 characters", strings.Repeat("n", maxName), true},
		{"64 characters", strings.Repeat("n", 64), len(longest) < maxDir},
		{"very long", strings.Repeat("n", 300), false},
		{"slash", "../x", false},
		{"percent", "a%h", false},
		{"space", "a b", false},
		{"empty", "", false},
		{"owner file", ownerFile, false},
		{"looks like a hash", "H-0123", false},
		{"temporary", ".tmp.x", false},
	}
	seen := map[string]string{}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := SocketPath(longest, tt.in)
			if (got == longest+"/"+tt.in) != tt.kept {
				t.Errorf("got %s, want name kept: %v", got, tt.kept)
			}
			if filepath.Dir(got) != longest {
				t.Errorf("got %s, want a file in %s", got, longest)
			}
			if n := len(got) + sshSuffix + 1; n > sunPath {
				t.Errorf("%s needs %d bytes, want at most %d", got, n, sunPath)
			}
			if other, ok := seen[got]; ok {
				t.Errorf("%q and %q have one path", other, tt.in)
			}
			seen[got] = tt.in
		})
	}
}

func TestLocalFS(t *testing.T) {
	if err := localFS("/proc"); err == nil {
		t.Error("got nil for /proc, want an error: only what is known is accepted")
	}
	if err := localFS("/dev/shm"); err != nil {
		t.Errorf("got %v for /dev/shm, want nil", err)
	}
	for _, magic := range []uint32{0x6969, 0x0bd00bd0, 0x47504653, 0x19830326, 0x65735546, 0x01021997} {
		if isLocal(magic) {
			t.Errorf("%s is taken for local", fsName(magic))
		}
	}
}
