//go:build testbed

package slurm

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/exectest"
)

// TestRealConformance holds a real allocation to the contract.
func TestRealConformance(t *testing.T) {
	c, ctx := realClient(t)
	long, stop := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Minute)
	defer stop()
	a := realAllocation(t, c, long)
	exectest.Run(t, exectest.Suite{
		New:   func(*testing.T) hpcexec.Executor { return a },
		Break: func(t *testing.T, _ hpcexec.Executor) { killSrun(t, "--jobid="+a.id.local()) },
		Grace: 10 * time.Second,
		Limit: time.Minute,
	})
}

// killSrun kills srun and the shell that launched it, as the death of a login
// node would.
func killSrun(t *testing.T, arg string) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(line, []byte("\x00"+arg+"\x00")) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
			t.Logf("killed %d", pid)
		}
	}
}
