package snapshots

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// grow makes entries in a directory: "name=content" a file, "name/" a
// directory, "name->target" a link, "-name" a whiteout, "!name" the marks of an
// opaque directory.
func grow(t *testing.T, dir string, entries ...string) string {
	t.Helper()
	try := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range entries {
		name, content, isFile := strings.Cut(e, "=")
		from, to, isLink := strings.Cut(e, "->")
		at := func(name string) string {
			p := filepath.Join(dir, name)
			try(os.MkdirAll(filepath.Dir(p), 0o755))
			return p
		}
		switch {
		case strings.HasPrefix(e, "-"):
			try(unix.Mknod(at(e[1:]), unix.S_IFCHR, 0))
		case strings.HasPrefix(e, "!"):
			try(os.MkdirAll(at(e[1:]), 0o755))
			try(unix.Mknod(at(e[1:]+"/"+opaqueDevice), unix.S_IFCHR, 0))
			try(os.WriteFile(at(e[1:]+"/"+opaqueFile), nil, 0o600))
		case strings.HasSuffix(e, "/"):
			try(os.MkdirAll(at(e), 0o755))
		case isLink:
			try(os.Symlink(to, at(from)))
		case isFile:
			try(os.WriteFile(at(name), []byte(content), 0o644))
		}
	}
	return dir
}

// short is a diff in a line: "+path", "~path", "-path".
func short(d Diff) string {
	var list []string
	for _, c := range d.Changes {
		list = append(list, map[string]string{"added": "+", "changed": "~", "removed": "-"}[c.Change]+c.Path)
	}
	return strings.Join(list, " ")
}

func TestDiff(t *testing.T) {
	image := []string{"etc/motd=hello", "etc/issue=x", "lib/a=1", "lib/sub/b=22", "lib/sub/c=333", "bin->usr/bin", "usr/bin/sh=sh"}
	tests := []struct {
		name  string
		upper []string
		want  string
	}{
		{"nothing", nil, ""},
		{"added", []string{"new/file=abc"}, "+/new +/new/file"},
		{"changed", []string{"etc/motd=other"}, "~/etc/motd"},
		{"same size, other content", []string{"etc/motd=jello"}, "~/etc/motd"},
		{"copied up, the same", []string{"etc/motd=hello"}, ""},
		{"deleted file", []string{"-etc/motd"}, "-/etc/motd"},
		{"deleted directory", []string{"-lib"}, "-/lib -/lib/a -/lib/sub -/lib/sub/b -/lib/sub/c"},
		{"opaque directory", []string{"!lib", "lib/a=1"}, "-/lib/sub -/lib/sub/b -/lib/sub/c"},
		{"opaque in two levels", []string{"!lib/sub", "lib/sub/d=4"}, "-/lib/sub/b -/lib/sub/c +/lib/sub/d"},
		{"file in place of a directory", []string{"lib=now a file"}, "~/lib -/lib/a -/lib/sub -/lib/sub/b -/lib/sub/c"},
		{"directory in place of a file", []string{"etc/motd/x=1"}, "~/etc/motd +/etc/motd/x"},
		{"link", []string{"bin->elsewhere"}, "~/bin"},
		{"the same link", []string{"bin->usr/bin"}, ""},
		{"names", []string{"new\nline=1", "sp ace \"q\"=2", "back\\slash=3", "\xff=4"}, "+/back\\slash +/new\nline +/sp ace \"q\" +/\xff"},
	}
	base := grow(t, t.TempDir(), image...)
	sqfs := filepath.Join(t.TempDir(), "image.sqfs")
	r := runner{path: tool(t, "mksquashfs"), args: []string{base, sqfs, "-no-progress"}}
	if out, err := r.run(t.Context()); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t, Options{})
			up := grow(t, t.TempDir(), tt.upper...)
			a := create(t, s, CreateOptions{Upper: up})
			for name, image := range map[string]string{"squashfs": sqfs, "directory": base} {
				d, err := s.Diff(t.Context(), Side{}, Side{ID: a.ID}, DiffOptions{Image: image})
				if err != nil || short(d) != tt.want {
					t.Errorf("%s image: got %q %v, want %q", name, short(d), err, tt.want)
				}
			}
			// A live overlay with the same upper is the same state.
			d, err := s.Diff(t.Context(), Side{ID: a.ID}, Side{Upper: up}, DiffOptions{Image: sqfs})
			if err != nil || short(d) != "" {
				t.Errorf("snapshot and its upper: got %q %v, want no difference", short(d), err)
			}
		})
	}
}

