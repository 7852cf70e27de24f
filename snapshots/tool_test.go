package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
)

// fakeTool puts a script in place of mksquashfs. $real is the true one, $n how
// often it has been called, $dst the file to be made.
func fakeTool(t *testing.T, script string) (*Store, func() int) {
	t.Helper()
	real, err := (&Store{}).find("mksquashfs")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	body := "#!/bin/sh\ncase $1 in -version) exec " + real + " \"$@\";; esac\n" +
		"real=" + real + " dst=$2\necho x >>" + calls + "\nn=$(wc -l <" + calls + ")\n" + script + "\n"
	if err := os.WriteFile(filepath.Join(dir, "mksquashfs"), []byte(body), 0o755); err != nil {
		t.Fatal(err)
	}
	return open(t, Options{Path: dir}), func() int {
		data, _ := os.ReadFile(calls)
		return strings.Count(string(data), "\n")
	}
}

// TestToolErrors: what mksquashfs says in its one exit status becomes an error
// of its kind, or is tried again.
func TestToolErrors(t *testing.T) {
	const pass = `exec $real "$@"`
	tests := []struct {
		name, script string
		wantErr      error
		wantText     string
		wantCalls    int
		wantComp     string
	}{
		{"works", pass, nil, "", 1, "zstd"},
		{"older program", `case "$*" in *zstd*) echo 'FATAL ERROR: Compressor "zstd" is not supported!' >&2; exit 1;; esac; ` + pass, nil, "", 2, "gzip"},
		{"no compressor", `case "$*" in *zstd*) c=zstd;; *) c=gzip;; esac; echo "FATAL ERROR: Compressor \"$c\" is not supported!" >&2; exit 1`, nil, "gzip", 2, ""},
		{"disk full", `echo "Write failed because No space left on device" >&2; echo "FATAL ERROR:Failed to write to output filesystem" >&2; : >$dst; exit 1`, ErrFull, "No space", 1, ""},
		{"quota", `echo "Write failed because Disk quota exceeded" >&2; echo "FATAL ERROR:Failed to write" >&2; exit 1`, ErrFull, "quota", 1, ""},
		{"a file vanished once", `if [ $n = 1 ]; then echo "Failed to read file /x" >&2; exit 1; fi; ` + pass, nil, "", 2, "zstd"},
		{"files always vanish", `echo "Failed to read file /x" >&2; : >$dst; exit 1`, nil, "/x", attempts, ""},
		{"killed", `kill -9 $$`, nil, "killed", attempts, ""},
		{"other option", `echo "mksquashfs: invalid option" >&2; exit 1`, nil, "invalid option", attempts, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, calls := fakeTool(t, tt.script)
			snap, err := s.Create(t.Context(), CreateOptions{Upper: upper(t)})
			if tt.wantComp != "" {
				if err != nil || snap.Compression != tt.wantComp {
					t.Errorf("got %q %v, want %q", snap.Compression, err, tt.wantComp)
				}
			} else {
				if err == nil || tt.wantErr != nil && !errors.Is(err, tt.wantErr) || !strings.Contains(err.Error(), tt.wantText) {
					t.Errorf("got %v, want %v and %q in it", err, tt.wantErr, tt.wantText)
				}
				if left := names(t, s.Root()); len(left) != 0 {
					t.Errorf("got %q left, want nothing", left)
				}
			}
			if errors.Is(tt.wantErr, ErrFull) && (!errors.Is(err, hpcexec.ErrUnavailable) || hpcexec.Hint(err) == "") {
				t.Errorf("got %v, want kind ErrUnavailable and a hint", err)
			}
			if got := calls(); got != tt.wantCalls {
				t.Errorf("got %d calls, want %d", got, tt.wantCalls)
			}
		})
	}
}

// TestVanishing: a file of a live session that goes while the directory is
// packed is no reason to fail, nor to put an empty one in its place.
func TestVanishing(t *testing.T) {
	up := upper(t)
	os.WriteFile(filepath.Join(up, "short-lived"), []byte("x"), 0o600)
	s, calls := fakeTool(t, fmt.Sprintf(`if [ $n = 1 ]; then
	rm '%s/short-lived'; echo "Failed to read file %[1]s/short-lived" >&2; exit 1
fi
exec $real "$@"`, up))
	snap, err := s.Create(t.Context(), CreateOptions{Upper: up})
	if err != nil || calls() != 2 {
		t.Fatalf("got %v after %d calls, want nil after 2", err, calls())
	}
	dir := filepath.Join(t.TempDir(), "out")
	if err := s.Unpack(t.Context(), snap.ID, dir); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(names(t, dir)); got != "[a dir]" {
		t.Errorf("got %s, want the files that are there", got)
	}
}

