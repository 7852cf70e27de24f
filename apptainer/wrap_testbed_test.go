//go:build testbed

package apptainer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
)

func testWrapper(t *testing.T, name, image string) *Wrapper {
	t.Helper()
	r := testRuntime(t)
	ov := testOverlay(t)
	i := testStart(t, r, StartOptions{Name: testInstance + name, Image: image, Overlay: ov,
		Home: "/session", WorkDir: filepath.Join(ov, "tmp"), DeferVerify: true})
	return i.Wrap(&hpcexec.Local{Env: ScrubEnv(os.Environ())})
}

func TestWrap(t *testing.T) {
	for _, image := range []string{testImage, testBusybox} {
		t.Run(filepath.Base(image), func(t *testing.T) { testWrap(t, image) })
	}
}

func testWrap(t *testing.T, image string) {
	w := testWrapper(t, "wrap-"+strings.TrimSuffix(filepath.Base(image), ".sif"), image)
	type result struct {
		resp           hpcexec.Response
		err            error
		stdout, stderr string
	}
	run := func(req hpcexec.Request) result {
		var stdout, stderr bytes.Buffer
		req.Stdout, req.Stderr = &stdout, &stderr
		begin := time.Now()
		resp, err := w.Run(t.Context(), req)
		if testing.Verbose() && err != nil {
			t.Logf("%v: %q: %v, stderr %q", time.Since(begin), req.Args, err, clip(stderr.String(), 300))
		}
		return result{resp, err, stdout.String(), stderr.String()}
	}
	sh := func(script string, args ...string) []string {
		return append([]string{"sh", "-c", script, "sh"}, args...)
	}

	odd := []string{"", " ", "a b", "$HOME", "`id`", "'\"\\", "x\ny\n", "--", "-n", "ü☃", "\xff\xfe\x01", "*"}
	r := run(hpcexec.Request{Args: sh(`for a; do printf "%s\000" "$a"; done`, odd...)})
	if want := strings.Join(odd, "\x00") + "\x00"; r.stdout != want {
		t.Errorf("argv: got %q, want %q", r.stdout, want)
	}
	for _, v := range []string{"plain", "", "a$HOME`id`$(id)", "'\"\\", "x\ny\n\n", "ü", "\xff\x80", "a,b=c"} {
		for _, name := range []string{"FOO", "HOME", "LD_LIBRARY_PATH", "PREPEND_PATH", "TERM", "LANG"} {
			r = run(hpcexec.Request{Args: sh(`printf "%s." "$` + name + `"`), Env: []string{name + "=" + v}})
			if r.stdout != v+"." {
				t.Errorf("env %s: got %q, want %q", name, r.stdout, v+".")
			}
		}
	}
	r = run(hpcexec.Request{Args: []string{"/bin/sh", "-c", `echo "$PATH"`}, Env: []string{"PATH=/nowhere"}})
	if r.stdout != "/nowhere\n" {
		t.Errorf("PATH: got %q", r.stdout)
	}
	r = run(hpcexec.Request{Args: []string{"apt", "-c", `:`}, Env: []string{"PATH=/nowhere"}})
	if r.resp.ExitCode != 127 || r.err != nil {
		t.Errorf("bad PATH: got %d, %v, want 127", r.resp.ExitCode, r.err)
	}
	r = run(hpcexec.Request{Args: sh(`echo $A$B$C`), Env: []string{"A=1", "B=2", "A=3"}, Secrets: []string{"B=4", "C=5"}})
	if r.stdout != "345\n" {
		t.Errorf("env order: got %q, want 345", r.stdout)
	}
	for _, tc := range []struct {
		args []string
		want int
		sig  string
	}{
		{sh("exit 255"), 255, ""}, {sh("exit 3"), 3, ""}, {sh("exit 143"), 143, ""},
		{[]string{"/none"}, 127, ""}, {[]string{"none"}, 127, ""}, {[]string{"/etc/passwd"}, 126, ""}, {[]string{"/tmp"}, 126, ""},
		{[]string{"-none"}, 127, ""},
		{sh("kill -TERM $$"), 143, "TERM"}, {sh("kill -KILL $$"), 137, "KILL"},
	} {
		r := run(hpcexec.Request{Args: tc.args})
		if r.err != nil || r.resp.ExitCode != tc.want || r.resp.Signal != tc.sig {
			t.Errorf("%q: got %d %q %v, want %d %q", tc.args, r.resp.ExitCode, r.resp.Signal, r.err, tc.want, tc.sig)
		}
	}
	r = run(hpcexec.Request{Args: sh("pwd"), Dir: "/none"})
	if !errors.Is(r.err, hpcexec.ErrInvalid) || r.stdout != "" {
		t.Errorf("missing dir: got %v, %q", r.err, r.stdout)
	}
	for dir, want := range map[string]string{"": "/session\n", "/tmp": "/tmp\n"} {
		if r = run(hpcexec.Request{Args: sh("pwd"), Dir: dir}); r.stdout != want {
			t.Errorf("dir %q: got %q", dir, r.stdout)
		}
	}
	r = run(hpcexec.Request{Args: []string{"env"}, Env: []string{"SEEN=1"}, ID: "theid"})
	if strings.Contains(r.stdout, "HPCEXEC_E_") || strings.Contains(r.stdout, "hx_") || !strings.Contains(r.stdout, "HPCEXEC_ID=theid\n") {
		t.Errorf("environment has leftovers of the script")
	}
	r = run(hpcexec.Request{Args: []string{"cat"}, Stdin: strings.NewReader(strings.Repeat("x", 1<<20))})
	if len(r.stdout) != 1<<20 {
		t.Errorf("stdin: got %d bytes", len(r.stdout))
	}
	var both bytes.Buffer
	if _, err := w.Run(t.Context(), hpcexec.Request{Args: sh("echo a; echo b >&2; echo c"), Stdout: &both, Stderr: &both}); err != nil || both.String() != "a\nb\nc\n" {
		t.Errorf("both streams: got %q, %v", both.String(), err)
	}
	big := strings.Repeat("y", 100_000)
	r = run(hpcexec.Request{Args: sh("printf %s \"${#A}${#B}\""), Env: []string{"A=" + big, "B=" + big}})
	if r.stdout != "100000100000" {
		t.Errorf("big env: got %q", r.stdout)
	}
	var env []string
	for _, n := range strings.Split("A B C D E F G H I J K L", " ") {
		env = append(env, n+"="+big)
	}
	if r = run(hpcexec.Request{Args: sh(":"), Env: env}); !errors.Is(r.err, hpcexec.ErrInvalid) {
		t.Errorf("too big env: got %v", r.err)
	}
	if r = run(hpcexec.Request{Args: sh("echo ${#A}"), Env: env[:9]}); r.stdout != "100000\n" {
		t.Errorf("nearly too big env: got %q, %v", r.stdout, r.err)
	}
	if r = run(hpcexec.Request{Args: sh("test -t 0 && stty size 2>/dev/null; echo $TERM"), TTY: &hpcexec.TTY{Term: "xterm", Cols: 90, Rows: 20}}); !strings.HasSuffix(r.stdout, "xterm\r\n") || strings.Contains(r.stdout, "hpcexec:") {
		t.Errorf("terminal: got %q", r.stdout)
	}
}

