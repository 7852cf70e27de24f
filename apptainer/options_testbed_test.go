//go:build testbed

package apptainer

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
)

// TestOddPaths: bind mounts of every path that a mount can express.
func TestOddPaths(t *testing.T) {
	r := testRuntime(t)
	base := testOverlay(t)
	var mounts []Mount
	names := []string{"plain", "a,b", "a:b", `a"b`, " a b ", "a=b", "ü", `a\b`, "a'b", "$HOME", "-a", "a,ro"}
	for _, n := range names {
		dir := filepath.Join(base, "src", n)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte(n), 0o644); err != nil {
			t.Fatal(err)
		}
		mounts = append(mounts, Mount{Src: dir, Dst: "/mnt/x" + n, RO: n == "plain"})
	}
	if err := os.Mkdir(filepath.Join(base, "ov er"), 0o755); err != nil {
		t.Fatal(err)
	}
	i := testStart(t, r, StartOptions{Name: testInstance + "odd", Image: testImage, Overlay: filepath.Join(base, "ov er"), Mounts: mounts, DeferVerify: true})
	for _, n := range names {
		argv := i.Argv(ExecOptions{}, "cat", "/mnt/x"+n+"/f")
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Env = i.Environ(nil)
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != n {
			t.Errorf("mount %q: got %q, %v", n, out, err)
		}
	}
	if out := inside(t, i, nil, "touch /mnt/xplain/new 2>&1; true"); !strings.Contains(out, "Read-only") {
		t.Errorf("read-only mount: got %q", out)
	}
}

