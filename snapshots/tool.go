package snapshots

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	hpcexec "github.com/hpcexec/hpcexec"
)

// usualDirs are looked at after PATH: an sbin directory isn't in the PATH of
// every user, and batch jobs have odd ones.
func usualDirs() []string {
	return []string{"/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/usr/local/sbin"}
}

// find finds a program of squashfs-tools.
func (s *Store) find(name string) (string, error) {
	path := s.opts.Path
	if path == "" {
		path = os.Getenv("PATH")
	}
	dirs := append(filepath.SplitList(path), usualDirs()...)
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) { // never a program of the current directory
			continue
		}
		p := filepath.Join(dir, name)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && unix.Access(p, unix.X_OK) == nil {
			return p, nil
		}
	}
	return "", hpcexec.Errorf(hpcexec.ErrUnavailable, "%s not found in %s", name, strings.Join(dirs, ":")).
		WithHint("snapshots need the package squashfs-tools; a module of the site may have it")
}

// A runner runs a program of squashfs-tools.
type runner struct {
	path string
	args []string

	// keep is how many bytes of the output are kept, the last ones; 0 is
	// 64 KiB.
	keep int

	// asOwner runs it in a user namespace in which it can read all files of
	// this user, whatever their permissions.
	asOwner bool
}

// run runs the program to its end. The output is that of both streams, bounded.
// The program dies with this process, and when ctx ends.
func (r *runner) run(ctx context.Context) (output string, err error) {
	out := &tail{max: r.keep}
	if out.max == 0 {
		out.max = 64 << 10
	}
	cmd := exec.CommandContext(ctx, r.path, r.args...)
	cmd.Dir = "/"
	// The environment has no part in the result: SOURCE_DATE_EPOCH would.
	cmd.Env = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if r.asOwner {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_DAC_READ_SEARCH}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The signal at the parent's death is that of the thread's.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err = cmd.Run()
	}()
	<-done
	if ctx.Err() != nil {
		return out.String(), context.Cause(ctx)
	}
	return out.String(), err
}

// tail keeps the last max bytes that are written to it.
type tail struct {
	buf []byte
	max int
}

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if len(t.buf) > 2*t.max {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-t.max:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return string(t.buf) }

// version is "mksquashfs 4.6.1", by its own words.
func (s *Store) version(ctx context.Context, path string) string {
	r := runner{path: path, args: []string{"-version"}}
	out, _ := r.run(ctx) // its exit status differs between versions
	return parseVersion(out)
}

var versionRE = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^((?:mk|un)squashfs) version ([0-9][0-9A-Za-z.\-]*)`)
})

// parseVersion reads the first line of mksquashfs -version.
func parseVersion(out string) string {
	m := versionRE().FindStringSubmatch(out)
	if m == nil {
		return "mksquashfs"
	}
	return m[1] + " " + m[2]
}

// stats is what mksquashfs says at its end.
type stats struct {
	inodes, unpacked int64
}

var (
	inodesRE   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^Number of inodes (\d+)`) })
	unpackedRE = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?m)% of uncompressed filesystem size \((\d+)\.(\d+) Kbytes\)`)
	})
)

// parseStats reads them; what isn't there is 0. They are for people.
func parseStats(out string) stats {
	var st stats
	if m := inodesRE().FindStringSubmatch(out); m != nil {
		st.inodes, _ = strconv.ParseInt(m[1], 10, 64)
	}
	if m := unpackedRE().FindStringSubmatch(out); m != nil {
		kb, err1 := strconv.ParseFloat(m[1]+"."+m[2], 64)
		if err1 == nil && kb < 1e15 {
			st.unpacked = int64(kb * 1024)
		}
	}
	return st
}

// toolError is a failed run of a program. Its kinds are found by what the
// program wrote, as it has one exit status for all.
type toolError struct {
	tool   string
	output string
	err    error
}

func (e *toolError) Error() string {
	return fmt.Sprintf("%s: %v: %s", e.tool, e.err, lastLines(e.output, 3))
}

func (e *toolError) Unwrap() []error {
	switch {
	case strings.Contains(e.output, "No space left on device"):
		return []error{e.err, syscall.ENOSPC}
	case strings.Contains(e.output, "Disk quota exceeded"):
		return []error{e.err, syscall.EDQUOT}
	}
	return []error{e.err}
}

// unsupported says whether the program was built without a compressor.
func (e *toolError) unsupported(comp string) bool {
	return strings.Contains(e.output, `Compressor "`+comp+`" is not supported`)
}

// lastLines are the last n lines that aren't empty, joined.
func lastLines(out string, n int) string {
	var list []string
	for line := range bytes.Lines([]byte(out)) {
		if l := strings.TrimSpace(string(line)); l != "" {
			list = append(list, l)
		}
	}
	if len(list) > n {
		list = list[len(list)-n:]
	}
	if len(list) == 0 {
		return "no word about why"
	}
	return strings.Join(list, "; ")
}

// noNamespace says whether a start failed since user namespaces aren't to be
// had here.
func noNamespace(err error) bool {
	var exit *exec.ExitError
	return err != nil && !errors.As(err, &exit)
}
