package session

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStartUnblocked: what a shim is started with doesn't depend on what this
// process was started with.
func TestStartUnblocked(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var blocked, old unix.Sigset_t
	blocked.Val[0] = 1<<(unix.SIGTSTP-1) | 1<<(unix.SIGTTIN-1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &old); err != nil {
		t.Fatal(err)
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)

	cmd := exec.Command("grep", "SigBlk", "/proc/self/status")
	var out strings.Builder
	cmd.Stdout = &out
	if err := startUnblocked(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(out.String()); got != "SigBlk:\t0000000000000000" {
		t.Errorf("got %q, want no signal blocked", got)
	}
	var now unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, nil, &now); err != nil || now.Val[0]&blocked.Val[0] != blocked.Val[0] {
		t.Errorf("this thread's mask: got %#x, %v, want it as it was", now.Val[0], err)
	}
}
