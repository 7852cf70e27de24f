package apptainer

import (
	"encoding/csv"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/hpcexec/hpcexec"
)

func TestStartArgv(t *testing.T) {
	base := "/usr/bin/rt -s instance start --containall --no-home --no-eval"
	no := func(string) bool { return false }
	for _, tc := range []struct {
		name    string
		runtime Runtime
		o       StartOptions
		dir     bool
		exists  func(string) bool
		want    string
		wantErr error
	}{
		{name: "least", o: StartOptions{}, want: base + " --pid-file /run/p /i.sif hpcexec-x"},
		{name: "overlay and layers", dir: true, o: StartOptions{Overlay: "/o", Layers: []string{"/l1.sqfs", "/l2"}},
			want: base + " --overlay /l1.sqfs:ro --overlay /l2:ro --overlay /o --pid-file /run/p /i.sif hpcexec-x"},
		{name: "all", dir: true, o: StartOptions{Overlay: "/o", Home: "/session", WorkDir: "/w", Fakeroot: true, NetNone: true, GPU: GPUNV,
			Mounts: []Mount{{Src: "/a", Dst: "/b", RO: true}}},
			want: base + " --fakeroot --home /session --overlay /o --workdir /w --mount type=bind,source=/a,destination=/b,ro --nv --net --network none --pid-file /run/p /i.sif hpcexec-x"},
		{name: "setuid with a directory", runtime: Runtime{SetUID: true}, dir: true, o: StartOptions{Overlay: "/o"},
			want: base + " --userns --overlay /o --pid-file /run/p /i.sif hpcexec-x"},
		{name: "setuid with an image", runtime: Runtime{SetUID: true}, o: StartOptions{Overlay: "/o.img"},
			want: base + " --overlay /o.img --pid-file /run/p /i.sif hpcexec-x"},
		{name: "nvidia found", exists: func(p string) bool { return p == "/dev/nvidiactl" }, want: base + " --nv --pid-file /run/p /i.sif hpcexec-x"},
		{name: "amd found", exists: func(p string) bool { return p == "/dev/kfd" }, want: base + " --rocm --pid-file /run/p /i.sif hpcexec-x"},
		{name: "found and not wanted", o: StartOptions{GPU: GPUNone}, exists: func(string) bool { return true }, want: base + " --pid-file /run/p /i.sif hpcexec-x"},
		{name: "bad gpu", o: StartOptions{GPU: "intel"}, wantErr: hpcexec.ErrInvalid},
		{name: "relative image", o: StartOptions{Image: "i.sif"}, wantErr: hpcexec.ErrInvalid},
		{name: "home with colon", o: StartOptions{Home: "/a:/b"}, wantErr: hpcexec.ErrInvalid},
		{name: "overlay with comma", o: StartOptions{Overlay: "/a,b"}, wantErr: hpcexec.ErrInvalid},
		{name: "layer with colon", o: StartOptions{Layers: []string{"/a:b"}}, wantErr: hpcexec.ErrInvalid},
		{name: "relative overlay", o: StartOptions{Overlay: "o"}, wantErr: hpcexec.ErrInvalid},
		{name: "relative work directory", o: StartOptions{WorkDir: "w"}, wantErr: hpcexec.ErrInvalid},
		{name: "mount with line break", o: StartOptions{Mounts: []Mount{{Src: "/a\nb", Dst: "/x"}}}, wantErr: hpcexec.ErrInvalid},
		{name: "relative mount", o: StartOptions{Mounts: []Mount{{Src: "/a", Dst: "x"}}}, wantErr: hpcexec.ErrInvalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := tc.runtime
			r.Path = "/usr/bin/rt"
			tc.o.Name = "hpcexec-x"
			if tc.o.Image == "" {
				tc.o.Image = "/i.sif"
			}
			if tc.exists == nil {
				tc.exists = no
			}
			argv, err := r.startArgv(tc.o, tc.dir, "/run/p", tc.exists)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("got error %v, want %v", err, tc.wantErr)
			}
			if got := strings.Join(argv, " "); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

func TestMountArg(t *testing.T) {
	for _, tc := range []struct {
		m    Mount
		want string
	}{
		{Mount{Src: "/a", Dst: "/b"}, `type=bind,source=/a,destination=/b`},
		{Mount{Src: "/a:b", Dst: "/c:d", RO: true}, `type=bind,source=/a:b,destination=/c:d,ro`},
		{Mount{Src: "/a b", Dst: "/c"}, `type=bind,source=/a b,destination=/c`},
		{Mount{Src: "/d,a", Dst: "/c"}, `type=bind,"source=/d,a",destination=/c`},
		{Mount{Src: `/q"x`, Dst: "/c"}, `type=bind,"source=/q""x",destination=/c`},
		{Mount{Src: "/a=b", Dst: "/ü"}, `type=bind,source=/a=b,destination=/ü`},
	} {
		got, err := tc.m.arg()
		if err != nil || got != tc.want {
			t.Errorf("%+v: got %q, %v, want %q", tc.m, got, err, tc.want)
		}
	}
}

// FuzzMountArg: what the runtime's CSV reader makes of the argument is the
// mount again.
func FuzzMountArg(f *testing.F) {
	seeds := []string{"/a", "/a,b", `/a"b`, `/","`, "/ x", "/a\\,b", "/a\rb", "/=,ro"}
	for _, s := range seeds {
		f.Add(s, "/dst"+s)
	}
	if len(seeds) == 0 {
		f.Fatal("the corpus is empty")
	}
	f.Fuzz(func(t *testing.T, src, dst string) {
		arg, err := Mount{Src: src, Dst: dst}.arg()
		if err != nil {
			if !errors.Is(err, hpcexec.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
			return
		}
		rec, err := csv.NewReader(strings.NewReader(arg)).ReadAll()
		want := []string{"type=bind", "source=" + src, "destination=" + dst}
		if err != nil || len(rec) != 1 || !slices.Equal(rec[0], want) {
			t.Errorf("%q: the reader makes %q of it, %v, want %q", arg, rec, err, want)
		}
	})
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"hpcexec-x": true, "hpcexec-a.B_9-": true, "hpcexec-": false, "x": false, "": false,
		"hpcexec-*": false, "hpcexec-a b": false, "hpcexec-é": false, "hpcexec-" + strings.Repeat("x", 121): false,
	} {
		if err := checkName(name); (err == nil) != ok || err != nil && !errors.Is(err, hpcexec.ErrInvalid) {
			t.Errorf("checkName(%q): got %v, want ok %v", name, err, ok)
		}
	}
	for _, s := range []string{"train", "", "a b", strings.Repeat("x", 300), "ü"} {
		if err := checkName(InstanceName(s)); err != nil {
			t.Errorf("InstanceName(%q): %v", s, err)
		}
	}
	if InstanceName("train") != "hpcexec-train" || InstanceName("a b") == InstanceName("a c") {
		t.Error("InstanceName: got another name, or one for two sessions")
	}
}

func TestEnviron(t *testing.T) {
	t.Setenv("APPTAINER_BIND", "/etc")
	t.Setenv("SINGULARITYENV_LEAK", "1")
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:x")
	t.Setenv("LD_PRELOAD", "/x.so")
	t.Setenv("TMPDIR", "/nonexistent")
	t.Setenv("HOME", "/home/x")
	r := &Runtime{Path: "/usr/bin/rt", Flavor: Apptainer, ConfigDir: "/run/cfg"}
	env := r.Attach(Info{Name: "hpcexec-x"}).Environ([]string{"A=1", "A=2", "B=$x"})
	for _, bad := range []string{"APPTAINER_BIND", "SINGULARITYENV_LEAK", "DBUS_", "LD_PRELOAD", "TMPDIR", "A=", "APPTAINERENV_A=1"} {
		if slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, bad) }) {
			t.Errorf("%s is in %q", bad, env)
		}
	}
	for _, want := range []string{"APPTAINERENV_A=2", "APPTAINERENV_B=$x", "APPTAINER_CONFIGDIR=/run/cfg", "HOME=/home/x"} {
		if !slices.Contains(env, want) {
			t.Errorf("%s isn't in %q", want, env)
		}
	}
	r.Flavor = SingularityCE
	env = r.Attach(Info{Name: "hpcexec-x"}).Environ([]string{"A=1"})
	if !slices.Contains(env, "SINGULARITYENV_A=1") || slices.ContainsFunc(env, func(e string) bool { return strings.Contains(e, "CONFIGDIR") }) {
		t.Errorf("singularity: got %q", env)
	}
	if got := ScrubEnv([]string{"A=1", "APPTAINER_BIND=/", "SINGULARITY_NV=1", "PATH=/bin"}); !slices.Equal(got, []string{"A=1", "PATH=/bin"}) {
		t.Errorf("ScrubEnv: got %q", got)
	}
}
