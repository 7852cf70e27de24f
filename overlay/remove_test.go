package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asUser runs the test again in a process of an ordinary user where this one is
// the superuser's, whom permissions don't stop. It says whether it did.
func asUser(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return false
	}
	const uid = 65533
	dir, err := os.MkdirTemp("/tmp", "as-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin := filepath.Join(dir, "test")
	if err := copyFile(bin, os.Args[0]); err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(dir, "tmp")
	for _, err := range []error{os.Chmod(dir, 0o755), os.Mkdir(tmp, 0o700), os.Chown(tmp, uid, uid)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = tmp
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as uid %d: %v\n%s", uid, err, out)
	}
	return true
}

func copyFile(dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// fill makes a tree that is hard to remove.
func fill(t *testing.T, o *Overlay, outside string) {
	t.Helper()
	up := o.Upper()
	closed := filepath.Join(up, "closed")
	os.MkdirAll(filepath.Join(closed, "in"), 0o755)
	os.WriteFile(filepath.Join(closed, "in", "f"), nil, 0)
	os.Mkdir(filepath.Join(closed, "work"), 0)
	os.Symlink(outside, filepath.Join(closed, "out"))
	os.Symlink(outside, filepath.Join(up, "out"))
	os.Symlink(filepath.Join(outside, "f"), filepath.Join(up, "outfile"))
	os.Link(filepath.Join(outside, "f"), filepath.Join(up, "hard"))
	os.WriteFile(filepath.Join(up, "nam\xff\n-rf"), nil, 0o600)
	unix.Mkfifo(filepath.Join(up, "fifo"), 0o600)
	unix.Mknod(filepath.Join(up, "whiteout"), unix.S_IFCHR, 0)
	for i := range 1500 {
		os.WriteFile(filepath.Join(closed, "in", fmt.Sprint(i)), nil, 0o600)
	}
	os.Chmod(filepath.Join(closed, "in"), 0o555)
	os.Chmod(closed, 0)
	os.Mkdir(filepath.Join(o.Layer(), "work", "work"), 0)

	// Deeper than a path or a process's open files can be.
	d, err := os.Open(up)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if err := unix.Mkdirat(int(d.Fd()), "deep", 0o500); err != nil && !errors.Is(err, unix.EACCES) {
			t.Fatal(err)
		}
		fd, err := unix.Openat(int(d.Fd()), "deep", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Fchmod(fd, 0o700)
		d.Close()
		d = os.NewFile(uintptr(fd), "deep")
	}
	d.Close()
}

func TestRemove(t *testing.T) {
	if asUser(t) {
		return
	}
	outside := t.TempDir()
	os.WriteFile(filepath.Join(outside, "f"), []byte("keep"), 0o600)
	o := create(t)
	fill(t, o, outside)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = 300 // fewer than the tree is deep
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	if err := o.Remove(t.Context(), AcquireOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := names(t, filepath.Dir(o.Dir())); len(got) != 0 {
		t.Errorf("got %q left, want nothing", got)
	}
	if data, err := os.ReadFile(filepath.Join(outside, "f")); string(data) != "keep" {
		t.Errorf("what a link led to: got %q %v, want it kept", data, err)
	}
	if err := o.Remove(t.Context(), AcquireOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("again: got %v, want fs.ErrNotExist", err)
	}
}

// TestRemoveTreeLink: a link in place of the directory isn't followed.
func TestRemoveTreeLink(t *testing.T) {
	dir := t.TempDir()
	os.Mkdir(filepath.Join(dir, "real"), 0o700)
	os.WriteFile(filepath.Join(dir, "real", "f"), nil, 0o600)
	os.Symlink("real", filepath.Join(dir, "link"))
	if err := removeTree(t.Context(), filepath.Join(dir, "link")); err == nil {
		t.Error("got nil, want an error")
	}
	if _, err := os.Lstat(filepath.Join(dir, "real", "f")); err != nil {
		t.Errorf("what the link led to: %v", err)
	}
}

func TestRemoveInUse(t *testing.T) {
	o := create(t)
	l := acquire(t, o, quick(nodeA))
	if err := o.Remove(t.Context(), quick(nodeB)); !errors.Is(err, ErrInUse) {
		t.Errorf("got %v, want ErrInUse", err)
	}
	if _, err := Open(o.Dir()); err != nil {
		t.Errorf("it is gone all the same: %v", err)
	}
	wantLost(t, l, false)
	l.Release()
	if err := o.Remove(t.Context(), quick(nodeB)); err != nil {
		t.Error(err)
	}
}

// TestRemoveKilled: killed before any step, the overlay is there as a whole or
// gone, and Sweep removes what is left.
func TestRemoveKilled(t *testing.T) {
	for step, gone := range map[string]bool{"rename": false, "sync parent": true, "delete": true} {
		t.Run(step, func(t *testing.T) {
			o := create(t)
			os.WriteFile(filepath.Join(o.Upper(), "f"), []byte("x"), 0o600)
			runKilled(t, "remove", o.Dir(), step)
			if _, err := Open(o.Dir()); gone != errors.Is(err, fs.ErrNotExist) || !gone && err != nil {
				t.Errorf("got %v, want gone: %v", err, gone)
			}
			n, err := Sweep(t.Context(), filepath.Dir(o.Dir()), time.Hour)
			if want := map[bool]int{true: 1}[gone]; n != want || err != nil {
				t.Errorf("got %d removed, %v, want %d", n, err, want)
			}
			if left := names(t, filepath.Dir(o.Dir())); gone != (len(left) == 0) {
				t.Errorf("got %q left", left)
			}
			if !gone {
				if err := o.Remove(t.Context(), AcquireOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestSweepOthers: only what is recognised is removed.
func TestSweepOthers(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"o", ".hidden", ".trash.x", ".new.y"} {
		os.MkdirAll(filepath.Join(dir, n, "sub"), 0o700)
	}
	os.WriteFile(filepath.Join(dir, ".trash.file"), nil, 0o600)
	os.Symlink(filepath.Join(dir, "o"), filepath.Join(dir, ".trash.link"))
	if n, err := Sweep(t.Context(), dir, time.Hour); n != 1 || err != nil {
		t.Errorf("got %d %v, want one removed", n, err)
	}
	if got := fmt.Sprint(names(t, dir)); got != "[.hidden .new.y .trash.file .trash.link o]" {
		t.Errorf("got %s", got)
	}
	if n, err := Sweep(t.Context(), filepath.Join(dir, "none"), 0); n != 0 || err != nil {
		t.Errorf("no directory: got %d %v, want 0 and nil", n, err)
	}
}

func TestRemoveCancelled(t *testing.T) {
	o := create(t)
	ctx, cancel := context.WithCancel(t.Context())
	opts := quick(nodeA)
	opts.step = func(name string) error {
		if name == "delete" {
			cancel()
		}
		return nil
	}
	if err := o.Remove(ctx, opts); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if _, err := Open(o.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want it gone by name", err)
	}
	if n, err := Sweep(t.Context(), filepath.Dir(o.Dir()), 0); n != 1 || err != nil {
		t.Errorf("got %d %v, want the rest swept", n, err)
	}
}
