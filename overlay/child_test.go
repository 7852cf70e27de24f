package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec/internal/hostid"
)

// childCmd is this test binary as another process; see child.
func childCmd(mode, dir string, more ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "OVERLAY_TEST_MODE="+mode, "OVERLAY_TEST_DIR="+dir)
	cmd.Env = append(cmd.Env, more...)
	return cmd
}

// runKilled runs a mode in a process that is killed at a step.
func runKilled(t *testing.T, mode, dir, step string) {
	t.Helper()
	out, err := childCmd(mode, dir, "OVERLAY_TEST_STEP="+step).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("got %v %s, want the process killed at step %q", err, out, step)
	}
}

// killAt kills the own process at the step that the environment names.
func killAt(name string) error {
	if name == os.Getenv("OVERLAY_TEST_STEP") {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return nil
}

// child is what the test binary does as another process.
func child(mode string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	dir := os.Getenv("OVERLAY_TEST_DIR")
	fail := func(err error) int {
		fmt.Println(err)
		return 1
	}
	if mode == "create" {
		if _, err := Create(dir, CreateOptions{step: killAt}); err != nil {
			return fail(err)
		}
		return 0
	}
	if mode == "race create" {
		_, err := Create(dir, CreateOptions{})
		fmt.Println(err == nil)
		return 0
	}
	o, err := Open(dir)
	if err != nil {
		return fail(err)
	}
	opts := AcquireOptions{Session: "child", Beat: 20 * time.Millisecond, step: killAt}
	switch mode {
	case "remove":
		if err := o.Remove(ctx, opts); err != nil {
			return fail(err)
		}
	case "lease": // take, beat a few times, release
		l, err := o.Acquire(ctx, opts)
		if err != nil {
			return fail(err)
		}
		time.Sleep(100 * time.Millisecond)
		if err := l.Release(); err != nil {
			return fail(err)
		}
	case "hold": // until stdin ends, or killed
		if p, err := hostid.ParseProc(os.Getenv("OVERLAY_TEST_HELPER")); err == nil {
			opts.Beat = time.Hour
			l, err := o.Acquire(ctx, opts)
			if err != nil {
				return fail(err)
			}
			if err := l.SetHelpers([]hostid.Proc{p}); err != nil {
				return fail(err)
			}
		} else if _, err := o.Acquire(ctx, opts); err != nil {
			return fail(err)
		}
		fmt.Println("held")
		io.Copy(io.Discard, os.Stdin)
	case "race":
		rounds, _ := strconv.Atoi(os.Getenv("OVERLAY_TEST_ROUNDS"))
		opts.step = nil
		return race(ctx, o, opts, rounds)
	}
	return 0
}

// race takes the lease rounds times and looks each time whether somebody else
// writes. One time in eight it ends without giving it back.
func race(ctx context.Context, o *Overlay, opts AcquireOptions, rounds int) int {
	writer := filepath.Join(o.Upper(), "writer")
	self, _ := hostid.SelfProc()
	for done := 0; done < rounds; {
		l, err := o.Acquire(ctx, opts)
		if errors.Is(err, ErrInUse) {
			var use *InUseError
			if !errors.As(err, &use) || use.Holder.Proc.PID <= 0 || use.Holder.Session != "child" {
				fmt.Println("not told who holds it:", err)
				return 1
			}
			time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
			continue
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		// The mark of somebody who died stays, that of a living one must
		// not be there.
		if data, err := os.ReadFile(writer); err == nil {
			if p, err := hostid.ParseProc(string(data)); err != nil || p.Alive() {
				fmt.Printf("two writers: %s and %s %v\n", self, data, err)
				return 1
			}
			os.Remove(writer)
		}
		f, err := os.OpenFile(writer, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			fmt.Println("two writers:", err)
			return 1
		}
		f.WriteString(self.String())
		f.Close()
		done++
		if os.Getenv("OVERLAY_TEST_NO_KILL") == "" && rand.IntN(8) == 0 {
			fmt.Println("done", done)
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		os.Remove(writer)
		if err := l.Release(); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	fmt.Println("done", rounds)
	return 0
}

// held starts a process that holds the lease.
func held(t *testing.T, dir string, more ...string) (cmd *exec.Cmd, end func()) {
	t.Helper()
	cmd = childCmd("hold", dir, more...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	}
	t.Cleanup(end)
	line := make([]byte, 1000)
	n, _ := out.Read(line)
	if !strings.HasPrefix(string(line[:n]), "held") {
		t.Fatalf("got %q from the holder", line[:n])
	}
	return cmd, end
}
