//go:build testbed

package overlay

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// These tests run on a node of the testbed, as a user of it. They fail where
// there is none.

// scratch is a directory on the file system that the nodes share.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Join("/scratch", os.Getenv("USER")), "state-overlay-")
	if err != nil {
		t.Fatalf("not on a node of the testbed: %v", err)
	}
	t.Cleanup(func() {
		if err := removeTree(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestReal: a container keeps its files, its home and its /tmp in the overlay,
// with fuse-overlayfs (a SIF) and with the kernel's overlay (a directory), and
// what they leave can be removed.
func TestReal(t *testing.T) {
	dir := scratch(t)
	sandbox := filepath.Join(dir, "sandbox")
	command(t, "apptainer", "-s", "build", "--sandbox", sandbox, "/scratch/images/busybox.sif")
	for _, image := range []string{"/scratch/images/busybox.sif", sandbox} {
		t.Run(filepath.Base(image), func(t *testing.T) {
			o, err := Create(filepath.Join(dir, "overlays", "a b", filepath.Base(image)), CreateOptions{Image: Image{Path: image}})
			if err != nil {
				t.Fatal(err)
			}
			l, err := o.Acquire(t.Context(), AcquireOptions{})
			if err != nil {
				t.Fatal(err)
			}
			run := func(script string) string {
				return command(t, "apptainer", "-s", "exec", "--containall", "--no-home", "--home", "/session", "--no-eval",
					"--overlay", o.Layer(), "--workdir", o.Tmp(), image, "sh", "-c", script)
			}
			run("echo home >/session/f; echo tmp >/tmp/f; echo vartmp >/var/tmp/f; echo root >/f; rm /bin/vi; ls -ld /session /")
			got := run("echo $HOME; cd /session; cat /session/f /tmp/f /var/tmp/f /f; test -e /bin/vi || echo gone; mount | head -1")
			if want := "/session\nhome\ntmp\nvartmp\nroot\ngone\n"; !strings.HasPrefix(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			t.Log(got)
			u, err := o.Usage(t.Context())
			if err != nil || u.Inodes < 12 {
				t.Errorf("got %+v %v, want the files counted", u, err)
			}
			t.Logf("%+v", u)
			if err := l.Release(); err != nil {
				t.Error(err)
			}
			if err := o.Remove(t.Context(), AcquireOptions{}); err != nil {
				t.Error(err)
			}
			if left := names(t, filepath.Dir(o.Dir())); len(left) != 0 {
				t.Errorf("got %q left", left)
			}
		})
	}
}

// TestTwoNodes: processes of two nodes take turns.
func TestTwoNodes(t *testing.T) {
	dir := scratch(t)
	o, err := Create(filepath.Join(dir, "o"), CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	procs, rounds := 4, 25 // on each node, of each process
	if os.Getenv("HPCEXEC_SOAK") != "" {
		procs, rounds = 16, 32
	}
	env := []string{"env", "OVERLAY_TEST_MODE=race", "OVERLAY_TEST_DIR=" + o.Dir(), fmt.Sprint("OVERLAY_TEST_ROUNDS=", rounds), "OVERLAY_TEST_NO_KILL=1", self}
	var wg sync.WaitGroup
	for _, node := range [][]string{{"-p", "cpu", "-w", "cpu1"}, {"-p", "gpu", "-w", "gpu1"}} {
		wg.Go(func() {
			args := append(node, fmt.Sprint("-n", procs), "--overcommit", "--job-name=state-lease", "--time=10")
			out, err := exec.CommandContext(t.Context(), "srun", append(args, env...)...).CombinedOutput()
			if n := strings.Count(string(out), fmt.Sprint("done ", rounds)); err != nil || n != procs {
				t.Errorf("%v: got %d processes that had their %d turns, want %d: %v\n%s", node, n, rounds, procs, err, out)
			}
		})
	}
	wg.Wait()
	top, err := highest(o.Dir())
	if want := 2 * procs * rounds; err != nil || top != want {
		t.Errorf("got %d turns %v, want %d", top, err, want)
	}
	st, err := o.Status()
	if err != nil || st.Held {
		t.Errorf("got %+v %v, want it released", st, err)
	}
	t.Log(fmt.Sprint(st.Holder))
}

// TestOtherNode: the holder on another node is named, and not broken without
// proof.
func TestOtherNode(t *testing.T) {
	dir := scratch(t)
	o, err := Create(filepath.Join(dir, "o"), CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Ends without giving it back.
	command(t, "srun", "-w", "cpu1", "-n1", "--overcommit", "--job-name=state-lease", "--time=1",
		"env", "OVERLAY_TEST_MODE=hold", "OVERLAY_TEST_DIR="+o.Dir(), self)
	opts := AcquireOptions{Silence: 300 * time.Millisecond}
	_, err = o.Acquire(t.Context(), opts)
	if err == nil || !strings.Contains(err.Error(), "on cpu1") {
		t.Fatalf("got %v, want it in use on cpu1", err)
	}
	opts.NodeGone = gone
	l, err := o.Acquire(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
}
