package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUsage(t *testing.T) {
	o := create(t)
	before, err := o.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// 20 directories with 10 files of 5,000 bytes, two names for one more, a
	// sparse file, links that lead out.
	for i := range 20 {
		dir := filepath.Join(o.Upper(), fmt.Sprint("d", i))
		os.Mkdir(dir, 0o755)
		for j := range 10 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(j)), make([]byte, 5000), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	os.WriteFile(filepath.Join(o.Upper(), "two"), make([]byte, 100), 0o600)
	os.Link(filepath.Join(o.Upper(), "two"), filepath.Join(o.Upper(), "names"))
	os.WriteFile(filepath.Join(o.Upper(), "sparse"), nil, 0o600)
	os.Truncate(filepath.Join(o.Upper(), "sparse"), 1<<30)
	os.Symlink("/usr", filepath.Join(o.Upper(), "link"))
	os.Symlink(".", filepath.Join(o.Upper(), "loop"))
	unix.Mkfifo(filepath.Join(o.Upper(), "fifo"), 0o600)
	os.WriteFile(filepath.Join(o.Tmp(), "t"), make([]byte, 10), 0o600)

	u, err := o.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := u.Inodes-before.Inodes, int64(20+200+1+1+2+1+1); got != want {
		t.Errorf("got %d more inodes, want %d", got, want)
	}
	if got, want := u.Apparent-before.Apparent, int64(200*5000+100+1<<30+10); got != want {
		t.Errorf("got %d more bytes of size, want %d", got, want)
	}
	if got := u.Bytes - before.Bytes; got < 200*5000 || got > 64<<20 {
		t.Errorf("got %d more bytes on disk, want at least those of the files and not those of the holes", got)
	}
	if u.Unreadable != 0 {
		t.Errorf("got %d unreadable directories, want none", u.Unreadable)
	}
}

func TestUsageEnds(t *testing.T) {
	o := create(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	for i := range 100 {
		os.Mkdir(filepath.Join(o.Upper(), fmt.Sprint(i)), 0o700)
	}
	if _, err := o.Usage(ctx); !errors.Is(err, why) {
		t.Errorf("cancelled: got %v, want the cause", err)
	}
	os.RemoveAll(o.Dir())
	if _, err := o.Usage(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("gone: got %v, want fs.ErrNotExist", err)
	}
}

// TestUsageClosed: a directory that can't be listed is counted, and said.
func TestUsageClosed(t *testing.T) {
	if asUser(t) {
		return
	}
	o := create(t)
	closed := filepath.Join(o.Layer(), "work", "work")
	if err := os.Mkdir(closed, 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(closed, 0o700)
	u, err := o.Usage(t.Context())
	if err != nil || u.Unreadable != 1 {
		t.Errorf("got %+v %v, want one unreadable directory", u, err)
	}
}
