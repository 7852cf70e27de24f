//go:build testbed

package apptainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
)

// TestCrash: whatever is killed, Stop or Cleanup leave nothing, and the
// overlay can be used again.
func TestCrash(t *testing.T) {
	r := testRuntime(t)
	ov := testOverlay(t)
	o := StartOptions{Name: testInstance + "crash", Image: testImage, Overlay: ov, Home: "/session", DeferVerify: true}
	for _, tc := range []struct {
		name string
		kill func(i *Instance)
		// orphans are left until somebody ends them
		orphans bool
	}{
		{"init", func(i *Instance) { i.Init.signal(unix.SIGKILL) }, false},
		{"parent", func(i *Instance) { i.Parent.signal(unix.SIGKILL) }, true},
		{"overlay helper", func(i *Instance) {
			for _, h := range i.Helpers {
				if strings.HasPrefix(h.Name, "fuse-overlayfs") {
					h.signal(unix.SIGKILL)
				}
			}
		}, false},
		{"everything", func(i *Instance) {
			for _, p := range append(i.Helpers, i.Parent, i.Init) {
				p.signal(unix.SIGKILL)
			}
		}, false},
	} {
		for _, how := range []string{"stop", "clean up"} {
			if how == "clean up" && tc.name == "overlay helper" {
				continue // the instance runs on: that is for Stop
			}
			t.Run(tc.name+", "+how, func(t *testing.T) {
				i, err := r.Start(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				defer i.Stop(context.Background(), 0)
				tc.kill(i)
				i.Parent.waitGone(t.Context(), time.Second)
				if tc.name == "everything" {
					for _, h := range i.Helpers {
						h.waitGone(t.Context(), 5*time.Second)
					}
				}
				begin := time.Now()
				if how == "stop" {
					st, err := i.Stop(t.Context(), 0)
					if err != nil {
						t.Error(err)
					}
					t.Logf("%+v", st)
				} else {
					n, err := r.Cleanup(t.Context(), ov)
					if err != nil || (n > 0) != tc.orphans {
						t.Errorf("Cleanup: got %d, %v, want orphans %v", n, err, tc.orphans)
					}
					t.Logf("ended %d in %v", n, time.Since(begin))
				}
				for _, p := range append(i.Helpers, i.Init, i.Parent) {
					if p.Alive() && !p.waitGone(t.Context(), time.Second) {
						t.Errorf("%+v is alive", p)
					}
				}
				if h, err := Holders(ov); err != nil || len(h) != 0 {
					t.Errorf("holders: got %v, %v, want none", h, err)
				}
				if list, err := r.List(t.Context()); err != nil || len(list) != 0 {
					t.Errorf("list: got %v, %v, want none", list, err)
				}
			})
		}
	}
}

// TestStartAfterCrash: a start ends what a crash has left on its overlay.
func TestStartAfterCrash(t *testing.T) {
	r := testRuntime(t)
	ov := testOverlay(t)
	o := StartOptions{Name: testInstance + "again", Image: testImage, Overlay: ov, DeferVerify: true}
	i := testStart(t, r, o)
	inside(t, i, nil, "echo kept >/kept")
	i.Parent.signal(unix.SIGKILL)
	i.Init.waitGone(t.Context(), 5*time.Second)
	j := testStart(t, r, o)
	if got := inside(t, j, nil, "cat /kept"); got != "kept\n" {
		t.Errorf("got %q", got)
	}
	if h, err := Holders(ov); err != nil || len(h) != 1 {
		t.Errorf("holders: got %v, %v, want the new instance's alone", h, err)
	}
}

// TestCleanupSparesTheLiving: helpers of a running instance are left alone.
func TestCleanupSparesTheLiving(t *testing.T) {
	r := testRuntime(t)
	ov := testOverlay(t)
	i := testStart(t, r, StartOptions{Name: testInstance + "living", Image: testImage, Overlay: ov, DeferVerify: true})
	if h, err := Holders(ov); err != nil || len(h) != 1 {
		t.Errorf("holders: got %v, %v, want fuse-overlayfs", h, err)
	}
	if n, err := r.Cleanup(t.Context(), ov); n != 0 || err != nil {
		t.Errorf("Cleanup: got %d, %v, want 0", n, err)
	}
	if err := i.Verify(t.Context()); err != nil {
		t.Errorf("Verify: %v", err)
	}
	// Two writers on one directory, which the runtime would allow.
	_, err := r.Start(t.Context(), StartOptions{Name: testInstance + "living-2", Image: testImage, Overlay: ov, DeferVerify: true})
	if !errors.Is(err, ErrOverlayInUse) || !strings.Contains(err.Error(), i.Name) {
		t.Errorf("a second instance on the overlay: got %v, want ErrOverlayInUse that names the first", err)
	}
	found, err := r.Adopt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got *Found
	for _, f := range found {
		if f.Name == i.Name {
			got = &f
		}
	}
	if got == nil || !got.Listed || got.Init != i.Init || got.Parent != i.Parent || len(got.Helpers) != 2 || got.Image != testImage {
		t.Errorf("Adopt: got %+v, want %+v", got, i.Info)
	}
}

// TestSameNameRace: many starts of one name at once. One wins, is listed and
// works; the others are told ErrExists. (Bare, the winner loses its record in
// eleven of twelve races.)
func TestSameNameRace(t *testing.T) {
	r := testRuntime(t)
	var wg sync.WaitGroup
	won := make(chan *Instance, 10)
	for range 4 {
		wg.Go(func() {
			i, err := r.Start(t.Context(), StartOptions{Name: testInstance + "race", Image: testBusybox, Overlay: testOverlay(t), DeferVerify: true})
			switch {
			case err == nil:
				won <- i
			case !errors.Is(err, ErrExists):
				t.Errorf("got %v, want ErrExists", err)
			}
		})
	}
	wg.Wait()
	close(won)
	n := 0
	for i := range won {
		n++
		if ok, err := i.Alive(t.Context()); !ok || err != nil {
			t.Errorf("winner: alive %v, %v", ok, err)
		}
		if err := i.Verify(t.Context()); err != nil {
			t.Errorf("winner: %v", err)
		}
		if _, err := i.Stop(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
	if n != 1 {
		t.Errorf("%d starts won, want 1", n)
	}
}

// TestManyStarts: a dozen at once all come up, and all go down.
func TestManyStarts(t *testing.T) {
	r := testRuntime(t)
	begin := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var all []*Instance
	for n := range 12 {
		wg.Go(func() {
			i, err := r.Start(t.Context(), StartOptions{Name: fmt.Sprintf("%smany%d", testInstance, n), Image: testBusybox, Overlay: testOverlay(t), DeferVerify: true})
			if err != nil {
				t.Errorf("start %d: %v", n, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, i)
		})
	}
	wg.Wait()
	t.Logf("12 starts: %v", time.Since(begin))
	for _, i := range all {
		wg.Go(func() {
			if _, err := i.Stop(t.Context(), 0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if list, err := r.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("list: got %v, %v", list, err)
	}
}

// TestCancelStart: a start that is cancelled at any moment leaves nothing.
func TestCancelStart(t *testing.T) {
	r := testRuntime(t)
	ov := testOverlay(t)
	o := StartOptions{Name: testInstance + "cancel", Image: testImage, Overlay: ov, DeferVerify: true}
	for _, after := range []time.Duration{20, 100, 200, 300, 400} {
		ctx, cancel := context.WithTimeout(t.Context(), after*time.Millisecond)
		i, err := r.Start(ctx, o)
		cancel()
		if err == nil {
			t.Logf("start was quicker than %v", after)
			i.Stop(t.Context(), 0)
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: got %v", after, err)
		}
		time.Sleep(300 * time.Millisecond) // whatever has forked comes up now
		if left := r.titled(o.Name); len(left) > 0 {
			t.Errorf("after %v: %+v is left", after, left[0].Info)
			left[0].Stop(t.Context(), 0)
		}
		if h, _ := Holders(ov); len(h) > 0 {
			t.Errorf("after %v: holders %v are left", after, h)
		}
	}
}

// TestNeverReaped: under a PID 1 that reaps nothing, where the runtime's own
// stop takes ten seconds.
func TestNeverReaped(t *testing.T) {
	if os.Getenv("HPCEXEC_TEST_UNDER_SLEEP") == "" {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "unshare", "--user", "--map-current-user", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child",
			"sh", "-c", `"$1" -test.run 'TestNeverReaped$' -test.v & exec sleep 60`, "sh", exe)
		// sleep is PID 1 and reaps nothing; the answer ends it.
		cmd.Env = append(os.Environ(), "HPCEXEC_TEST_UNDER_SLEEP=1")
		out, err := os.CreateTemp(t.TempDir(), "out")
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
		defer cmd.Process.Kill()
		var b []byte
		for range 300 {
			time.Sleep(100 * time.Millisecond)
			b, _ = os.ReadFile(out.Name())
			if s := string(b); strings.Contains(s, "\nPASS") || strings.Contains(s, "\nFAIL") {
				break
			}
		}
		t.Logf("%s", b)
		if !strings.Contains(string(b), "--- PASS: TestNeverReaped") {
			t.Error("the test under a PID 1 that reaps nothing has failed")
		}
		return
	}
	r := testRuntime(t)
	i := testStart(t, r, StartOptions{Name: testInstance + "noreap", Image: testImage, Overlay: testOverlay(t), DeferVerify: true})
	st, err := i.Stop(t.Context(), 0)
	t.Logf("%+v %v", st, err)
	if err != nil || st.Took > 5*time.Second {
		t.Errorf("Stop: got %+v, %v", st, err)
	}
	z, _ := readStat(i.Parent.PID)
	t.Logf("parent is now in state %c", z.state)
}

// TestVerify: an overlay that is read-only is found out.
func TestVerify(t *testing.T) {
	r := testRuntime(t)
	ov := testOverlay(t)
	i := testStart(t, r, StartOptions{Name: testInstance + "verify", Image: testImage, Overlay: ov, DeferVerify: true})
	if err := i.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(ov, "upper"), 0o555); err != nil {
		t.Fatal(err)
	}
	if err := i.Verify(t.Context()); !errors.Is(err, hpcexec.ErrUnavailable) || !strings.Contains(err.Error(), "written") {
		t.Errorf("upper not writable: got %v", err)
	}
	os.Chmod(filepath.Join(ov, "upper"), 0o755)
	// Without an overlay the root is read-only, which is right then.
	j := testStart(t, r, StartOptions{Name: testInstance + "verify-none", Image: testImage, DeferVerify: false})
	j.Overlay = "/pretended"
	if err := j.Verify(t.Context()); !errors.Is(err, ErrOverlayDropped) {
		t.Errorf("no overlay: got %v, want ErrOverlayDropped", err)
	}
}