// TestAgeBegins: data that waits for its manifest is young, however long it
// took to make.
func TestAgeBegins(t *testing.T) {
	s, _ := fakeTool(t, `$real "$@"; touch -d 2001-02-03 $dst`)
	snap := create(t, s, CreateOptions{})
	if info, err := os.Lstat(s.data(snap.ID)); err != nil || time.Since(info.ModTime()) > orphanAge/2 {
		t.Errorf("got %v %v, want a time of now", info.ModTime(), err)
	}
}

// TestCancelPack: the program ends with the context, and leaves nothing.
func TestCancelPack(t *testing.T) {
	s, _ := fakeTool(t, `: >$dst; echo started >$dst.flag; exec sleep 60`)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	_, err := s.Create(ctx, CreateOptions{Upper: upper(t), Progress: func(p Progress) {
		if flags, _ := filepath.Glob(filepath.Join(s.Root(), ".new.*.flag")); len(flags) > 0 {
			os.Remove(flags[0])
			cancel(why)
		}
	}})
	if !errors.Is(err, why) {
		t.Errorf("got %v, want the cause", err)
	}
	if left := names(t, s.Root()); len(left) != 0 {
		t.Errorf("got %q left, want nothing", left)
	}
}

// TestFind: PATH, then the usual places; a relative entry never counts.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\n"), 0o755)
	t.Chdir(dir)
	if got, err := (&Store{opts: Options{Path: ":.:" + dir}}).find("tool"); got != filepath.Join(dir, "tool") || err != nil {
		t.Errorf("got %q %v, want the one by its absolute path", got, err)
	}
	for _, path := range []string{".", ":", "/nowhere"} {
		_, err := (&Store{opts: Options{Path: path}}).find("tool")
		if !errors.Is(err, hpcexec.ErrUnavailable) || !strings.Contains(err.Error(), "/usr/bin") || hpcexec.Hint(err) == "" {
			t.Errorf("%q: got %v, want ErrUnavailable that says where it looked", path, err)
		}
	}
	if got, err := (&Store{opts: Options{Path: "/nowhere"}}).find("mksquashfs"); err != nil {
		t.Errorf("got %q %v, want the one of the system", got, err)
	}
}

func TestToolError(t *testing.T) {
	cause := errors.New("exit status 1")
	tests := []struct {
		name, output string
		want         error
		notWant      error
	}{
		{"space", "x\nWrite failed because No space left on device\n", syscall.ENOSPC, syscall.EDQUOT},
		{"quota", "Disk quota exceeded", syscall.EDQUOT, syscall.ENOSPC},
		{"other", "Could not open /x", cause, fs.ErrNotExist},
		{"nothing", "", cause, syscall.ENOSPC},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := error(&toolError{tool: "x", output: tt.output, err: cause})
			if !errors.Is(err, tt.want) || errors.Is(err, tt.notWant) || !errors.Is(err, cause) {
				t.Errorf("got %v, want it to match %v and not %v", err, tt.want, tt.notWant)
			}
		})
	}
}

