package snapshots

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	hpcexec "github.com/hpcexec/hpcexec"
)

// A Side is one of the two states that Diff compares.
type Side struct {
	// ID is a snapshot, or the beginning of its id; empty is the image alone.
	ID string

	// Upper, when set, is the upper directory of an overlay on top of it, an
	// absolute path. It may be in use: what vanishes meanwhile isn't there.
	Upper string
}

// DiffOptions say what lies beneath both sides.
type DiffOptions struct {
	// Image is the image of both: a file with a squashfs file system at
	// Offset, or a directory. Without one, a file that replaces one of the
	// image is told as added, and nothing is known of what was removed from
	// it but the name.
	Image  string
	Offset int64
}

// A Change is one path in which two states differ.
type Change struct {
	Path    string `json:"path"`   // absolute, as a session sees it
	Change  string `json:"change"` // "added", "changed", "removed"
	Type    string `json:"type"`   // "file", "directory", "link", "device", "pipe", "socket", "unknown"
	Size    int64  `json:"size"`   // of the file, now
	OldSize int64  `json:"old_size"`
}

// A Sum is how many paths there are of one kind of change. Bytes is the sum of
// the sizes now, of what was removed that of the sizes then.
type Sum struct {
	Count int64 `json:"count"`
	Bytes int64 `json:"bytes"`
}

// A Diff is how one state differs from another.
type Diff struct {
	Changes []Change `json:"changes"` // sorted by path
	Added   Sum      `json:"added"`
	Changed Sum      `json:"changed"`
	Removed Sum      `json:"removed"`

	// Unreadable are directories and files of a live overlay that couldn't be
	// read, by their permissions: what is in them isn't compared.
	Unreadable []string `json:"unreadable,omitempty"`
}

// Diff compares what a session would see in state a with what it would see in
// b. A path is changed when its type, its permissions, the target of a link or
// the content of a file differ; times and owners don't count. Files of the same
// size that come from different layers are read.
func (s *Store) Diff(ctx context.Context, a, b Side, opts DiffOptions) (_ Diff, err error) {
	d := &differ{ctx: ctx, s: s, trees: map[string]layer{}, known: opts.Image != ""}
	defer d.close()
	states := [2]*node{}
	for i, side := range []Side{a, b} {
		if states[i], err = d.state(side, opts); err != nil {
			if ctx.Err() != nil {
				return Diff{}, context.Cause(ctx)
			}
			return Diff{}, storeError(s.root, err)
		}
	}
	if err := d.children("", states[0], states[1]); err != nil {
		if ctx.Err() != nil {
			return Diff{}, context.Cause(ctx)
		}
		return Diff{}, storeError(s.root, err)
	}
	slices.SortFunc(d.out.Changes, func(x, y Change) int { return strings.Compare(x.Path, y.Path) })
	slices.Sort(d.out.Unreadable)
	d.out.Unreadable = slices.Compact(d.out.Unreadable)
	return d.out, nil
}

// A differ is one call of Diff.
type differ struct {
	ctx   context.Context // of the one call
	s     *Store
	trees map[string]layer // opened so far, by path
	known bool             // what the image holds is known
	out   Diff
}

// A node is one path of a state: where it comes from, and what is in it.
type node struct {
	tree     layer // nil for the top
	path     string
	info     fs.FileInfo
	gone     bool // a deletion of something unknown
	loaded   bool // else children are what the tree lists, untouched
	children map[string]*node
}

func (d *differ) close() {
	for _, t := range d.trees {
		t.Close()
	}
}

// tree opens a layer, once for both sides.
func (d *differ) tree(name string, offset int64) (layer, error) {
	if t := d.trees[name]; t != nil {
		return t, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	var t layer
	if info.IsDir() {
		t, err = openDir(name)
	} else {
		t, err = openSquash(name, offset)
	}
	if err != nil {
		return nil, err
	}
	d.trees[name] = t
	return t, nil
}

// state lays the layers of a side on each other.
func (d *differ) state(side Side, opts DiffOptions) (*node, error) {
	top := &node{path: ".", loaded: true, children: map[string]*node{}}
	if opts.Image != "" {
		t, err := d.tree(opts.Image, opts.Offset)
		if err != nil {
			return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "image %s: %w", opts.Image, err)
		}
		top = &node{tree: t, path: "."}
	}
	var layers []string
	if side.ID != "" {
		var err error
		if layers, err = d.s.Layers(side.ID); err != nil {
			return nil, err
		}
	}
	if side.Upper != "" {
		layers = append(layers, side.Upper)
	}
	for _, name := range layers {
		t, err := d.tree(name, 0)
		if err != nil {
			return nil, err
		}
		if err := d.apply(top, t, "."); err != nil {
			return nil, err
		}
	}
	return top, nil
}

// list lists a directory; a closed one of a live overlay counts as empty.
func (d *differ) list(t layer, dir string) ([]fs.FileInfo, error) {
	if d.ctx.Err() != nil {
		return nil, context.Cause(d.ctx)
	}
	infos, err := t.list(dir)
	if errors.Is(err, fs.ErrPermission) {
		d.out.Unreadable = append(d.out.Unreadable, absolute(dir))
		return nil, nil
	}
	return infos, err
}

// load fills in the children of an untouched directory of the image.
func (d *differ) load(n *node) error {
	if n.loaded {
		return nil
	}
	n.loaded, n.children = true, map[string]*node{}
	if n.info != nil && !n.info.IsDir() {
		return nil
	}
	infos, err := d.list(n.tree, n.path)
	for _, info := range infos {
		n.children[info.Name()] = &node{tree: n.tree, path: path.Join(n.path, info.Name()), info: info}
	}
	return err
}

