package apptainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
)

// scripted is a runtime whose `instance start` is a script. Its calls are
// counted in RunDir/calls.
func scripted(t *testing.T, start, list string) *Runtime {
	t.Helper()
	run := t.TempDir()
	path := filepath.Join(run, "apptainer")
	script := `#!/bin/sh
cd ` + run + `
case "$*" in
*"instance list"*) echo '` + list + `'; exit ;;
esac
echo x >>calls
n=$(grep -c x calls)
` + start
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return &Runtime{Path: path, Flavor: Apptainer, RunDir: run, ConfigDir: filepath.Join(run, "cfg")}
}

func (r *Runtime) calls() int {
	b, _ := os.ReadFile(filepath.Join(r.RunDir, "calls"))
	return strings.Count(string(b), "x")
}

func TestStartRetry(t *testing.T) {
	fixture := func(name string) string {
		path, err := filepath.Abs("testdata/fatal/" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		return "cat " + path + " >&2; exit 255\n"
	}
	const none = `{"instances": []}`
	one := fmt.Sprintf(`{"instances": [{"instance": "hpcexec-x", "pid": %d, "img": "/i"}]}`, os.Getpid())
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/1")
	for _, tc := range []struct {
		name      string
		start     string
		list      string
		wantErr   error
		wantCalls int
	}{
		{name: "works at once", start: "exit 0\n", wantCalls: 1},
		{name: "bus overloaded twice", start: "[ $n -gt 2 ] && exit 0\n" + fixture("ap-dbus"), wantCalls: 3},
		{name: "bus overloaded for ever", start: fixture("ap-dbus"), wantErr: hpcexec.ErrUnavailable, wantCalls: startAttempts},
		{name: "insists on a bus, gets it", start: `[ "$XDG_RUNTIME_DIR" = /run/user/1 ] && exit 0` + "\n" + fixture("ap-needs-bus"), wantCalls: 2},
		{name: "insists on a bus that doesn't help", start: fixture("ap-needs-bus"), wantErr: hpcexec.ErrUnavailable, wantCalls: 2},
		{name: "record of a dead one", start: "[ $n -gt 1 ] && exit 0\n" + fixture("ap-exists"), list: none, wantCalls: 2},
		{name: "record that goes", start: "[ $n -gt 1 ] && exit 0\n" + fixture("ap-exists"), wantCalls: 2,
			list: `'; if [ ! -e l2 ]; then if [ -e l1 ]; then : >l2; fi; : >l1; echo '{"instances": [{"instance": "hpcexec-x", "pid": 999999999, "img": "/i"}]}'; exit; fi; echo '{"instances": []}`},
		{name: "exists", start: fixture("ap-exists"), list: one, wantErr: ErrExists, wantCalls: 1},
		{name: "exists for ever", start: fixture("ap-exists"), list: none, wantErr: ErrExists, wantCalls: 2},
		{name: "not transient", start: fixture("ap-missing-image"), wantErr: hpcexec.ErrInvalid, wantCalls: 1},
		{name: "silent", start: "exit 3\n", wantErr: hpcexec.ErrUnavailable, wantCalls: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := scripted(t, tc.start, tc.list)
			err := r.startRetry(t.Context(), []string{r.Path, "-s", "instance", "start"}, nil, "hpcexec-x")
			if !errors.Is(err, tc.wantErr) || (err == nil) != (tc.wantErr == nil) {
				t.Errorf("got %v, want %v", err, tc.wantErr)
			}
			if got := r.calls(); got != tc.wantCalls {
				t.Errorf("%d calls, want %d", got, tc.wantCalls)
			}
		})
	}
}

// TestStartDoesNotHang: the instance that a start leaves running has inherited
// its output; nobody waits for the end of that.
func TestStartDoesNotHang(t *testing.T) {
	r := scripted(t, "sleep 30 & echo $! >pid\nexit 0\n", "")
	done := make(chan error, 1)
	go func() {
		done <- r.startOnce(t.Context(), []string{r.Path, "-s", "instance", "start"}, nil, "hpcexec-x", nil)
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the start waits for the instance")
	}
	killPIDFile(t, filepath.Join(r.RunDir, "pid"))
}

func TestStartCancelled(t *testing.T) {
	r := scripted(t, "echo $$ >pid; exec sleep 30\n", "")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := r.startOnce(ctx, []string{r.Path, "-s", "instance", "start"}, nil, "hpcexec-x", nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
	for _, o := range []StartOptions{{Name: "hpcexec-x", Image: "/i.sif"}, {Name: "x", Image: "/i.sif"}} {
		if _, err := r.Start(ctx, o); err == nil {
			t.Errorf("start of %q with a ctx that has ended: got no error", o.Name)
		}
	}
}

// killPIDFile ends the process whose pid a script has left.
func killPIDFile(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if p, _, err := procOf(pid); err == nil && p.Name == "sleep" {
		p.signal(unix.SIGKILL)
	}
}

// TestForeign: an instance that isn't ours is never touched.
func TestForeign(t *testing.T) {
	r := scripted(t, "", "")
	self, _, err := procOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Attach(Info{Name: "mine", Init: self}).Stop(t.Context(), 0); !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("stop: got %v, want ErrInvalid", err)
	}
}

// TestPrepare: what a start makes and refuses before the runtime is called.
func TestPrepare(t *testing.T) {
	r := &Runtime{Flavor: Apptainer}
	ov := t.TempDir()
	work := filepath.Join(t.TempDir(), "a", "tmp")
	dir, err := r.prepare(StartOptions{Overlay: ov, Home: "/session", WorkDir: work})
	if err != nil || !dir {
		t.Fatalf("got %v, %v", dir, err)
	}
	for _, d := range []string{filepath.Join(ov, "upper/session"), filepath.Join(ov, "work"), work} {
		if !isDir(d) {
			t.Errorf("%s isn't made", d)
		}
	}
	// A link that a container has left as its home isn't followed.
	evil := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(filepath.Join(evil, "upper"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(evil, "upper/up")); err != nil {
		t.Fatal(err)
	}
	r.prepare(StartOptions{Overlay: evil, Home: "/up/session"})
	if exists(outside) {
		t.Error("a link in the overlay was followed out of it")
	}
	for name, o := range map[string]StartOptions{
		"overlay": {Overlay: "/nonexistent"}, "layer": {Layers: []string{"/nonexistent"}},
		"bind mount": {Mounts: []Mount{{Src: "/nonexistent", Dst: "/x"}}}, "payload": {Payload: &Payload{Program: "/nonexistent"}},
	} {
		if _, err := r.prepare(o); !errors.Is(err, hpcexec.ErrInvalid) || !strings.Contains(err.Error(), name+" /nonexistent: no such file") {
			t.Errorf("%s: got %v, want ErrInvalid that names it", name, err)
		}
	}
}
