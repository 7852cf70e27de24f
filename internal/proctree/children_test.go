package proctree

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// The test binary runs itself as a subreaper, which mustn't happen to the
// process that runs all the tests.
func TestReapOrphans(t *testing.T) {
	if os.Getenv("PROCTREE_SUBREAPER") != "" {
		subreaper(t)
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestReapOrphans$", "-test.v")
	cmd.Env = append(os.Environ(), "PROCTREE_SUBREAPER=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "as a subreaper") {
		t.Errorf("in a subreaper: %v\n%s", err, out)
	}
}

func subreaper(t *testing.T) {
	t.Log("as a subreaper")
	if err := BecomeSubreaper(); err != nil {
		t.Fatal(err)
	}
	var c Children
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { c.ServeOrphans(ctx); close(served) }()

	// Children that are waited for keep their status, though the reaper
	// runs all the time and each leaves an orphan.
	var wg sync.WaitGroup
	for n := range 40 {
		wg.Go(func() {
			pid, err := c.Start(func() (int, error) {
				return syscall.ForkExec("/bin/sh", []string{"sh", "-c", "sleep 0.3 & exit " + string(rune('0'+n%10))}, nil)
			})
			if err != nil {
				t.Error(err)
				return
			}
			c.ReapOrphans()
			ws, err := c.Reap(pid)
			if err != nil || ws.ExitStatus() != n%10 {
				t.Errorf("child %d: got %v, %v, want exit %d", n, ws.ExitStatus(), err, n%10)
			}
		})
	}
	wg.Wait()
	eventually(t, "every orphan reaped", func() bool { return len(childPIDs()) == 0 })
	if pids := childPIDsByWalk(); len(pids) != 0 {
		t.Errorf("by walk: got children %v, want none", pids)
	}
	cancel()
	<-served

	// A fork that hangs keeps orphans waiting, and nobody else.
	hang, forking := make(chan struct{}), make(chan struct{})
	hung := make(chan struct{})
	go func() {
		defer close(hung)
		c.Start(func() (int, error) { close(forking); <-hang; return 0, syscall.EAGAIN })
	}()
	<-forking
	pid, err := c.Start(func() (int, error) {
		return syscall.ForkExec("/bin/sh", []string{"sh", "-c", "sleep 0 & exit 4"}, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	if ws, err := c.Reap(pid); err != nil || ws.ExitStatus() != 4 {
		t.Errorf("beside a fork that hangs: got %v, %v, want exit 4", ws.ExitStatus(), err)
	}
	eventually(t, "an orphan left for later", func() bool { _, left := c.ReapOrphans(); return left == 1 })
	close(hang)
	<-hung
	if reaped, left := c.ReapOrphans(); reaped != 1 || left != 0 {
		t.Errorf("after the fork: got %d reaped, %d left, want 1, 0", reaped, left)
	}
}

func TestChildPIDs(t *testing.T) {
	cmd := start(t, "proctree-children", `echo; exec sleep 600`)
	for name, f := range map[string]func() []int{"by list": childPIDs, "by walk": childPIDsByWalk} {
		found := false
		for _, pid := range f() {
			found = found || pid == cmd.Process.Pid
		}
		if !found {
			t.Errorf("%s: child %d is missing", name, cmd.Process.Pid)
		}
	}
}
