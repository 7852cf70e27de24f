package snapshots

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	hpcexec "github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/atomicfile"
)

// Unpack makes a directory dir, which must not be there, with the state of a
// snapshot: one that can be the upper directory of an overlay right above the
// image. It is for runtimes that can't mount layers. It takes time and space
// like a copy.
//
// The directory appears when it is whole. What a crash leaves behind stands
// beside it and begins with ".new.", see [SweepUnpacked].
func (s *Store) Unpack(ctx context.Context, prefix, dir string) (err error) {
	if !filepath.IsAbs(dir) {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "unpack to %q: the path is not absolute", dir)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "unpack to %s: %w", dir, fs.ErrExist)
	}
	layers, err := s.Layers(prefix)
	if err != nil {
		return err
	}
	tool, err := s.find("unsquashfs")
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), newPrefix)
	if err != nil {
		return storeError(dir, err)
	}
	defer removeAll(tmp)
	if err := unpackAll(ctx, tool, layers, tmp); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return storeError(dir, err)
	}
	if err := s.opts.step.at("unpacked"); err != nil {
		return err
	}
	// The data may reach the disk later than its name. A copy can be made
	// anew, the snapshot is still there.
	if err := os.Rename(filepath.Join(tmp, "0"), dir); err != nil {
		return storeError(dir, err)
	}
	return atomicfile.SyncDir(filepath.Dir(dir))
}

// unpackAll makes tmp/0 of all layers, low to high.
func unpackAll(ctx context.Context, tool string, layers []string, tmp string) error {
	base := filepath.Join(tmp, "0")
	if err := unpackOne(ctx, tool, layers[0], base); err != nil {
		return err
	}
	for _, layer := range layers[1:] {
		next := filepath.Join(tmp, "1")
		if err := unpackOne(ctx, tool, layer, next); err != nil {
			return err
		}
		if err := merge(ctx, base, next); err != nil {
			return err
		}
		if err := removeAll(next); err != nil {
			return err
		}
	}
	return nil
}

// unpackOne unpacks one file into a new directory.
func unpackOne(ctx context.Context, tool, file, dir string) error {
	r := runner{path: tool, args: []string{"-no-progress", "-d", dir, file}, keep: 256 << 20}
	out, err := r.run(ctx)
	// It makes devices for the superuser only, and whiteouts are devices. It
	// says so of each, in all versions.
	devices, rest := parseDevices(out, dir)
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && len(devices) > 0 && !hasErrors(rest)) {
		return &toolError{tool: "unsquashfs", output: rest, err: err}
	}
	for _, path := range devices {
		if err := makeWhiteout(dir, path); err != nil {
			return err
		}
	}
	return setBits(ctx, tool, file, dir)
}

// setBits gives files and directories their setuid and setgid bits, which
// unsquashfs keeps back from all but the superuser.
func setBits(ctx context.Context, tool, file, dir string) error {
	r := runner{path: tool, args: []string{"-lln", file}, keep: 256 << 20}
	out, err := r.run(ctx)
	if err != nil {
		return &toolError{tool: "unsquashfs", output: out, err: err}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for path, bits := range parseBits(out) {
		info, err := root.Lstat(path)
		if err != nil || !info.Mode().IsRegular() && !info.IsDir() {
			continue // a part of a name that has a newline
		}
		if err := root.Chmod(path, info.Mode()|bits); err != nil {
			return err
		}
	}
	return nil
}

var lineRE = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^[-d]..([-xsS])..([-xsS])... \d+/\d+ +\d+ \d{4}-\d\d-\d\d \d\d:\d\d squashfs-root/(.+)$`)
})

// parseBits finds the setuid and setgid bits in a long list of unsquashfs.
func parseBits(out string) map[string]fs.FileMode {
	list := map[string]fs.FileMode{}
	for _, m := range lineRE().FindAllStringSubmatch(out, -1) {
		var bits fs.FileMode
		if m[1] != "x" && m[1] != "-" {
			bits |= fs.ModeSetuid
		}
		if m[2] != "x" && m[2] != "-" {
			bits |= fs.ModeSetgid
		}
		if bits != 0 {
			list[m[3]] = bits
		}
	}
	return list
}

var deviceRE = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?s)create_inode: could not create character device (.*?), because you're not superuser!\n`)
})

// parseDevices takes the paths of character devices that weren't made, relative
// to dir, out of the output of unsquashfs.
func parseDevices(out, dir string) (paths []string, rest string) {
	for _, m := range deviceRE().FindAllStringSubmatch(out, -1) {
		if p, ok := strings.CutPrefix(m[1], dir+"/"); ok {
			paths = append(paths, p)
		}
	}
	return paths, deviceRE().ReplaceAllString(out, "")
}

// hasErrors says whether there is more in the output than what unsquashfs says
// of itself.
func hasErrors(out string) bool {
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		known := line == "" || strings.HasPrefix(line, "Parallel unsquashfs:") || strings.HasPrefix(line, "created ") ||
			strings.Contains(line, " inodes (") && strings.HasSuffix(line, "to write")
		if !known {
			return true
		}
	}
	return false
}

// makeWhiteout makes the character device 0:0 at a path in dir. The directory
// that it is in keeps its mode and time.
func makeWhiteout(dir, path string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	parent, base := filepath.Dir(path), filepath.Base(path)
	info, err := root.Lstat(parent)
	if err != nil {
		return err
	}
	if mode := info.Mode(); mode.Perm()&0o700 != 0o700 {
		if err := root.Chmod(parent, mode|0o700); err != nil {
			return err
		}
		defer root.Chmod(parent, mode)
	}
	d, err := root.Open(parent)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Mknodat(int(d.Fd()), base, unix.S_IFCHR, int(unix.Mkdev(0, 0))); err != nil {
		return &fs.PathError{Op: "mknod", Path: path, Err: err}
	}
	return root.Chtimes(parent, info.ModTime(), info.ModTime())
}

// removeAll is os.RemoveAll for trees with directories that their owner closed.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			if info, err := d.Info(); err == nil && info.Mode().Perm()&0o700 != 0o700 {
				os.Chmod(path, 0o700)
			}
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// SweepUnpacked removes what crashed calls of [Store.Unpack] left in a
// directory, if it is older than age.
func SweepUnpacked(dir string, age time.Duration) error {
	left, err := filepath.Glob(filepath.Join(escapeGlob(dir), newPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < age {
			continue
		}
		if err := removeAll(path); err != nil {
			return err
		}
	}
	return nil
}