// survivors counts processes inside that sleep a telling number of seconds.
func survivors(t *testing.T, w *Wrapper, mark string) string {
	t.Helper()
	pids, err := ownPIDs()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range pids {
		if slices.Contains(cmdline(p), mark) {
			out = append(out, strings.Join(cmdline(p), " "))
		}
	}
	return strings.Join(out, "; ")
}

func TestWrapEnds(t *testing.T) {
	w := testWrapper(t, "ends", testImage)
	tree := `sleep 4321 & setsid sleep 4321 & (sleep 4321 &) ; env -i sleep 4321 & env -i setsid sleep 4321 & trap 'echo trapped; exit 5' TERM; echo ready; while :; do sleep 0.05; done`

	for _, tc := range []struct {
		name string
		run  func(req hpcexec.Request, started <-chan struct{}) (hpcexec.Response, error)
		want error
	}{
		{"cancel", func(req hpcexec.Request, started <-chan struct{}) (hpcexec.Response, error) {
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-started; cancel() }()
			return w.Run(ctx, req)
		}, context.Canceled},
		{"time-out", func(req hpcexec.Request, started <-chan struct{}) (hpcexec.Response, error) {
			req.Timeout = time.Second
			return w.Run(t.Context(), req)
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pr, pw := io.Pipe()
			var out bytes.Buffer
			started := make(chan struct{})
			go func() {
				buf := make([]byte, 100)
				for first := true; ; first = false {
					n, err := pr.Read(buf)
					out.Write(buf[:n])
					if first {
						close(started)
					}
					if err != nil {
						return
					}
				}
			}()
			begin := time.Now()
			resp, err := tc.run(hpcexec.Request{Args: []string{"sh", "-c", tree}, Stdout: pw}, started)
			pw.Close()
			t.Logf("%v: %+v %v, output %q", time.Since(begin), resp, err, out.String())
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if resp.TimedOut != (tc.want == nil) {
				t.Errorf("TimedOut: got %v", resp.TimedOut)
			}
			if out.String() != "ready\ntrapped\n" {
				t.Errorf("output: got %q, want the trap's", out.String())
			}
			if left := survivors(t, w, "4321"); left != "" {
				t.Errorf("survivors: %s", left)
			}
		})
	}

	t.Run("signal", func(t *testing.T) {
		var out bytes.Buffer
		p, err := w.Start(t.Context(), hpcexec.Request{
			Args:   []string{"sh", "-c", `trap 'echo usr1' USR1; trap 'echo int; exit 7' INT; while :; do sleep 0.05; done`},
			Stdout: &out,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"USR1", "INT"} {
			time.Sleep(200 * time.Millisecond)
			if err := p.Signal(s); err != nil {
				t.Errorf("signal %s: %v", s, err)
			}
		}
		resp, err := p.Wait()
		if err != nil || resp.ExitCode != 7 || out.String() != "usr1\nint\n" {
			t.Errorf("got %d, %v, %q; want 7, usr1 and int", resp.ExitCode, err, out.String())
		}
		if err := p.Signal("TERM"); !errors.Is(err, hpcexec.ErrInvalid) {
			t.Errorf("signal after the end: got %v", err)
		}
	})

	t.Run("background", func(t *testing.T) {
		var out bytes.Buffer
		begin := time.Now()
		resp, err := w.Run(t.Context(), hpcexec.Request{Args: []string{"sh", "-c", "sleep 4322 & echo done"}, Stdout: &out})
		if err != nil || resp.ExitCode != 0 || out.String() != "done\n" || time.Since(begin) > 5*time.Second {
			t.Errorf("got %+v, %v, %q after %v", resp, err, out.String(), time.Since(begin))
		}
		// The child may be between fork and exec yet.
		for range 40 {
			if survivors(t, w, "4322") != "" {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Error("the background process is gone")
	})

	t.Run("lost", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		p, err := w.Start(ctx, hpcexec.Request{Args: []string{"sleep", "4323"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.inst.Stop(ctx, 0); err != nil {
			t.Error(err)
		}
		resp, err := p.Wait()
		if !errors.Is(err, hpcexec.ErrUnknownEnd) {
			t.Errorf("got %+v, %v, want ErrUnknownEnd", resp, err)
		}
		_, err = w.Run(ctx, hpcexec.Request{Args: []string{"true"}})
		if !errors.Is(err, hpcexec.ErrUnavailable) || !errors.Is(err, ErrNotFound) {
			t.Errorf("after the end: got %v, want ErrNotFound", err)
		}
	})
}
