//go:build testbed

package session

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/exectest"
	"github.com/hpcexec/hpcexec/sshmux"
)

const (
	testImage   = "/scratch/images/base.sif"
	testBusybox = "/scratch/images/busybox.sif"
)

// testManager is a manager with the user's own state, on the testbed's login
// node.
func testManager(t *testing.T) *Manager {
	t.Helper()
	exe, err := exec.LookPath("hpcexec")
	if err != nil {
		t.Fatal(err)
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		t.Fatal(err)
	}
	dirs, err := FindDirs(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	return &Manager{Dirs: dirs, Exe: exe}
}

// testSession starts a session that is removed after the test.
func testSession(t *testing.T, m *Manager, name string, o Options) Info {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := m.Remove(ctx, name); err != nil {
			t.Errorf("remove session %s: %v", name, err)
		}
	})
	info, err := m.Ensure(t.Context(), Want{Name: name, Options: o})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// testClient opens a session, and starts its master where that was killed.
func testClient(t *testing.T, m *Manager, w Want) *sshmux.Client {
	t.Helper()
	// Cases probe the place in their clean-up as well, when t.Context has ended.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := m.open(ctx, w)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// killMaster kills the master that a client talks to.
func killMaster(t *testing.T, client *sshmux.Client) {
	t.Helper()
	pid, err := client.Alive(context.Background())
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// testFiles is a directory that every node and, bound under the same path,
// every container sees.
func testFiles(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/scratch/"+os.Getenv("USER"), "conformance-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestConformance holds sessions to the contract, through a master and its
// shim: the same request gives the same answer in each place. They have files
// under the path that these have here.
func TestConformance(t *testing.T) {
	files := testFiles(t)
	bind := []Bind{{Src: files, Dst: files}}
	for name, o := range map[string]Options{
		"local-bare":      {Place: "local"},
		"local-container": {Place: "local", Image: testImage, Binds: bind},
		"local-busybox":   {Place: "local", Image: testBusybox, Binds: bind},
		"ssh-bare":        {Place: "ssh:gpu2"},
		"ssh-container":   {Place: "ssh:gpu2", Image: testImage, Binds: bind},
		"slurm-bare":      {Place: "slurm", Partition: "cpu"},
		"slurm-container": {Place: "slurm", Partition: "cpu", Image: testImage, Binds: bind},
	} {
		t.Run(name, func(t *testing.T) {
			m := testManager(t)
			w := Want{Name: "conform-" + name, Options: o}
			testSession(t, m, w.Name, o)
			exectest.Run(t, exectest.Suite{
				New:     func(t *testing.T) hpcexec.Executor { return testClient(t, m, w) },
				Break:   func(t *testing.T, ex hpcexec.Executor) { killMaster(t, ex.(*sshmux.Client)) },
				TempDir: files,
				// The test's process is the parent of the masters it starts.
				Leaks: []goleak.Option{goleak.IgnoreAnyFunction("os/exec.(*Cmd).Wait")},
			})
		})
	}
}
