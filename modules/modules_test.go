package modules

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hpcexec/hpcexec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeClient loads modules with the module command of testdata/fake.bash, in a
// real login shell whose profile is a test's.
func fakeClient(t *testing.T, profile string) *Client {
	t.Helper()
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".bash_profile"), []byte(profile), 0o600); err != nil {
		t.Fatal(err)
	}
	init, err := filepath.Abs("testdata/fake.bash")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "theprog"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	base := &hpcexec.Local{Env: []string{"HOME=" + home, "PATH=/usr/bin:/bin", "GONE=1", "FAKE_BIN=" + bin}}
	c := New(base, Options{})
	c.o.Init = []string{"/nonexistent", init} // none of this machine's
	return c
}

func TestLoad(t *testing.T) {
	noisy := "echo banner; echo warning >&2; echo 'PATH=x after 0'\n"
	for _, tc := range []struct {
		name    string
		profile string
		modules []string
		want    []string // entries of Set
		loaded  []string
		unset   []string
		wantErr error
		hint    string
	}{
		{name: "values with line breaks", modules: []string{"gcc"}, want: []string{"CC=a b\nc"}, loaded: []string{"gcc/12.1"}, unset: []string{"GONE"}},
		{name: "noise of profile and module", profile: noisy, modules: []string{"loud"}, want: []string{"LOUD=1"}, loaded: []string{"loud/1"}},
		{name: "module breaks PATH", modules: []string{"breaks"}, want: []string{"PATH=/none"}, loaded: []string{"breaks/1"}},
		{name: "stdin is empty", modules: []string{"reads"}, want: []string{"READ=nothing"}, loaded: []string{"reads"}},
		{name: "unknown, exit code 0", modules: []string{"gc"}, wantErr: ErrUnknownModule, hint: "gcc/12.1"},
		{name: "unknown, nothing like it", modules: []string{"zzzzzz"}, wantErr: ErrUnknownModule, hint: "none of a like name"},
		{name: "refuses", modules: []string{"refuses"}, wantErr: hpcexec.ErrInvalid},
		{name: "ends the shell", modules: []string{"leaves"}, wantErr: hpcexec.ErrUnavailable},
		{name: "profile ends the shell", profile: "exit 0\n", modules: []string{"gcc"}, wantErr: hpcexec.ErrUnavailable},
		{name: "option", modules: []string{"--help"}, wantErr: hpcexec.ErrInvalid},
		{name: "shell syntax", modules: []string{"$(id)"}, wantErr: hpcexec.ErrInvalid},
		{name: "no name", wantErr: hpcexec.ErrInvalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, err := fakeClient(t, tc.profile).Load(t.Context(), tc.modules...)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("got error %v, want %v", err, tc.wantErr)
			}
			if h := hpcexec.Hint(err); !strings.Contains(h, tc.hint) {
				t.Errorf("hint: got %q, want %q in it", h, tc.hint)
			}
			for _, w := range tc.want {
				if !slices.Contains(d.Set, w) {
					t.Errorf("Set: got %q, want %q in it", d.Set, w)
				}
			}
			if !slices.Equal(d.Loaded, tc.loaded) || !slices.Equal(d.Unset, tc.unset) {
				t.Errorf("got loaded %q unset %q, want %q, %q", d.Loaded, d.Unset, tc.loaded, tc.unset)
			}
		})
	}
}

