//go:build testbed && soak

package session

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/apptainer"
	"github.com/hpcexec/hpcexec/internal/exectest"
	"github.com/hpcexec/hpcexec/slurm"
)

// TestConformanceOfTheChain holds three wrappers around each other to the
// contract, without a shim: a container, in an allocation, behind a login node
// that is reached by SSH.
func TestConformanceOfTheChain(t *testing.T) {
	files := testFiles(t)
	m := testManager(t)
	info := testSession(t, m, "conform-chain", Options{
		Place: "slurm", Partition: "cpu", Image: testImage, Binds: []Bind{{Src: files, Dst: files}},
	})
	state, err := m.Dirs.loadState("conform-chain")
	if err != nil {
		t.Fatal(err)
	}
	login, err := m.openPlain(t.Context(), "login")
	if err != nil {
		t.Fatal(err)
	}
	id, err := slurm.ParseJobID(info.JobID)
	if err != nil {
		t.Fatal(err)
	}
	cluster := slurm.New(login, slurm.Options{})
	allocation := cluster.Allocation(id, slurm.AllocationOptions{})
	instance := state.Runtime.Attach(apptainer.Info{Name: state.Instance}).Wrap(allocation)
	exectest.Run(t, exectest.Suite{
		New:     func(*testing.T) hpcexec.Executor { return instance },
		Probe:   func(*testing.T) hpcexec.Executor { return allocation },
		TempDir: files,
		Limit:   2 * time.Minute,
		Leaks:   []goleak.Option{goleak.IgnoreCurrent()},
	})
}
