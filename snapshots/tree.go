package snapshots

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/sylabs/squashfs"
	squashfslow "github.com/sylabs/squashfs/low"
	"golang.org/x/sys/unix"
)

// A layer is one layer to read: a squashfs file or a directory. Paths are
// relative and have slashes; "." is the top.
type layer interface {
	list(dir string) ([]fs.FileInfo, error)
	link(name string) (string, error)
	open(name string) (io.ReadCloser, error)
	attr(dir string) bool // an attribute says that the directory is opaque
	Close() error
}

// A squashTree is a squashfs file, or one inside another file such as a SIF.
type squashTree struct {
	f *os.File
	r *squashfs.Reader

	dirs map[string]squashfslow.Directory // read so far
}

func openSquash(name string, offset int64) (_ *squashTree, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer guardRead(name, &err)
	r, err := squashfs.NewReaderAtOffset(f, offset)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &squashTree{f, r, map[string]squashfslow.Directory{}}, nil
}

// guardRead makes an error of what the reader stumbles over in a damaged file.
func guardRead(name string, err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%s: its file system is damaged: %v", name, r)
	}
}

func (t *squashTree) Close() error { return t.f.Close() }

// dir finds a directory. io/fs isn't used for it: it refuses names that aren't
// UTF-8.
func (t *squashTree) dir(name string) (squashfslow.Directory, error) {
	if name == "." {
		return t.r.Low.Root, nil
	}
	if d, ok := t.dirs[name]; ok {
		return d, nil
	}
	f, err := t.file(name)
	if err != nil {
		return squashfslow.Directory{}, err
	}
	d, err := f.ToDir(&t.r.Low)
	if err != nil {
		return squashfslow.Directory{}, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	t.dirs[name] = d
	return d, nil
}

func (t *squashTree) file(name string) (base squashfslow.FileBase, err error) {
	dir, err := t.dir(path.Dir(name))
	if err != nil {
		return base, err
	}
	for _, e := range dir.Entries {
		if e.Name == path.Base(name) {
			return t.r.Low.BaseFromEntry(e)
		}
	}
	return base, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

func (t *squashTree) list(dir string) (infos []fs.FileInfo, err error) {
	defer guardRead(t.f.Name(), &err)
	d, err := t.dir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range d.Entries {
		base, err := t.r.Low.BaseFromEntry(e)
		if err != nil {
			return nil, err
		}
		info, err := t.r.FileFromBase(base, nil).Stat()
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}

func (t *squashTree) link(name string) (target string, err error) {
	defer guardRead(t.f.Name(), &err)
	f, err := t.file(name)
	if err != nil {
		return "", err
	}
	return t.r.FileFromBase(f, nil).SymlinkPath(), nil
}

func (t *squashTree) open(name string) (_ io.ReadCloser, err error) {
	defer guardRead(t.f.Name(), &err)
	f, err := t.file(name)
	if err != nil {
		return nil, err
	}
	return guardedFile{t.r.FileFromBase(f, nil), t.f.Name()}, nil
}

type guardedFile struct {
	*squashfs.File
	name string
}

func (g guardedFile) Read(p []byte) (n int, err error) {
	defer guardRead(g.name, &err)
	return g.File.Read(p)
}

// attr is false: the attributes of a squashfs file aren't read. fuse-overlayfs
// leaves mark files too, and the kernel's overlay of a user without rights makes
// no opaque directories.
func (t *squashTree) attr(string) bool { return false }

// A dirTree is a directory that somebody may write to meanwhile: no link leads
// out of it.
type dirTree struct{ root *os.Root }

func openDir(name string) (*dirTree, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return &dirTree{root}, nil
}

func (t *dirTree) Close() error { return t.root.Close() }

func (t *dirTree) list(dir string) ([]fs.FileInfo, error) {
	d, err := t.root.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // gone meanwhile
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var infos []fs.FileInfo
	for _, name := range names {
		info, err := t.root.Lstat(path.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}

func (t *dirTree) link(name string) (string, error) { return t.root.Readlink(name) }

// open doesn't wait where a pipe has taken the place of the file.
func (t *dirTree) open(name string) (io.ReadCloser, error) {
	return t.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

func (t *dirTree) attr(dir string) bool {
	d, err := t.root.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer d.Close()
	for _, attr := range opaqueAttrs() {
		var b [8]byte
		if n, err := unix.Fgetxattr(int(d.Fd()), attr, b[:]); err == nil && n == 1 && b[0] == 'y' {
			return true
		}
	}
	return false
}

// kindOf is the type of a file in a word, and its permissions as unix has them:
// the reader of squashfs leaves the bits for setuid and such where they are on
// disk.
func kindOf(m fs.FileMode) (kind string, perm uint32) {
	perm = uint32(m & 0o7777)
	for _, b := range []struct {
		mode fs.FileMode
		bit  uint32
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if m&b.mode != 0 {
			perm |= b.bit
		}
	}
	switch {
	case m.IsDir():
		return "directory", perm
	case m&fs.ModeSymlink != 0:
		return "link", 0
	case m&fs.ModeDevice != 0:
		return "device", perm
	case m&fs.ModeNamedPipe != 0:
		return "pipe", perm
	case m&fs.ModeSocket != 0:
		return "socket", perm
	}
	return "file", perm
}