func TestLoadTimesOut(t *testing.T) {
	c := fakeClient(t, "")
	c.o.Timeout = 300 * time.Millisecond
	if _, err := c.Load(t.Context(), "hangs"); !errors.Is(err, hpcexec.ErrUnavailable) || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("got %v, want ErrUnavailable that says so", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Load(ctx, "gcc"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}

func TestNoModuleCommand(t *testing.T) {
	c := fakeClient(t, "")
	c.o.Init = nil
	if _, err := c.Load(t.Context(), "gcc"); !errors.Is(err, ErrNoModules) || !errors.Is(err, hpcexec.ErrUnavailable) {
		t.Errorf("got %v, want ErrNoModules", err)
	}
	c.o.Shell = "/nonexistent/bash"
	if _, err := c.Load(t.Context(), "gcc"); !errors.Is(err, ErrNoModules) {
		t.Errorf("no shell: got %v, want ErrNoModules", err)
	}
}

func TestWhich(t *testing.T) {
	c := fakeClient(t, "")
	path, module, err := c.Which(t.Context(), "theprog", "nosuch", "refuses", "prog", "gcc")
	if err != nil || module != "prog" || filepath.Base(path) != "theprog" {
		t.Errorf("got %q, %q, %v, want theprog of prog", path, module, err)
	}
	if path, module, err := c.Which(t.Context(), "sh", "gcc"); err != nil || module != "" || filepath.Base(path) != "sh" {
		t.Errorf("without a module: got %q, %q, %v", path, module, err)
	}
	if _, _, err := c.Which(t.Context(), "theprog", "gcc"); !errors.Is(err, hpcexec.ErrUnavailable) {
		t.Errorf("absent: got %v, want ErrUnavailable", err)
	}
}

// recorder is an executor that keeps the requests it passes on.
type recorder struct {
	hpcexec.Executor
	got []hpcexec.Request
}

func (r *recorder) Run(ctx context.Context, req hpcexec.Request) (hpcexec.Response, error) {
	r.got = append(r.got, req)
	return r.Executor.Run(ctx, req)
}

func TestSet(t *testing.T) {
	c := fakeClient(t, "")
	rec := &recorder{Executor: &hpcexec.Local{Env: []string{"PATH=/usr/bin:/bin"}}}
	s := NewSet(rec, c, "gcc")
	for range 2 {
		var out strings.Builder
		resp, err := s.Run(t.Context(), hpcexec.Request{
			Args: []string{"/bin/sh", "-c", `echo "$CC|$MINE|${PATH%%:*}"`}, Env: []string{"MINE=1", "CC=cc"}, Stdout: &out,
		})
		if err != nil || resp.ExitCode != 0 || out.String() != "cc|1|/opt/gcc/bin\n" {
			t.Errorf("got %q, %+v, %v", out.String(), resp, err)
		}
	}
	if len(rec.got) != 2 {
		t.Fatalf("base was called %d times, want 2: the modules are loaded by the client, once", len(rec.got))
	}
	if got := rec.got[0]; len(got.Args) != 3 || got.Dir != "" {
		t.Errorf("request to base: got %+v, want argv and dir as they were", got)
	}
	if _, err := NewSet(rec, c, "nosuch").Run(t.Context(), hpcexec.Request{Args: []string{"true"}}); !errors.Is(err, ErrUnknownModule) {
		t.Errorf("unknown module: got %v", err)
	}
	if len(rec.got) != 2 {
		t.Error("the command ran without its modules")
	}
}

// The texts are what Lmod 8.7.60 and Environment Modules 5.2.0 print.
const (
	lmodUnknown = `Lmod has detected the following error: The following module(s) are unknown:
"nosuch"

Please check the spelling or version number. Also try "module spider ..."
`
	tclUnknown = "ERROR: Unable to locate a modulefile for 'nosuch'\n"
	tclRefuses = "no license\n\nLoading bad\n  ERROR: Module evaluation aborted\n"
	lmodAvail  = "/opt/modulefiles:\napptainer/\napptainer/1.4.5\ntools/\ntools/1.0\n"
	tclAvail   = "/tmp/em/mf:\nbad\ncuda/12.4\ngcc/12.1 <L>\n"
)

func TestTexts(t *testing.T) {
	for text, want := range map[string]bool{lmodUnknown: true, tclUnknown: true, tclRefuses: false, "": false} {
		if got := looksUnknown(text); got != want {
			t.Errorf("looksUnknown(%q): got %v, want %v", text, got, want)
		}
	}
	for text, want := range map[string]string{
		lmodAvail: "apptainer/1.4.5 tools/1.0",
		tclAvail:  "bad cuda/12.4 gcc/12.1",
		"":        "",
		"------ /opt ------\ngcc/9(default)\ngcc/9(default)\nx@\n": "gcc/9 x",
	} {
		if got := strings.Join(parseAvail(text), " "); got != want {
			t.Errorf("parseAvail(%q): got %q, want %q", text, got, want)
		}
	}
}

func TestCloseNames(t *testing.T) {
	names := []string{"apptainer/1.4.5", "singularity/4", "gcc/12", "gcc/13", "openmpi/5", "cuda/12", "cudnn/9"}
	for wrong, want := range map[string]string{
		"aptainer":  "apptainer/1.4.5",
		"Apptainer": "apptainer/1.4.5",
		"gcc/99":    "gcc/12 gcc/13",
		"mpi":       "openmpi/5",
		"cuda/1":    "cuda/12 cudnn/9"[:7],
		"zzz":       "",
	} {
		if got := strings.Join(closeNames(wrong, names, 5), " "); got != want {
			t.Errorf("closeNames(%q): got %q, want %q", wrong, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	seeds := []string{
		lmodAvail, tclAvail, lmodUnknown,
		"noise M before\nA=1\x00PATH=/bin\x00M after 0\nA=2\x00LOADEDMODULES=a/1:b\x00M end\n",
		"M before\nM after x\nM end\n",
	}
	for _, s := range seeds {
		f.Add(s)
	}
	if len(seeds) == 0 {
		f.Fatal("the corpus is empty")
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, n := range parseAvail(s) {
			if err := checkNames([]string{n}); err != nil {
				t.Errorf("parseAvail gave %v", err)
			}
		}
		a, err := parseLoad(s, "M")
		if err != nil {
			return
		}
		req := hpcexec.Request{Args: []string{"x"}, Env: diff(a.before, a.after).Set}
		if err := req.Check(); err != nil {
			t.Errorf("Set can't be in a request: %v", err)
		}
	})
}
