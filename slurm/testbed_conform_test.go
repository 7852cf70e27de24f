//go:build testbed

package slurm

import (
	"context"
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
		New:     func(*testing.T) hpcexec.Executor { return a },
		TempDir: "/tmp",
		Grace:   10 * time.Second,
		Limit:   2 * time.Minute,
	})
}
