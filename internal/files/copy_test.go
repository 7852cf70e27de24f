package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
)

// Everything that can be copied arrives as it was.
func TestTree(t *testing.T) {
	each(t, func(t *testing.T, d direction) {
		src, dst := t.TempDir(), t.TempDir()
		write(t, src, map[string]string{
			"a/x": "hello", "a/b/c/deep": "deep", "empty/": "", "a/zero": "",
			"bytes\xff\xfe\n\"": "no UTF-8", strings.Repeat("n", 255): "long name", "- -rf *": "x",
			"abs": "->/etc/passwd", "rel": "->a/x", "dangling": "->no\xffwhere", "up": "->../..", "todir": "->a",
			"secret": "x", "run": "x", "ro/f": "x",
			"chunk": string(random(chunk)), "chunk+1": string(random(chunk + 1)),
			"big": string(random(resumable + 12345)),
		})
		for path, mode := range map[string]os.FileMode{"secret": 0o600, "run": 0o755, "ro/f": 0o400, "ro": 0o555, "a/b": 0o700} {
			if err := os.Chmod(filepath.Join(src, path), mode); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() {
			os.Chmod(filepath.Join(src, "ro"), 0o755)
			os.Chmod(filepath.Join(dst, "new", "ro"), 0o755)
		})
		old := time.Unix(-5, 7)
		for _, path := range []string{"a/x", "a/b", "."} {
			if err := os.Chtimes(filepath.Join(src, path), old, old); err != nil {
				t.Fatal(err)
			}
		}
		got := d.mustCopy(t, src, filepath.Join(dst, "new"), Options{Verify: true})
		same(t, filepath.Join(dst, "new"), src)
		want := Summary{Files: 12, Dirs: 6, Links: 5, Bytes: got.Bytes, Took: got.Took}
		if fmt.Sprint(got) != fmt.Sprint(want) || got.Bytes < resumable {
			t.Errorf("summary: got %+v, want %+v", got, want)
		}
	})
}

// Many files, in many directories, need more than is kept open or in flight.
func TestMany(t *testing.T) {
	each(t, func(t *testing.T, d direction) {
		src, dst := t.TempDir(), t.TempDir()
		tree := map[string]string{}
		for i := range 1200 {
			tree[fmt.Sprintf("d%d/e%d/f%d", i%90, i%5, i)] = strings.Repeat("x", i)
		}
		write(t, src, tree)
		if got := d.mustCopy(t, src+"/.", dst, Options{}); got.Files != 1200 {
			t.Errorf("files: got %d, want 1200", got.Files)
		}
		same(t, dst, src)
	})
}

// Holes stay holes, also at the end, and where they come from resumed data.
func TestSparse(t *testing.T) {
	each(t, func(t *testing.T, d direction) {
		src, dst := t.TempDir(), t.TempDir()
		f, err := os.Create(filepath.Join(src, "sparse"))
		if err != nil {
			t.Fatal(err)
		}
		const size = 60 << 20
		f.WriteAt([]byte("first"), 20<<20+17)
		f.WriteAt([]byte("second"), 40<<20)
		f.Truncate(size)
		f.Close()
		got := d.mustCopy(t, filepath.Join(src, "sparse"), dst, Options{Verify: true})
		diff(t, look(t, filepath.Join(dst, "sparse")), look(t, filepath.Join(src, "sparse")))
		if b := blocks(t, filepath.Join(dst, "sparse")); b > 1<<20 {
			t.Errorf("blocks: got %d bytes, want nearly none", b)
		}
		if got.Bytes != size {
			t.Errorf("bytes: got %d, want %d", got.Bytes, size)
		}
	})
}

