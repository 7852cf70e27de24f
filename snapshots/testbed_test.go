//go:build testbed

package snapshots

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const testImage = "/scratch/images/base.sif"

// workDir is a directory on the shared scratch file system.
func workDir(t *testing.T) string {
	t.Helper()
	scratch := filepath.Join("/scratch", os.Getenv("USER"))
	if _, err := os.Stat(testImage); err != nil {
		t.Fatalf("not on a node of the testbed: %v", err)
	}
	dir, err := os.MkdirTemp(scratch, "state-snap-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if d != nil && d.IsDir() {
				os.Chmod(p, 0o700)
			}
			return nil
		})
		os.RemoveAll(dir)
	})
	return dir
}

// newUpper makes what --overlay takes.
func newUpper(t *testing.T, dir string) string {
	t.Helper()
	for _, d := range []string{"upper", "work"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// inside runs a script in a container of the image with layers and, if there is
// one, an overlay on top.
func inside(t *testing.T, overlay string, layers []string, prog string, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args := []string{"-s", "exec", "--containall", "--no-home", "--cleanenv", "--no-eval", "--pwd", "/"}
	for _, l := range layers {
		args = append(args, "--overlay", l+":ro")
	}
	args = append(args, "--overlay", overlay, testImage, prog, "-c", script)
	cmd := exec.CommandContext(ctx, "apptainer", args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s\n%s", err, errs.String(), out.String())
	}
	return out.String()
}

// list is the whole tree of a container as a process in it sees it: kinds,
// modes, owners, times, links, attributes, content.
const list = `
import os, stat, hashlib, sys
# What the runtime makes or mounts anew each time.
skip = {b"/proc", b"/sys", b"/dev", b"/tmp", b"/var/tmp", b"/.singularity.d",
    b"/etc/passwd", b"/etc/group", b"/etc/resolv.conf", b"/etc/hosts", b"/etc/localtime"}
def one(p):
    st = os.lstat(p)
    f = [stat.filemode(st.st_mode), st.st_uid, st.st_gid]
    if stat.S_ISLNK(st.st_mode):
        f.append(os.readlink(p))
    if stat.S_ISREG(st.st_mode):
        f += [st.st_size, st.st_nlink, st.st_mtime_ns // 10**9] # squashfs has whole seconds
        if st.st_size < 1 << 22:
            try: f.append(hashlib.sha256(open(p, "rb").read()).hexdigest())
            except PermissionError: f.append("closed")
    if stat.S_ISDIR(st.st_mode) and p != b"/": # the root is a new overlay's
        f.append(st.st_mtime_ns // 10**9)
    try: f.append(sorted((k, os.getxattr(p, k, follow_symlinks=False)) for k in os.listxattr(p, follow_symlinks=False) if k.startswith("user.") and "overlay" not in k))
    except OSError as e: f.append(e.errno)
    print(repr(p), f)
def walk(d):
    if d in skip: return
    one(d)
    try: names = sorted(os.listdir(d))
    except PermissionError:
        print(repr(d), "closed")
        return
    for n in names:
        p = os.path.join(d, n)
        if stat.S_ISDIR(os.lstat(p).st_mode): walk(p)
        elif p not in skip: one(p)
walk(b"/")
`

// work is what a session does to files of its own and of the image.
const work = `set -e
mkdir -p /data/d; echo hello >/data/d/f; chmod 640 /data/d/f
ln /data/d/f /data/hard; ln -s d/f /data/sym; ln -s /nowhere /data/dangling
printf x >/data/nam$'\xff\xfe'; printf y >$'/data/new\nline'; printf z >'/data/ "q" it'\''s'
: >/data/zero; chmod 000 /data/zero; echo secret >/data/closed; chmod 000 /data/closed
mkdir /data/closeddir; echo in >/data/closeddir/f; chmod 000 /data/closeddir
truncate -s 1G /data/sparse; head -c 3000000 /dev/urandom >/data/big
mkfifo /data/fifo; mkdir -m 1777 /data/sticky; mkdir -m 2755 /data/setgid; touch /data/suid; chmod 4755 /data/suid
python3 -c 'import os; os.setxattr("/data/d/f", "user.mine", b"v\x00\xff")'
touch -d 2001-02-03T04:05:06.789012345 /data/d/f
# what comes from the image: removed, replaced, moved, changed
rm -rf /usr/share/doc; mkdir /usr/share/doc; echo new >/usr/share/doc/only
rm -rf /usr/lib/python3; mv /usr/share/perl5 /usr/share/perl5moved
rm /etc/motd; echo changed >>/etc/issue; chmod 700 /usr/share/misc; ln -sf /data /usr/games
rm /etc/debian_version; mkdir /etc/debian_version; touch /etc/debian_version/x
touch /gone; rm /gone; mkdir /emptied; touch /emptied/x; rm /emptied/x
`

// more is what the next session does to the state of the first.
const more = `set -e
rm -rf /data/d; mkdir /data/d; echo second >/data/d/g
rm /data/big; mv /data/sticky /data/sticky2; echo >>/data/hard
rm -rf /usr/share/doc; mkdir -p /usr/share/doc/again
rmdir /usr/share/perl5moved 2>/dev/null || rm -rf /usr/share/perl5moved
chmod 600 /data/closed; test "$(cat /data/closed)" = secret
rm -rf /etc/debian_version; echo 13 >/etc/debian_version
chmod 755 /data/closeddir; rm /data/closeddir/f
`

// TestReal: a state that went through a snapshot, and one that did twice, is
// what the session left, in each of several forks.
func TestReal(t *testing.T) {
	dir := workDir(t)
	s, err := Open(filepath.Join(dir, "store"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	first := newUpper(t, filepath.Join(dir, "first"))
	inside(t, first, nil, "bash", work)
	want := inside(t, first, nil, "python3", list)
	a, err := s.Create(t.Context(), CreateOptions{Upper: filepath.Join(first, "upper")})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", a)
	layers, err := s.Layers(a.ID)
	if err != nil {
		t.Fatal(err)
	}
	fork := newUpper(t, filepath.Join(dir, "fork"))
	other := newUpper(t, filepath.Join(dir, "other"))
	compare(t, "a fork", inside(t, fork, layers, "python3", list), want)

	inside(t, fork, layers, "bash", more)
	compare(t, "another fork, the first one written to", inside(t, other, layers, "python3", list), want)
	compare(t, "the session, its forks written to", inside(t, first, nil, "python3", list), want)

	want = inside(t, fork, layers, "python3", list)
	b, err := s.Create(t.Context(), CreateOptions{Upper: filepath.Join(fork, "upper"), Layers: a.Chain()})
	if err != nil {
		t.Fatal(err)
	}
	if layers, err = s.Layers(b.ID); err != nil {
		t.Fatal(err)
	}
	compare(t, "a fork of the fork", inside(t, newUpper(t, filepath.Join(dir, "third")), layers, "python3", list), want)

	// Without layers, for runtimes that can't mount them.
	plain := filepath.Join(dir, "plain")
	if err := os.MkdirAll(filepath.Join(plain, "work"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Unpack(t.Context(), b.ID, filepath.Join(plain, "upper")); err != nil {
		t.Fatal(err)
	}
	compare(t, "the fork, unpacked", inside(t, plain, nil, "python3", list), want)
	for _, id := range b.Chain() {
		if err := s.Verify(t.Context(), id, nil); err != nil {
			t.Error(err)
		}
	}
}

// compare shows the lines in which two lists differ.
func compare(t *testing.T, name, got, want string) {
	t.Helper()
	g, w := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(got) {
		g[line] = true
	}
	for line := range strings.Lines(want) {
		w[line] = true
	}
	if len(w) < 1000 {
		t.Fatalf("%s: a list of %d lines isn't that of an image", name, len(w))
	}
	var diff []string
	for line := range g {
		if !w[line] {
			diff = append(diff, "got  "+line)
		}
	}
	for line := range w {
		if !g[line] {
			diff = append(diff, "want "+line)
		}
	}
	if len(diff) > 0 {
		t.Errorf("%s differs in %d lines:\n%s", name, len(diff), strings.Join(diff[:min(len(diff), 40)], ""))
	}
}
