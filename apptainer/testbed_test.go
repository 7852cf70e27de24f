//go:build testbed

package apptainer

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
)

// These tests run on a node of the testbed, as its user, with the real
// runtime. They fail where there is none.

const (
	testImage    = "/scratch/images/base.sif"
	testBusybox  = "/scratch/images/busybox.sif"
	testInstance = Prefix + "t-app-"
)

// testRuntime finds the node's runtime, with a RunDir of the test's own.
func testRuntime(t *testing.T) *Runtime {
	t.Helper()
	run, err := os.MkdirTemp("/tmp", "hpcexec-t-app-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	r, err := Find(t.Context(), FindOptions{RunDir: run})
	if err != nil {
		t.Fatalf("the testbed has no runtime: %v", err)
	}
	return r
}

// testOverlay is a new overlay directory on the scratch file system.
func testOverlay(t *testing.T) string {
	t.Helper()
	base := filepath.Join("/scratch", os.Getenv("USER"))
	dir, err := os.MkdirTemp(base, "t-app-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Kernel overlayfs leaves work/work with mode 000.
		filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if d != nil && d.IsDir() {
				os.Chmod(p, 0o700)
			}
			return nil
		})
		os.RemoveAll(dir)
	})
	return dir
}

func testStart(t *testing.T, r *Runtime, o StartOptions) *Instance {
	t.Helper()
	i, err := r.Start(t.Context(), o)
	if err != nil {
		t.Fatalf("start: %v (hint: %s)", err, hpcexec.Hint(err))
	}
	t.Cleanup(func() {
		if _, err := i.Stop(context.Background(), 0); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return i
}

// inside runs a script in the instance.
func inside(t *testing.T, i *Instance, env []string, script string) string {
	t.Helper()
	argv := i.Argv(ExecOptions{}, "/bin/sh", "-c", script)
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = i.Environ(env)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("script %q: %v: %s", script, err, out)
	}
	return string(out)
}

func TestStartStop(t *testing.T) {
	r := testRuntime(t)
	ov := testOverlay(t)
	i := testStart(t, r, StartOptions{
		Name: testInstance + "startstop", Image: testImage,
		Overlay: filepath.Join(ov, "layer-none"), // made below
	}.with(func(o *StartOptions) {
		o.Overlay = ov
		o.Home, o.WorkDir = "/session", filepath.Join(ov, "tmp")
	}))
	if !i.Running() {
		t.Fatal("init doesn't run after Start")
	}
	if ok, err := i.Alive(t.Context()); !ok || err != nil {
		t.Errorf("Alive: got %v, %v, want true", ok, err)
	}
	if len(i.Helpers) == 0 {
		t.Error("no helpers found, want squashfuse and fuse-overlayfs")
	}
	for _, h := range append(i.Helpers, i.Init, i.Parent) {
		t.Logf("process %+v", h)
	}
	if got := inside(t, i, nil, `echo data >$HOME/f && echo "$HOME $(cat /session/f)"`); got != "/session data\n" {
		t.Errorf("home: got %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(ov, "upper/session/f")); err != nil || string(b) != "data\n" {
		t.Errorf("file in upper: got %q, %v", b, err)
	}
	st, err := i.Stop(t.Context(), 0)
	if err != nil {
		t.Fatalf("Stop: %v", err)
	}
	t.Logf("stopped: %+v", st)
	if st.Path != StopTerm {
		t.Errorf("stop path: got %q, want %q", st.Path, StopTerm)
	}
	for _, p := range append(i.Helpers, i.Init, i.Parent) {
		if p.Alive() {
			t.Errorf("%+v is alive after Stop", p)
		}
	}
	if list, err := r.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list after Stop: got %v, %v, want none", list, err)
	}
	if st, err := i.Stop(t.Context(), 0); err != nil || st.Path != StopGone {
		t.Errorf("second Stop: got %+v, %v, want path %q", st, err, StopGone)
	}
}

func (o StartOptions) with(f func(*StartOptions)) StartOptions { f(&o); return o }

// TestPayload: the payload gets its descriptors, and is quicker than an exec.
func TestPayload(t *testing.T) {
	r := testRuntime(t)
	ov := testOverlay(t)
	sock := filepath.Join(r.RunDir, "s")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lf, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer lf.Close()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	i := testStart(t, r, StartOptions{
		Name: testInstance + "payload", Image: testImage, Overlay: ov, Home: "/session",
		DeferVerify: true,
		Payload: &Payload{Program: exe, Args: []string{"shim", "--fd", "3", "a b"}, Files: []*os.File{lf},
			Env: []string{"HPCEXEC_TEST_PAYLOAD=1", "ODD=a$HOME\n'\"`id`"}},
	})
	t.Logf("start %v", time.Since(begin))
	c, err := net.Dial("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatalf("payload doesn't answer: %v; log: %s", err, r.instanceLog(i.Name))
	}
	t.Logf("ready %v\n%s", time.Since(begin), b)
	for _, want := range []string{"ppid 1", `"shim" "--fd" "3" "a b"`, `"ODD=a$HOME\n'\"` + "`id`" + `"`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("payload's answer lacks %q", want)
		}
	}
	if ents, err := os.ReadDir(filepath.Join(ov, "upper")); err != nil || len(ents) != 1 {
		t.Errorf("upper: got %v, %v, want session alone", ents, err)
	}
}

// TestStartErrors: the errors that users meet have our words.
func TestStartErrors(t *testing.T) {
	r := testRuntime(t)
	ov := testOverlay(t)
	good := StartOptions{Name: testInstance + "errors", Image: testImage, Overlay: ov, DeferVerify: true}
	testStart(t, r, good.with(func(o *StartOptions) { o.Name += "-exists" }))
	for _, tc := range []struct {
		name    string
		change  func(*StartOptions)
		wantErr error
		want    string
	}{
		{"same name", func(o *StartOptions) { o.Name += "-exists"; o.Overlay = testOverlay(t) }, ErrExists, "runs on this node"},
		{"foreign name", func(o *StartOptions) { o.Name = "x" }, hpcexec.ErrInvalid, "doesn't begin with"},
		{"missing image", func(o *StartOptions) { o.Image = "/scratch/images/none.sif" }, hpcexec.ErrInvalid, "no such file"},
		{"junk image", func(o *StartOptions) { o.Image = "/etc/passwd" }, hpcexec.ErrInvalid, "not a container image"},
		{"missing overlay", func(o *StartOptions) { o.Overlay += "/none" }, hpcexec.ErrInvalid, "no such file"},
		{"missing bind", func(o *StartOptions) { o.Mounts = []Mount{{Src: "/none", Dst: "/x"}} }, hpcexec.ErrInvalid, "no such file"},
		{"overlay with colon", func(o *StartOptions) { o.Overlay += ":x" }, hpcexec.ErrInvalid, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			i, err := r.Start(t.Context(), good.with(tc.change))
			if err == nil {
				i.Stop(context.Background(), 0)
			}
			if !errors.Is(err, tc.wantErr) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want %v with %q", err, tc.wantErr, tc.want)
			}
			t.Logf("%v\n\thint: %s", err, hpcexec.Hint(err))
		})
	}
}
