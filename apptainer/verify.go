package apptainer

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/hpcexec/hpcexec"
)

// verifyMarker is the file that VerifyScript writes through the overlay.
const verifyMarker = "/.hpcexec-verify"

// VerifyScript is a script for /bin/sh in the container whose output
// ParseVerify judges. It shows the root mount and writes and reads a file
// through the overlay. It uses nothing but the shell and rm.
func VerifyScript() string {
	return `while read -r dev dir type opts rest; do
  if [ "$dir" = / ]; then echo "root $dev $dir $type $opts"; break; fi
done </proc/self/mounts
if echo "$$" 2>/dev/null >` + verifyMarker + ` && read -r got <` + verifyMarker + ` && [ "$got" = "$$" ]; then
  rm -f ` + verifyMarker + ` && echo written
fi
echo done
`
}

// ParseVerify judges the output of VerifyScript. An error is of kind
// ErrUnavailable; it matches ErrOverlayDropped where the container's root is
// not a writable overlay.
func ParseVerify(out string) error {
	var root string
	written, done := false, false
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		switch rest, ok := strings.CutPrefix(line, "root "); {
		case ok && root == "":
			root = rest
		case line == "written":
			written = true
		case line == "done":
			done = true
		}
	}
	switch {
	case !done:
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "the container doesn't run commands: its check printed %q", clip(out, 200))
	case root == "":
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "the container's root mount is not to be seen in /proc/self/mounts")
	}
	if err := checkRoot(root); err != nil {
		return err
	}
	if !written {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "the container's root can't be written to").
			WithHint("check that the overlay's directory is yours and that its file system isn't full or over quota")
	}
	return nil
}

// checkRoot looks at lines of /proc/PID/mounts: the first one for "/" must be
// an overlay that is writable. SingularityCE drops the overlay in silence
// where its probe fails, for instance because /tmp is an overlay itself; the
// root is a read-only tmpfs then.
func checkRoot(mounts string) error {
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) < 4 || f[1] != "/" {
			continue
		}
		if f[2] != "overlay" && f[2] != "fuse.fuse-overlayfs" {
			e := hpcexec.Errorf(hpcexec.ErrUnavailable, "the runtime has dropped the overlay: the container's root is of type %s", f[2])
			e.Err = ErrOverlayDropped
			return e.WithHint("the kernel of this node doesn't let users mount overlays, or /tmp is one itself; ask the site for fuse-overlayfs, or use Apptainer instead of SingularityCE")
		}
		for opt := range strings.SplitSeq(f[3], ",") {
			if opt == "rw" {
				return nil
			}
		}
		e := hpcexec.Errorf(hpcexec.ErrUnavailable, "the container's root is read-only: %s", f[2])
		e.Err = ErrOverlayDropped
		return e.WithHint("check that the overlay is yours and writable (an ext3 image: mode 600)")
	}
	return hpcexec.Errorf(hpcexec.ErrUnavailable, "the container has no root mount")
}

// Verify runs one command in the instance (60 ms) that proves that commands
// run and, where the instance has an overlay, that its root is a writable one.
func (i *Instance) Verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	argv := i.Argv(ExecOptions{}, "/bin/sh", "-c", VerifyScript())
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = i.Environ(nil), "/"
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	what := "check of instance " + i.Name
	if cause := context.Cause(ctx); cause != nil || cmd.ProcessState == nil {
		return notStarted(ctx, what, err)
	}
	if !cmd.ProcessState.Success() && !strings.Contains(stdout.String(), "done") {
		return classify(what, stderr.String())
	}
	if i.Overlay == "" {
		return nil
	}
	return ParseVerify(stdout.String())
}
