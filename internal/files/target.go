package files

import (
	"errors"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A target is where a receiver puts the top.
type target struct {
	tree  *tree  // its root is the top, or the directory that the top is in; nil in a dry run without one
	name  string // of a top that is no directory
	fresh bool   // the directory was made now
}

// findTarget finds where to put a top, as cp does: into a directory that is
// there, under the source's name, else under the name that was given. A sync
// makes what was given be the source.
func findTarget(j job, top kind) (target, error) {
	path := j.path
	if path == "" {
		path = "."
	}
	slash := strings.HasSuffix(path, "/") || strings.HasSuffix(path, "/.") || path == "." || path == ".."
	path = filepath.Clean(path)
	var st unix.Stat_t
	err := retry(func() error { return unix.Stat(path, &st) })
	isDir := err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
	inside := false
	switch {
	case isDir && !j.rules.sync && j.base != "":
		if !validName(j.base) {
			return target{}, invalid("%q is no name for a file", j.base)
		}
		path, inside = filepath.Join(path, j.base), true
	case isDir && top != kindDir:
		return target{}, invalid("it is a directory, and the source isn't").WithHint("write the whole name of the file")
	case slash && !isDir && (top != kindDir || err == nil):
		return target{}, invalid("no such directory").WithHint("make it first, or leave the slash out")
	}
	if top != kindDir {
		t, err := openTree(filepath.Dir(path), false)
		if err != nil {
			return target{}, inParent(err)
		}
		return target{tree: t, name: filepath.Base(path)}, nil
	}
	return targetDir(path, inside, j.rules.dry)
}

// targetDir makes the directory that the top becomes. inside: its last
// component is a name of the source, and where a link has that name it isn't
// followed.
func targetDir(path string, inside, dry bool) (target, error) {
	t, err := openTree(path, inside)
	if errors.Is(err, unix.ENOENT) {
		if dry {
			return target{fresh: true}, nil
		}
		if err := retry(func() error { return unix.Mkdir(path, 0o700) }); err != nil {
			return target{}, inParent(err)
		}
		t, err = openTree(path, true)
		if err == nil {
			return target{tree: t, fresh: true}, nil
		}
	}
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return target{}, invalid("%s is there and is no directory, but the source is one", filepath.Base(path))
	case err != nil:
		return target{}, err
	}
	return target{tree: t}, nil
}

// inParent is the error of a name that can't be made where it should be.
func inParent(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return invalid("the directory that it would be in is not there").WithHint("make it first")
	}
	return err
}
