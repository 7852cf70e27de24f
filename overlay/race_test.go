package overlay

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hpcexec/hpcexec/internal/hostid"
)

// TestProcessDies: the lease of a killed process is free at once, unless a
// helper of it lives.
func TestProcessDies(t *testing.T) {
	o := create(t)
	cmd, end := held(t, o.Dir())
	_, err := o.Acquire(t.Context(), AcquireOptions{})
	var use *InUseError
	if !errors.As(err, &use) || use.Holder.Proc.PID != cmd.Process.Pid || use.Orphans {
		t.Fatalf("got %v, want an InUseError with pid %d", err, cmd.Process.Pid)
	}
	end()
	if st, err := o.Status(); !st.Held || !st.Dead || err != nil {
		t.Errorf("got %+v %v, want held by a dead process", st, err)
	}
	acquire(t, o, AcquireOptions{}).Release()

	helper := exec.Command("sleep", "60")
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		helper.Process.Kill()
		helper.Wait()
	})
	defer stop()
	p, err := hostid.Find(helper.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	_, end = held(t, o.Dir(), "OVERLAY_TEST_HELPER="+p.String())
	end()
	_, err = o.Acquire(t.Context(), AcquireOptions{})
	if !errors.As(err, &use) || !use.Orphans || len(use.Holder.Helpers) != 1 || use.Holder.Helpers[0] != p {
		t.Fatalf("got %v, want an InUseError with the helper", err)
	}
	stop()
	acquire(t, o, AcquireOptions{})
}

// TestLeaseKilled: killed at any step of taking, beating, releasing, the next
// process gets the lease.
func TestLeaseKilled(t *testing.T) {
	for _, step := range []string{"take", "verify", "remove old", "beat", "release"} {
		t.Run(step, func(t *testing.T) {
			o := create(t)
			acquire(t, o, AcquireOptions{}).Release()
			runKilled(t, "lease", o.Dir(), step)
			acquire(t, o, AcquireOptions{})
			if got := leases(t, o); len(got) != 1 {
				t.Errorf("got %v, want one file", got)
			}
		})
	}
}

// TestLeaseStepFails: an error at any step of taking leaves nothing taken.
func TestLeaseStepFails(t *testing.T) {
	for _, step := range []string{"take", "verify", "remove old"} {
		t.Run(step, func(t *testing.T) {
			o := create(t)
			acquire(t, o, AcquireOptions{}).Release()
			opts := quick(nodeA)
			opts.step = func(name string) error {
				if name == step {
					return &fs.PathError{Op: "x", Path: "y", Err: syscall.EIO}
				}
				return nil
			}
			if _, err := o.Acquire(t.Context(), opts); !errors.Is(err, syscall.EIO) {
				t.Errorf("got %v, want EIO", err)
			}
			acquire(t, o, AcquireOptions{})
		})
	}
}

// TestRace: of many processes one writes at a time, though some die with the
// lease in hand.
func TestRace(t *testing.T) {
	o := create(t)
	const procs, rounds = 12, 6
	var won atomic.Int32
	var wg sync.WaitGroup
	for range procs {
		wg.Go(func() {
			out, err := childCmd("race", o.Dir(), fmt.Sprint("OVERLAY_TEST_ROUNDS=", rounds)).CombinedOutput()
			var exit *exec.ExitError
			killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
			if err != nil && !killed {
				t.Errorf("%v: %s", err, out)
			}
			s := bufio.NewScanner(bytes.NewReader(out))
			for s.Scan() {
				var n int32
				if _, err := fmt.Sscanf(s.Text(), "done %d", &n); err == nil {
					won.Add(n)
				}
			}
		})
	}
	wg.Wait()
	if won.Load() < procs {
		t.Errorf("got %d turns, want at least %d", won.Load(), procs)
	}
	acquire(t, o, AcquireOptions{})
}

// TestRaceCreate: of many processes that make one overlay, one does.
func TestRaceCreate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "o")
	var won atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			out, err := childCmd("race create", dir).CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
			if strings.TrimSpace(string(out)) == "true" {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("got %d that made it, want 1", won.Load())
	}
	if _, err := Open(dir); err != nil {
		t.Error(err)
	}
}