// Outputs of real programs: 4.5.1 and 4.6.1, and of 4.4 by its manual.
const (
	endOf461 = `Parallel mksquashfs: Using 2 processors
Creating 4.0 filesystem on /tmp/o.sqfs, block size 131072.

Exportable Squashfs 4.0 filesystem, zstd compressed, data block size 131072
Filesystem size 3019.63 Kbytes (2.95 Mbytes)
	0.29% of uncompressed filesystem size (1051839.94 Kbytes)
Inode table size 2286 bytes (2.23 Kbytes)
	33.20% of uncompressed inode table size (6886 bytes)
Number of duplicate files found 1
Number of inodes 204
Number of files 152
`
	deviceErrors = `create_inode: could not create character device /t/out/data/.wh..opq, because you're not superuser!
create_inode: could not create character device /t/out/new
line, because you're not superuser!
Parallel unsquashfs: Using 2 processors
167 inodes (8335 blocks) to write


created 152 files
created 36 directories
created 2 symlinks
created 0 devices
created 1 fifo
created 0 sockets
created 1 hardlink
`
	longList = `Parallel unsquashfs: Using 2 processors
drwxr-xr-x 2001/2001               105 2026-11-30 22:17 squashfs-root
drwxr-sr-x 2001/2001                31 2026-11-30 22:17 squashfs-root/a b
crwx------ 2001/2001             0,  0 2026-11-30 22:17 squashfs-root/data/.wh..opq
-rwsr-xr-x 2001/2001                 3 2026-11-30 22:17 squashfs-root/suid
-rwSr-Sr-- 2001/2001                 3 2026-11-30 22:17 squashfs-root/both
lrwxrwxrwx 2001/2001                 6 2026-11-30 22:17 squashfs-root/l -> suid
drwxrwxrwt 2001/2001                 3 2026-11-30 22:17 squashfs-root/sticky
`
)

func TestParse(t *testing.T) {
	if got, want := parseStats(endOf461), (stats{inodes: 204, unpacked: 1077084098}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := parseStats("another version says nothing"); got != (stats{}) {
		t.Errorf("got %+v, want nothing", got)
	}
	for out, want := range map[string]string{
		"mksquashfs version 4.6.1 (2023/03/25)\ncopyright": "mksquashfs 4.6.1",
		"mksquashfs version 4.5.1-git (2022/03/17)":        "mksquashfs 4.5.1-git",
		"whatever": "mksquashfs",
	} {
		if got := parseVersion(out); got != want {
			t.Errorf("%q: got %q, want %q", out, got, want)
		}
	}
	paths, rest := parseDevices(deviceErrors, "/t/out")
	if fmt.Sprintf("%q", paths) != `["data/.wh..opq" "new\nline"]` || hasErrors(rest) {
		t.Errorf("got %q and the rest %q, want both and no error in the rest", paths, rest)
	}
	for _, bad := range []string{"Write on output file failed because No space left on device\n", "FATAL ERROR: x\n", "set_attributes: failed\n"} {
		if _, rest := parseDevices(deviceErrors+bad, "/t/out"); !hasErrors(rest) {
			t.Errorf("%q isn't seen as an error", bad)
		}
	}
	bits := parseBits(longList)
	if len(bits) != 3 || bits["a b"] != fs.ModeSetgid || bits["suid"] != fs.ModeSetuid || bits["both"] != fs.ModeSetuid|fs.ModeSetgid {
		t.Errorf("got %v", bits)
	}
}

func TestTail(t *testing.T) {
	w := &tail{max: 10}
	for i := range 1000 {
		fmt.Fprintf(w, "%03d ", i)
	}
	if got := w.String(); len(got) > 20 || !strings.HasSuffix(got, "998 999 ") {
		t.Errorf("got %q, want the end of it", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{endOf461, deviceErrors, longList, "", "create_inode: could not create character device , because you're not superuser!\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, out string) {
		if st := parseStats(out); st.inodes < 0 || st.unpacked < 0 {
			t.Errorf("got %+v", st)
		}
		paths, rest := parseDevices(out, "/t/out")
		if len(rest) > len(out) {
			t.Errorf("the rest grew")
		}
		for _, p := range paths {
			if !strings.Contains(out, p) {
				t.Errorf("got %q", p)
			}
		}
		for p := range parseBits(out) {
			if p == "" || strings.Contains(p, "\n") {
				t.Errorf("got %q", p)
			}
		}
		parseVersion(out)
		hasErrors(out)
	})
}

func FuzzParseTemp(f *testing.F) {
	for _, s := range []string{".new.bbbbbbbbbbbb.0123456789abcdef.12-345.sqfs", ".new.x", "", ".new.a.b.c-d.sqfs", "aaaaaaaaaaaa.json", ".trash.aaaaaaaaaaaa.json"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if o, ok := parseTemp(name); ok && (o.proc.PID <= 0 || len(o.host) != 16) {
			t.Errorf("%q: got %+v", name, o)
		}
		id, kind := classify(name)
		if kind != "" && kind != "new" && !validID(id) {
			t.Errorf("%q: got %q %q", name, id, kind)
		}
	})
}