// TestOptions: layers, network, root and an ext3 image, as they come out.
func TestOptions(t *testing.T) {
	r := testRuntime(t)
	base := testOverlay(t)
	mk := func(name string) string {
		dir := filepath.Join(base, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	layer := func(name, content string) string {
		dir := mk(name + "/upper/data")
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(base, name)
	}
	low, high := layer("low", "low"), layer("high", "high")
	sq := filepath.Join(base, "low.sqfs")
	if out, err := exec.Command("mksquashfs", filepath.Join(low, "upper"), sq, "-quiet", "-no-progress").CombinedOutput(); err != nil {
		t.Fatalf("mksquashfs: %v: %s", err, out)
	}

	t.Run("layers", func(t *testing.T) {
		i := testStart(t, r, StartOptions{Name: testInstance + "layers", Image: testImage, Overlay: mk("ov1"), Layers: []string{sq, high}})
		if got := inside(t, i, nil, "cat /data/f /data/low /data/high; echo own >/data/f; cat /data/f"); got != "highlowhighown\n" {
			t.Errorf("got %q, want the higher layer's file, and a change of our own", got)
		}
	})
	t.Run("network none", func(t *testing.T) {
		i := testStart(t, r, StartOptions{Name: testInstance + "net", Image: testImage, Overlay: mk("ov2"), NetNone: true, DeferVerify: true})
		if got := inside(t, i, nil, "cat /proc/net/dev"); strings.Contains(got, "eth") || !strings.Contains(got, "lo:") {
			t.Errorf("got %q, want lo alone", got)
		}
	})
	t.Run("fakeroot", func(t *testing.T) {
		i := testStart(t, r, StartOptions{Name: testInstance + "root", Image: testImage, Overlay: mk("ov3"), Fakeroot: true, DeferVerify: true})
		got := inside(t, i, nil, "id -u; touch /f; chown 33 /f && stat -c %u /f")
		if i.Fakeroot != fakerootRange || got != "0\n33\n" {
			t.Errorf("got mapping %q, %q, want %q with a chown that works", i.Fakeroot, got, fakerootRange)
		}
	})
	t.Run("ext3", func(t *testing.T) {
		img := filepath.Join(base, "e.img")
		if out, err := exec.Command(r.Path, "overlay", "create", "--size", "64", img).CombinedOutput(); err != nil {
			t.Fatalf("overlay create: %v: %s", err, out)
		}
		o := StartOptions{Name: testInstance + "ext3", Image: testImage, Overlay: img}
		i := testStart(t, r, o)
		if h, err := Holders(img); err != nil || len(h) != 1 {
			t.Errorf("holders: got %v, %v, want fuse2fs", h, err)
		}
		o.Name += "-second"
		if _, err := r.Start(t.Context(), o); !errors.Is(err, ErrOverlayInUse) || !errors.Is(err, hpcexec.ErrUnavailable) {
			t.Errorf("a second user: got %v, want ErrOverlayInUse", err)
		}
		inside(t, i, nil, "echo kept >/kept")
		if _, err := i.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		j := testStart(t, r, o)
		if got := inside(t, j, nil, "cat /kept"); got != "kept\n" {
			t.Errorf("after a restart: got %q", got)
		}
	})
	t.Run("sandbox", func(t *testing.T) {
		dir := filepath.Join(base, "sandbox")
		if out, err := exec.Command(r.Path, "build", "--sandbox", dir, testBusybox).CombinedOutput(); err != nil {
			t.Fatalf("build: %v: %s", err, out)
		}
		img, err := OpenImage(dir)
		if err != nil || img.Kind != Sandbox || img.Arch == "" {
			t.Errorf("OpenImage: got %+v, %v", img, err)
		}
		i := testStart(t, r, StartOptions{Name: testInstance + "sandbox", Image: dir, Overlay: mk("ov4"), Home: "/session"})
		if got := inside(t, i, nil, "cd && pwd"); got != "/session\n" {
			t.Errorf("got %q", got)
		}
	})
}

// TestCosts reports what start and stop cost beside the bare calls.
func TestCosts(t *testing.T) {
	r := testRuntime(t)
	ov := testOverlay(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := StartOptions{Name: testInstance + "costs", Image: testImage, Overlay: ov, Home: "/session", WorkDir: filepath.Join(ov, "tmp"), DeferVerify: true}
	if err := os.Mkdir(o.WorkDir, 0o700); err != nil {
		t.Fatal(err)
	}
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
	times := map[string][]time.Duration{}
	note := func(what string, begin time.Time) { times[what] = append(times[what], time.Since(begin)) }
	bare := func(args ...string) {
		cmd := exec.Command(r.Path, args...)
		cmd.Env = r.baseEnv(os.Environ())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%q: %v: %s", args, err, out)
		}
	}
	for range 7 {
		begin := time.Now()
		bare("-s", "instance", "start", "--containall", "--no-home", "--home", "/session", "--overlay", ov, "--workdir", o.WorkDir, o.Image, o.Name)
		note("bare instance start", begin)
		begin = time.Now()
		bare("-s", "instance", "stop", o.Name)
		note("bare instance stop", begin)

		begin = time.Now()
		i, err := r.Start(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		note("Start, DeferVerify", begin)
		begin = time.Now()
		inside(t, i, nil, "true")
		note("one exec", begin)
		begin = time.Now()
		i.Stop(t.Context(), 0)
		note("Stop", begin)

		p := o
		p.Payload = &Payload{Program: exe, Env: []string{"HPCEXEC_TEST_PAYLOAD=1"}, Files: []*os.File{lf}}
		begin = time.Now()
		if i, err = r.Start(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("unix", sock)
		if err != nil {
			t.Fatal(err)
		}
		io.ReadAll(c)
		c.Close()
		note("Start with payload, answered", begin)
		i.Stop(t.Context(), 0)

		p = o
		p.DeferVerify = false
		begin = time.Now()
		if i, err = r.Start(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		note("Start, verified by exec", begin)
		i.Stop(t.Context(), 0)

		begin = time.Now()
		bare("-s", "exec", "--containall", "--no-home", "--home", "/session", "--overlay", ov, "--workdir", o.WorkDir, o.Image, "true")
		note("bare exec of the image", begin)
	}
	for what, d := range times {
		slices.Sort(d)
		t.Logf("%-30s median %4d ms, min %4d", what, d[len(d)/2].Milliseconds(), d[0].Milliseconds())
	}
}
