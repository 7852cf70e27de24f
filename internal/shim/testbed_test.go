//go:build testbed

package shim

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec/internal/wire"
)

// TestTestbedContainer runs the shim in an apptainer instance, with its socket
// passed as a descriptor, and talks to it from outside. It belongs on a node
// of the test cluster, as a user.
func TestTestbedContainer(t *testing.T) {
	const image = "/scratch/images/base.sif"
	name := fmt.Sprintf("shim-test-%d", os.Getpid())
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	clean := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + os.Getenv("HOME"), "USER=" + os.Getenv("USER")}
	apptainer := func(args ...string) *exec.Cmd {
		cmd := exec.Command("apptainer", args...)
		cmd.Env = clean
		return cmd
	}
	start := apptainer("instance", "start", "--containall", "--no-home", "--no-eval", "--cleanenv",
		"--bind", exe+":/shim:ro", image, name)
	log, err := os.Create(tempDir(t) + "/log") // a pipe would stay open in the instance
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	start.Stdout, start.Stderr = log, log
	if err := start.Run(); err != nil {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("instance start: %v\n%s", err, text)
	}
	t.Cleanup(func() { apptainer("instance", "stop", "-t", "1", name).Run() })

	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(tempDir(t), "s")})
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	shim := apptainer("exec", "--no-eval", "--cleanenv", "--env", "HPCEXEC_SHIM_TEST=1,INSIDE=yes", "--pwd", "/",
		"instance://"+name, "/shim", "--fd", "3")
	shim.ExtraFiles = []*os.File{f}
	shim.Stderr = t.Output()
	if err := shim.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	l.SetUnlinkOnClose(false)
	l.Close()
	ended := make(chan error, 1)
	go func() { ended <- shim.Wait() }()

	c := dial(t, l.Addr().String())
	if got := strings.TrimSpace(c.sh("cat /proc/1/comm; echo $INSIDE; id -u; hostname")); !strings.Contains(got, "appinit\nyes\n"+fmt.Sprint(os.Getuid())) {
		t.Errorf("got %q, want to be inside, as %d", got, os.Getuid())
	}
	if out := c.sh(`ls -l /proc/$PPID/environ 2>&1; cat /proc/$PPID/environ 2>&1 || true`); !strings.Contains(out, "denied") {
		t.Errorf("the shim's environment can be read: %q", out)
	}
	file := "/tmp/pids"
	p := c.start(wire.Exec{Args: sh(stubborn, file)})
	eventually(t, "the command runs", func() bool {
		_, _, x := c.run(wire.Exec{Args: []string{"test", "-e", file}}, "")
		return x.Code == 0
	})
	p.SendRequest(wire.RequestCancel, false, nil)
	if exit := p.wait(); exit.Signal != "KILL" {
		t.Errorf("got %+v, want it killed", exit)
	}
	const left = `for p in $(cat /tmp/pids); do
		state=$(sed 's/.*) //; s/ .*//' /proc/$p/stat 2>/dev/null) && [ "$state" != Z ] && echo $p $state
	done; true`
	if got := c.sh(left); got != "" {
		t.Errorf("processes %q are left", got)
	}
	c.sh("(setsid sleep 600 &); true")
	if st := c.status(); st.Running != 0 || st.Background != 1 {
		t.Errorf("got %+v, want 1 in the background", st)
	}
	latency(t, c)
	inside, err := apptainer("exec", "--no-eval", "--cleanenv", "--pwd", "/", "instance://"+name,
		"/shim", "-test.run=^$", "-test.bench=^BenchmarkForkExec$", "-test.benchtime=1000x").CombinedOutput()
	t.Logf("inside: %v\n%s", err, inside)

	if ok, _, err := c.SendRequest(wire.RequestStop, true, nil); !ok || err != nil {
		t.Errorf("stop: got %v, %v, want true", ok, err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the shim ended with %v, want success", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the shim doesn't end")
		shim.Process.Kill()
	}
}

// latency prints what a command costs, with and without the shim, in turns.
func latency(t *testing.T, c *client) {
	t.Helper()
	var fork, shim, refused []time.Duration
	b := &testing.B{}
	next := c.benchChannel(b)
	for range 1000 {
		at := time.Now()
		if err := exec.Command("/bin/true").Run(); err != nil {
			t.Fatal(err)
		}
		fork = append(fork, time.Since(at))
		at = time.Now()
		next.run(b)
		shim = append(shim, time.Since(at))
		at = time.Now()
		next = c.benchChannel(b)
		refused = append(refused, time.Since(at))
	}
	f, s, r := median(fork), median(shim), median(refused)
	t.Logf("median: fork+exec %v, through the shim %v (%.2f times), opening a channel %v", f, s, float64(s)/float64(f), r)
}