// The rules of cp: into a directory that is there, else under the name.
func TestTarget(t *testing.T) {
	tests := []struct {
		name     string
		src, dst string
		sync     bool
		want     string // names in the destination afterwards
		wantErr  error
	}{
		{name: "file to new name", src: "f", dst: "new", want: "dir dir/old file new"},
		{name: "file into directory", src: "f", dst: "dir", want: "dir dir/f dir/old file"},
		{name: "file into directory with slash", src: "f", dst: "dir/", want: "dir dir/f dir/old file"},
		{name: "file over file", src: "f", dst: "file", want: "dir dir/old file"},
		{name: "file into missing directory", src: "f", dst: "none/", wantErr: hpcexec.ErrInvalid},
		{name: "file below missing directory", src: "f", dst: "none/f", wantErr: hpcexec.ErrInvalid},
		{name: "file below file", src: "f", dst: "file/f", wantErr: hpcexec.ErrInvalid},
		{name: "directory to new name", src: "d", dst: "new", want: "dir dir/old file new new/x"},
		{name: "directory to new name with slash", src: "d/", dst: "new/", want: "dir dir/old file new new/x"},
		{name: "directory into directory", src: "d", dst: "dir", want: "dir dir/d dir/d/x dir/old file"},
		{name: "directory with slash into directory", src: "d/", dst: "dir", want: "dir dir/d dir/d/x dir/old file"},
		{name: "contents into directory", src: "d/.", dst: "dir", want: "dir dir/old dir/x file"},
		{name: "directory over file", src: "d", dst: "file", wantErr: hpcexec.ErrInvalid},
		{name: "link is copied as a link", src: "l", dst: "new", want: "dir dir/old file new"},
		{name: "link with slash is its directory", src: "l/", dst: "new", want: "dir dir/old file new new/x"},
		{name: "missing source", src: "none", dst: "new", wantErr: hpcexec.ErrInvalid},
		{name: "file with slash", src: "f/", dst: "new", wantErr: hpcexec.ErrInvalid},
		{name: "sync directory is the directory", sync: true, src: "d", dst: "dir", want: "dir dir/old dir/x file"},
		{name: "sync directory to new name", sync: true, src: "d/", dst: "new", want: "dir dir/old file new new/x"},
		{name: "sync file to file", sync: true, src: "f", dst: "file", want: "dir dir/old file"},
		{name: "sync file to directory", sync: true, src: "f", dst: "dir", wantErr: hpcexec.ErrInvalid},
		{name: "path with a zero byte", src: "f", dst: "a\x00b", wantErr: hpcexec.ErrInvalid},
	}
	each(t, func(t *testing.T, d direction) {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				src, dst := t.TempDir(), t.TempDir()
				write(t, src, map[string]string{"f": "f", "d/x": "x", "l": "->d"})
				write(t, dst, map[string]string{"file": "old", "dir/old": "old"})
				before := look(t, dst)
				_, err := d.copy(t, src+"/"+tt.src, dst+"/"+tt.dst, Options{Sync: tt.sync})
				if !errors.Is(err, tt.wantErr) {
					t.Fatalf("error: got %v, want %v", err, tt.wantErr)
				}
				if tt.wantErr != nil {
					diff(t, look(t, dst), before)
					return
				}
				if got := paths(t, dst); got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			})
		}
	})
}

// What can't be copied is listed, and the rest is copied.
func TestConflicts(t *testing.T) {
	each(t, func(t *testing.T, d direction) {
		src, dst := t.TempDir(), t.TempDir()
		write(t, src, map[string]string{"a": "file", "b/c": "in directory", "b/d/e": "deep", "z": "fine"})
		write(t, dst, map[string]string{"a/": "", "b": "file"})
		syscall.Mkfifo(filepath.Join(src, "pipe"), 0o600)
		sum, err := d.copy(t, src+"/.", dst, Options{})
		var partial *PartialError
		if !errors.As(err, &partial) || !errors.Is(err, hpcexec.ErrUnavailable) {
			t.Fatalf("error: got %v, want a PartialError", err)
		}
		failed := map[string]string{}
		for _, p := range sum.Failed {
			failed[p.Path] = p.Reason
		}
		if len(failed) != 2 || failed["a"] == "" || failed["b"] == "" || sum.FailedCount != 2 {
			t.Errorf("failed: got %v, want a and b", failed)
		}
		if len(sum.Special) != 1 || sum.Special[0].Path != "pipe" {
			t.Errorf("special: got %v, want pipe", sum.Special)
		}
		if got := paths(t, dst); got != "a b z" {
			t.Errorf("got %q, want %q", got, "a b z")
		}
	})
}