// TestDiffChain: what the second snapshot of a session did, and what undoing
// it would.
func TestDiffChain(t *testing.T) {
	s := open(t, Options{})
	image := grow(t, t.TempDir(), "lib/a=1", "lib/b=2", "top=x")
	a := create(t, s, CreateOptions{Upper: grow(t, t.TempDir(), "mine/x=11", "mine/y=22", "-lib")})
	b := create(t, s, CreateOptions{Layers: a.Chain(), Upper: grow(t, t.TempDir(), "-mine/x", "mine/y=333", "lib/c=9", "-top")})
	opts := DiffOptions{Image: image}
	for _, tt := range []struct {
		name     string
		from, to Side
		want     string
	}{
		{"second", Side{ID: a.ID}, Side{ID: b.ID}, "+/lib +/lib/c -/mine/x ~/mine/y -/top"},
		{"back", Side{ID: b.ID}, Side{ID: a.ID[:6]}, "-/lib -/lib/c +/mine/x ~/mine/y +/top"},
		{"both, from the image", Side{}, Side{ID: b.ID}, "-/lib/a -/lib/b +/lib/c +/mine +/mine/y -/top"},
		{"itself", Side{ID: b.ID}, Side{ID: b.ID}, ""},
	} {
		d, err := s.Diff(t.Context(), tt.from, tt.to, opts)
		if err != nil || short(d) != tt.want {
			t.Errorf("%s: got %q %v, want %q", tt.name, short(d), err, tt.want)
		}
	}
	d, err := s.Diff(t.Context(), Side{ID: a.ID}, Side{ID: b.ID}, opts)
	want := fmt.Sprint(Sum{2, 1}, Sum{1, 3}, Sum{2, 3})
	if got := fmt.Sprint(d.Added, d.Changed, d.Removed); err != nil || got != want {
		t.Errorf("sums: got %s %v, want %s", got, err, want)
	}
	// Without the image the names are known of what was removed from it.
	d, err = s.Diff(t.Context(), Side{}, Side{ID: b.ID}, DiffOptions{})
	if got, want := short(d), "+/lib +/lib/c +/mine -/mine/x +/mine/y -/top"; err != nil || got != want {
		t.Errorf("without the image: got %q %v, want %q", got, err, want)
	}
}

// TestDiffBits: permissions count, also those that squashfs and Go keep in
// different places.
func TestDiffBits(t *testing.T) {
	s := open(t, Options{})
	up := grow(t, t.TempDir(), "suid=1", "plain=1", "dir/")
	os.Chmod(filepath.Join(up, "suid"), 0o755|os.ModeSetuid)
	os.Chmod(filepath.Join(up, "dir"), 0o755|os.ModeSticky)
	a := create(t, s, CreateOptions{Upper: up})
	if d, err := s.Diff(t.Context(), Side{ID: a.ID}, Side{Upper: up}, DiffOptions{}); err != nil || short(d) != "" {
		t.Errorf("got %q %v, want no difference", short(d), err)
	}
	os.Chmod(filepath.Join(up, "suid"), 0o755)
	if d, err := s.Diff(t.Context(), Side{ID: a.ID}, Side{Upper: up}, DiffOptions{}); err != nil || short(d) != "~/suid" {
		t.Errorf("without setuid: got %q %v, want ~/suid", short(d), err)
	}
}

func TestDiffErrors(t *testing.T) {
	s := open(t, Options{})
	a := create(t, s, CreateOptions{})
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	cancel(why)
	junk := filepath.Join(t.TempDir(), "junk")
	os.WriteFile(junk, []byte(strings.Repeat("junk", 1000)), 0o600)
	if _, err := s.Diff(t.Context(), Side{}, Side{ID: "nothere"}, DiffOptions{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("no snapshot: got %v, want ErrNotFound", err)
	}
	if _, err := s.Diff(ctx, Side{}, Side{ID: a.ID}, DiffOptions{}); !errors.Is(err, why) {
		t.Errorf("cancelled: got %v, want the cause", err)
	}
	if _, err := s.Diff(t.Context(), Side{}, Side{ID: a.ID}, DiffOptions{Image: junk}); err == nil || !strings.Contains(err.Error(), junk) {
		t.Errorf("damaged image: got %v, want an error with its name", err)
	}
	// A damaged file is an error, not a crash.
	data := s.data(a.ID)
	b, _ := os.ReadFile(data)
	for i := 96; i < len(b); i += 7 {
		c := append([]byte(nil), b...)
		c[i] ^= 0xff
		os.Chmod(data, 0o600)
		os.WriteFile(data, c, 0o600)
		s.Diff(t.Context(), Side{}, Side{ID: a.ID}, DiffOptions{})
	}
}

func tool(t *testing.T, name string) string {
	t.Helper()
	s := open(t, Options{})
	p, err := s.find(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