// apply lays a directory of an upper over a directory of the state beneath. A
// directory that takes the place of a deletion or a file shows nothing of what
// lay beneath those, marked or not: here it is new.
func (d *differ) apply(dst *node, t layer, dir string) error {
	infos, err := d.list(t, dir)
	if err != nil {
		return err
	}
	marked := slices.ContainsFunc(infos, func(i fs.FileInfo) bool { return isMark(i.Name()) }) || t.attr(dir)
	if marked {
		dst.loaded, dst.children = true, map[string]*node{}
	} else if err := d.load(dst); err != nil {
		return err
	}
	for _, info := range infos {
		name := info.Name()
		old := dst.children[name]
		switch {
		case isMark(name):
		case whiteout(info):
			delete(dst.children, name)
			if !d.known && !marked {
				dst.children[name] = &node{tree: t, path: path.Join(dir, name), gone: true, loaded: true}
			}
		case info.IsDir():
			next := &node{tree: t, path: path.Join(dir, name), info: info, loaded: true, children: map[string]*node{}}
			if old != nil && !old.gone && old.info.IsDir() {
				if err := d.load(old); err != nil {
					return err
				}
				next.children = old.children
			}
			dst.children[name] = next
			if err := d.apply(next, t, next.path); err != nil {
				return err
			}
		default:
			dst.children[name] = &node{tree: t, path: path.Join(dir, name), info: info, loaded: true}
		}
	}
	return nil
}

func isMark(name string) bool { return name == opaqueDevice || name == opaqueFile }

// whiteout says whether an entry of an upper marks a deletion: a device, the
// only kind that a user without rights can make.
func whiteout(info fs.FileInfo) bool { return info.Mode()&fs.ModeDevice != 0 }

func absolute(dir string) string { return path.Join("/", dir) }

// children compares what is in two directories; either may be nil.
func (d *differ) children(dir string, a, b *node) error {
	names := map[string]bool{}
	for _, n := range []*node{a, b} {
		if n == nil {
			continue
		}
		if err := d.load(n); err != nil {
			return err
		}
		for name := range n.children {
			names[name] = true
		}
	}
	for name := range names {
		var x, y *node
		if a != nil {
			x = a.children[name]
		}
		if b != nil {
			y = b.children[name]
		}
		if err := d.compare(dir+"/"+name, x, y); err != nil {
			return err
		}
	}
	return nil
}

// compare compares one path and all beneath it.
func (d *differ) compare(name string, a, b *node) error {
	switch {
	case a == nil && b == nil, a != nil && b != nil && a.gone && b.gone, a != nil && a.gone && b == nil:
		return nil
	case a == nil && b.gone:
		d.add(Change{Path: name, Change: "removed", Type: "unknown"})
		return nil
	case b == nil || b.gone:
		kind, _ := kindOf(a.info.Mode())
		d.add(Change{Path: name, Change: "removed", Type: kind, OldSize: size(a)})
		return d.children(name, a, nil)
	case a == nil || a.gone:
		kind, _ := kindOf(b.info.Mode())
		d.add(Change{Path: name, Change: "added", Type: kind, Size: size(b)})
		return d.children(name, nil, b)
	}
	if a.tree == b.tree && a.path == b.path && !a.loaded && !b.loaded {
		return nil // the image's, on both sides
	}
	same, err := d.same(a, b)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if !same {
		kind, _ := kindOf(b.info.Mode())
		d.add(Change{Path: name, Change: "changed", Type: kind, Size: size(b), OldSize: size(a)})
	}
	return d.children(name, a, b)
}

func size(n *node) int64 {
	if n.info.Mode().IsRegular() {
		return n.info.Size()
	}
	return 0
}

func (d *differ) add(c Change) {
	d.out.Changes = append(d.out.Changes, c)
	sum, n := &d.out.Added, c.Size
	switch c.Change {
	case "changed":
		sum = &d.out.Changed
	case "removed":
		sum, n = &d.out.Removed, c.OldSize
	}
	sum.Count++
	sum.Bytes += n
}

// same says whether two entries are alike, without what is in a directory.
func (d *differ) same(a, b *node) (bool, error) {
	if a.tree == b.tree && a.path == b.path {
		return true, nil
	}
	kind, perm := kindOf(a.info.Mode())
	kind2, perm2 := kindOf(b.info.Mode())
	if kind != kind2 || perm != perm2 {
		return false, nil
	}
	switch kind {
	case "link":
		to, err := a.tree.link(a.path)
		if err != nil {
			return false, err
		}
		to2, err := b.tree.link(b.path)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return to == to2, err
	case "file":
		if a.info.Size() != b.info.Size() {
			return false, nil
		}
		return d.sameContent(a, b)
	}
	return true, nil
}

func (d *differ) sameContent(a, b *node) (bool, error) {
	var files [2]io.ReadCloser
	for i, n := range []*node{a, b} {
		f, err := n.tree.open(n.path)
		switch {
		case errors.Is(err, fs.ErrPermission):
			d.out.Unreadable = append(d.out.Unreadable, absolute(n.path))
			return true, nil
		case errors.Is(err, fs.ErrNotExist):
			return false, nil
		case err != nil:
			return false, err
		}
		defer f.Close()
		files[i] = f
	}
	var bufs [2][1 << 16]byte
	for {
		if d.ctx.Err() != nil {
			return false, context.Cause(d.ctx)
		}
		n, err := io.ReadFull(files[0], bufs[0][:])
		m, err2 := io.ReadFull(files[1], bufs[1][:])
		if !bytes.Equal(bufs[0][:n], bufs[1][:m]) {
			return false, nil
		}
		end, end2 := atEnd(err), atEnd(err2)
		switch {
		case err != nil && !end:
			return false, err
		case err2 != nil && !end2:
			return false, err2
		case end || end2:
			return true, nil
		}
	}
}

func atEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