// A sync copies what differs, and takes what is gone away only if it is told.
func TestSync(t *testing.T) {
	each(t, func(t *testing.T, d direction) {
		src, dst := t.TempDir(), t.TempDir()
		write(t, src, map[string]string{"same": "1", "newer": "2", "size": "longer", "mode": "m", "sub/x": "x", "link": "->a", "dir/f": "f", "wasdir": "now a file"})
		d.mustCopy(t, src, dst, Options{Sync: true})
		same(t, dst, src)
		write(t, dst, map[string]string{"extra": "e", "extradir/a/b": "e", "sub/extra": "e"})
		os.WriteFile(src+"/newer", []byte("3"), 0o644)
		os.WriteFile(src+"/size", []byte("short"), 0o644)
		os.Chmod(src+"/mode", 0o700)
		os.Remove(src + "/link")
		os.Symlink("b", src+"/link")
		os.Remove(dst + "/wasdir")
		write(t, dst, map[string]string{"wasdir/with/things": "x"})
		before := look(t, dst)

		// A dry run changes nothing and tells.
		var ops []string
		tell := func(op, path string) { ops = append(ops, op+" "+path) }
		sum := d.mustCopy(t, src, dst, Options{Sync: true, Delete: true, DryRun: true, Action: tell})
		diff(t, look(t, dst), before)
		for _, want := range []string{"copy newer", "copy size", "copy link", "copy wasdir", "delete extra", "delete extradir", "delete sub/extra", "delete wasdir"} {
			if !strings.Contains("\n"+strings.Join(ops, "\n")+"\n", "\n"+want+"\n") {
				t.Errorf("dry run: got %q, want %q among them", ops, want)
			}
		}
		if len(ops) != 8 || sum.Deleted != 4 || sum.Files != 3 {
			t.Errorf("dry run: got %d steps and %+v, want 8, 4 deleted and 3 files", len(ops), sum)
		}

		// Without Delete all that is extra stays.
		sum, err := d.copy(t, src, dst, Options{Sync: true})
		if err == nil || sum.FailedCount != 1 || sum.Failed[0].Path != "wasdir" {
			t.Errorf("without delete: got error %v and failed %v, want wasdir", err, sum.Failed)
		}
		if sum.Files != 2 || sum.Links != 1 || sum.Deleted != 0 {
			t.Errorf("without delete: got %+v, want 2 files and a link", sum)
		}
		wantContent(t, dst+"/extradir/a/b", []byte("e"))

		sum = d.mustCopy(t, src, dst, Options{Sync: true, Delete: true})
		same(t, dst, src)
		if sum.Files != 1 || sum.Deleted != 8 {
			t.Errorf("with delete: got %+v, want 1 file and 8 deleted", sum)
		}
		sum = d.mustCopy(t, src, dst, Options{Sync: true, Delete: true})
		if sum.Files != 0 || sum.Bytes != 0 || sum.Deleted != 0 || sum.Skipped != 8 {
			t.Errorf("once more: got %+v, want 8 skipped", sum)
		}
	})
}

// Content that changed under the same size and time is seen by Checksum alone.
func TestChecksum(t *testing.T) {
	each(t, func(t *testing.T, d direction) {
		src, dst := t.TempDir(), t.TempDir()
		big := random(3 * chunk)
		put(t, src+"/small", []byte("new"))
		put(t, src+"/big", big)
		put(t, src+"/touched", []byte("same"))
		put(t, dst+"/small", []byte("old"))
		put(t, dst+"/big", append([]byte{^big[0]}, big[1:]...))
		os.WriteFile(dst+"/touched", []byte("same"), 0o640)
		sum := d.mustCopy(t, src, dst, Options{Sync: true})
		if sum.Files != 1 { // touched has another time
			t.Errorf("by time: got %+v, want 1 file", sum)
		}
		wantContent(t, dst+"/small", []byte("old"))
		os.WriteFile(dst+"/touched", []byte("same"), 0o640)
		sum = d.mustCopy(t, src, dst, Options{Sync: true, Checksum: true})
		if sum.Files != 2 || sum.Skipped != 1 {
			t.Errorf("by content: got %+v, want 2 files and 1 skipped", sum)
		}
		same(t, dst, src)
	})
}

