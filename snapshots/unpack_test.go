package snapshots

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	hpcexec "github.com/hpcexec/hpcexec"
)

// tree makes files below dir. A name that ends in / is a directory; the content
// "whiteout" is the mark of a deletion, "opaque" in a directory's name/ that of
// one that hides what is beneath.
func tree(t *testing.T, dir string, files ...string) {
	t.Helper()
	for _, f := range files {
		name, content, _ := strings.Cut(f, "=")
		p := filepath.Join(dir, name)
		var err error
		switch {
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(p, 0o755)
			if err == nil && content == "opaque" {
				err = markOpaque(p)
			}
		case content == "whiteout":
			os.MkdirAll(filepath.Dir(p), 0o755)
			err = unix.Mknod(p, unix.S_IFCHR, 0)
		default:
			os.MkdirAll(filepath.Dir(p), 0o755)
			err = os.WriteFile(p, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// show is the opposite of tree.
func show(t *testing.T, dir string) string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		switch {
		case path == dir || d.Name() == opaqueDevice || d.Name() == opaqueFile:
		case d.IsDir() && opaque(path):
			list = append(list, name+"/=opaque")
		case d.IsDir():
			list = append(list, name+"/")
		case d.Type()&fs.ModeCharDevice != 0:
			list = append(list, name+"=whiteout")
		default:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			list = append(list, name+"="+string(data))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(list, " ")
}

// TestUnpack: two layers become one upper directory that shows the same over
// any image.
func TestUnpack(t *testing.T) {
	tests := []struct {
		name        string
		lower, over []string
		want        string
	}{
		{"apart", []string{"a=1"}, []string{"b=2"}, "a=1 b=2"},
		{"replaced", []string{"a=1", "d/a=1"}, []string{"a=2", "d/a=2"}, "a=2 d/ d/a=2"},
		{"deleted", []string{"a=1", "d/a=1"}, []string{"a=whiteout", "d=whiteout"}, "a=whiteout d=whiteout"},
		{"deleted in the image", []string{"a=whiteout"}, []string{"b=2"}, "a=whiteout b=2"},
		{"made again", []string{"a=whiteout"}, []string{"a=2"}, "a=2"},
		{"directory for a file", []string{"a=1"}, []string{"a/b=2"}, "a/=opaque a/b=2"},
		{"directory for a deletion", []string{"a=whiteout"}, []string{"a/b=2"}, "a/=opaque a/b=2"},
		{"file for a directory", []string{"a/b=1"}, []string{"a=2"}, "a=2"},
		{"merged", []string{"d/a=1", "d/e/x=1"}, []string{"d/b=2", "d/e/y=2"}, "d/ d/a=1 d/b=2 d/e/ d/e/x=1 d/e/y=2"},
		{"opaque above", []string{"d/a=1"}, []string{"d/=opaque", "d/b=2"}, "d/=opaque d/b=2"},
		{"opaque beneath", []string{"d/=opaque", "d/a=1"}, []string{"d/b=2"}, "d/=opaque d/a=1 d/b=2"},
		{"opaque new", []string{"a=1"}, []string{"d/=opaque", "d/b=2"}, "a=1 d/=opaque d/b=2"},
		{"odd names", []string{"nam\xff=1", "new\nline=1"}, []string{"new\nline=whiteout", "d\ne/x=whiteout"}, "d\ne/ d\ne/x=whiteout nam\xff=1 new\nline=whiteout"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t, Options{})
			one, two := t.TempDir(), t.TempDir()
			tree(t, one, tt.lower...)
			tree(t, two, tt.over...)
			a := create(t, s, CreateOptions{Upper: one})
			b := create(t, s, CreateOptions{Upper: two, Layers: a.Chain()})
			out := filepath.Join(t.TempDir(), "out")
			if err := s.Unpack(t.Context(), b.ID, out); err != nil {
				t.Fatal(err)
			}
			if got := show(t, out); got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			if left := names(t, filepath.Dir(out)); len(left) != 1 {
				t.Errorf("got %q beside it", left)
			}
		})
	}
}

// TestUnpackAsUser: what unsquashfs leaves to the superuser is done all the
// same: whiteouts, special bits, closed directories; and merged as well.
func TestUnpackAsUser(t *testing.T) {
	if asUser(t) {
		return
	}
	s := open(t, Options{})
	up, past := t.TempDir(), time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	tree(t, up, "gone=whiteout", "d/gone\nline=whiteout", "ro/gone=whiteout", "ro/f=1", "suid=1", "sg/f=1", "plain=1")
	os.Chmod(filepath.Join(up, "suid"), fs.ModeSetuid|0o755)
	os.Chmod(filepath.Join(up, "sg"), fs.ModeSetgid|0o750)
	if err := unix.Setxattr(filepath.Join(up, "plain"), "user.mine", []byte("v\x00\xff"), 0); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"d", "ro"} {
		os.Chtimes(filepath.Join(up, d), past, past)
	}
	os.Chmod(filepath.Join(up, "ro"), 0o555)
	t.Cleanup(func() { os.Chmod(filepath.Join(up, "ro"), 0o755) })
	a := create(t, s, CreateOptions{Upper: up})

	over := t.TempDir()
	tree(t, over, "ro/more=2", "sg/gone=whiteout")
	if err := unix.Setxattr(filepath.Join(over, "sg"), "user.dir", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	os.Chmod(filepath.Join(over, "ro"), 0o500)
	os.Chmod(filepath.Join(over, "sg"), fs.ModeSetgid|0o700)
	os.Chtimes(filepath.Join(over, "sg"), past, past)
	t.Cleanup(func() { os.Chmod(filepath.Join(over, "ro"), 0o755) })
	b := create(t, s, CreateOptions{Upper: over, Layers: a.Chain()})

	out := filepath.Join(t.TempDir(), "out")
	if err := s.Unpack(t.Context(), b.ID, out); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeAll(out) })
	if got, want := show(t, out), "d/ d/gone\nline=whiteout gone=whiteout plain=1 ro/ ro/f=1 ro/gone=whiteout ro/more=2 sg/ sg/f=1 sg/gone=whiteout suid=1"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for name, want := range map[string]fs.FileMode{"suid": fs.ModeSetuid | 0o755, "sg": fs.ModeDir | fs.ModeSetgid | 0o700, "ro": fs.ModeDir | 0o500, "d": fs.ModeDir | 0o755} {
		if info, err := os.Lstat(filepath.Join(out, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: got %v %v, want %v", name, info, err, want)
		}
	}
	for _, name := range []string{"d", "sg"} {
		if info, err := os.Lstat(filepath.Join(out, name)); err != nil || !info.ModTime().Equal(past) {
			t.Errorf("%s: got time %v, want %v", name, info.ModTime(), past)
		}
	}
	var buf [10]byte
	if n, err := unix.Getxattr(filepath.Join(out, "plain"), "user.mine", buf[:]); err != nil || string(buf[:n]) != "v\x00\xff" {
		t.Errorf("got attribute %q %v, want its bytes", buf[:n], err)
	}
	if n, err := unix.Getxattr(filepath.Join(out, "sg"), "user.dir", buf[:]); err != nil || string(buf[:n]) != "x" {
		t.Errorf("got attribute %q %v of a merged directory", buf[:n], err)
	}
}

func TestUnpackErrors(t *testing.T) {
	s := open(t, Options{})
	a := create(t, s, CreateOptions{})
	dir := t.TempDir()
	if err := s.Unpack(t.Context(), a.ID, dir); !errors.Is(err, fs.ErrExist) || !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("a directory that is there: got %v, want fs.ErrExist", err)
	}
	if err := s.Unpack(t.Context(), a.ID, "x"); !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("relative: got %v, want ErrInvalid", err)
	}
	if err := s.Unpack(t.Context(), "zzz", filepath.Join(dir, "x")); !errors.Is(err, ErrNotFound) {
		t.Errorf("none: got %v, want ErrNotFound", err)
	}
	os.Chmod(s.data(a.ID), 0o600)
	f, _ := os.OpenFile(s.data(a.ID), os.O_RDWR, 0)
	f.WriteAt(make([]byte, 90), 0)
	f.Close()
	if err := s.Unpack(t.Context(), a.ID, filepath.Join(dir, "x")); err == nil {
		t.Error("no squashfs: got nil, want an error")
	}
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("got %q left, want nothing", left)
	}
}

// TestUnpackKilled: killed before the end, the directory isn't there, and what
// is left is swept.
func TestUnpackKilled(t *testing.T) {
	s := open(t, Options{})
	a := create(t, s, CreateOptions{})
	parent := filepath.Join(t.TempDir(), "with [odd] *name")
	os.Mkdir(parent, 0o700)
	dir := filepath.Join(parent, "out")
	runKilled(t, s, "unpack", a.ID, "unpacked", "SNAPSHOTS_TEST_DIR="+dir)
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want no directory", err)
	}
	if err := SweepUnpacked(parent, time.Hour); err != nil || len(names(t, parent)) != 1 {
		t.Errorf("got %v and %q, want the young one kept", err, names(t, parent))
	}
	if err := SweepUnpacked(parent, -time.Hour); err != nil || len(names(t, parent)) != 0 {
		t.Errorf("got %v and %q, want nothing left", err, names(t, parent))
	}
	if err := s.Unpack(t.Context(), a.ID, dir); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(names(t, dir)); got != "[a dir]" {
		t.Errorf("got %s, want the files", got)
	}
}