// Where a part of the source can't be read, nothing is deleted there.
func TestDeleteIncomplete(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	deep := src
	for range maxDepth + 2 {
		deep = filepath.Join(deep, "d")
	}
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, src, map[string]string{"ok/f": "f"})
	d := directions()[0]
	d.copy(t, src, dst, Options{Sync: true})
	last := dst + strings.Repeat("/d", maxDepth-1)
	write(t, last, map[string]string{"stays": "x"})
	write(t, dst, map[string]string{"ok/goes": "x"})
	sum, err := d.copy(t, src, dst, Options{Sync: true, Delete: true})
	if err == nil || sum.FailedCount != 1 {
		t.Errorf("got error %v and failed %v, want one", err, sum.Failed)
	}
	wantContent(t, last+"/stays", []byte("x"))
	if _, err := os.Stat(dst + "/ok/goes"); !os.IsNotExist(err) {
		t.Errorf("ok/goes: got %v, want it deleted", err)
	}
}

// What hpcexec leaves behind is neither copied nor taken for the user's.
func TestOwnNames(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	write(t, src, map[string]string{partName("x", 1, 2): "p", tempName("x"): "t", "x": "x", ".x.hpcexec-part": "user's"})
	directions()[0].mustCopy(t, src, dst, Options{Sync: true, Delete: true})
	if got := paths(t, dst); got != ".x.hpcexec-part x" {
		t.Errorf("got %q", got)
	}
}

// A file that is there stays whole under its name until the new one is whole.
func TestReplaceAtOnce(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	put(t, src+"/f", random(2*resumable))
	write(t, dst, map[string]string{"f": "old"})
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if fi, err := os.Stat(dst + "/f"); err != nil || fi.Size() != 3 && fi.Size() != 2*resumable {
				t.Errorf("f: got %v, %v, want the old or the new file", fi, err)
				return
			}
		}
	})
	directions()[0].mustCopy(t, src+"/f", dst+"/f", Options{})
	close(stop)
	watching.Wait()
}

// Progress grows to what was copied.
func TestProgress(t *testing.T) {
	each(t, func(t *testing.T, d direction) {
		src, dst := t.TempDir(), t.TempDir()
		put(t, src+"/f", random(24<<20))
		var last Progress
		calls := 0
		d.mustCopy(t, src, dst+"/new", Options{Progress: func(p Progress) {
			if p.Bytes < last.Bytes || p.Bytes > p.AllBytes+1<<20 {
				t.Errorf("progress: got %+v after %+v", p, last)
			}
			last, calls = p, calls+1
		}})
		if calls == 0 {
			t.Error("progress: got no call")
		}
	})
}

// An end of which the agent can't be started, or isn't one.
func TestNoAgent(t *testing.T) {
	refused := hpcexec.Errorf(hpcexec.ErrNeedsLogin, "no")
	tests := []struct {
		name    string
		open    func(context.Context) (io.ReadWriteCloser, error)
		wantErr error
	}{
		{"not started", func(context.Context) (io.ReadWriteCloser, error) { return nil, refused }, hpcexec.ErrNeedsLogin},
		{"another program", func(context.Context) (io.ReadWriteCloser, error) {
			near, far := streams(t)
			go func() {
				far.Write([]byte("sh: hpcexec: not found, and more of this text\n"))
				far.Close()
			}()
			return near, nil
		}, hpcexec.ErrUnavailable},
		{"ends at once", func(context.Context) (io.ReadWriteCloser, error) {
			near, far := streams(t)
			far.Close()
			return near, nil
		}, hpcexec.ErrUnavailable},
		{"both here", nil, hpcexec.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			src, dst := t.TempDir(), t.TempDir()
			for _, ends := range [][2]End{{{Path: src, Open: tt.open}, {Path: dst}}, {{Path: src}, {Path: dst, Open: tt.open}}} {
				if _, err := Copy(ctx, ends[0], ends[1], Options{}); !errors.Is(err, tt.wantErr) {
					t.Errorf("got %v, want %v", err, tt.wantErr)
				}
			}
		})
	}
}
