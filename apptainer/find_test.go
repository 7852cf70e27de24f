package apptainer

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hpcexec/hpcexec"
)

func TestParseVersion(t *testing.T) {
	for _, tc := range []struct {
		text    string
		flavor  Flavor
		version Version
		wantErr bool
	}{
		{"apptainer version 1.4.5\n", Apptainer, Version{1, 4, 5}, false},
		{"apptainer version 1.3.2-1.el9\n", Apptainer, Version{1, 3, 2}, false},
		{"singularity-ce version 4.5.0+12-gabcdef\n", SingularityCE, Version{4, 5, 0}, false},
		{"singularity-pro version 3.11.9\n", SingularityPro, Version{3, 11, 9}, false},
		{"singularity version 3.8.7-1.el8\n", Singularity, Version{3, 8, 7}, false},
		{"WARNING: noise\nsingularity-ce version 4.1\n", SingularityCE, Version{4, 1, 0}, false},
		{"podman version 5.0.0\n", "", Version{}, true},
		{"1.4.5\n", "", Version{}, true},
		{"", "", Version{}, true},
	} {
		f, v, err := ParseVersion(tc.text)
		if f != tc.flavor || v != tc.version || (err != nil) != tc.wantErr {
			t.Errorf("%q: got %s %v %v, want %s %v, error %v", tc.text, f, v, err, tc.flavor, tc.version, tc.wantErr)
		}
	}
	if v := (Version{1, 4, 5}); !v.AtLeast(1, 4) || !v.AtLeast(0, 9) || v.AtLeast(1, 5) || v.AtLeast(2, 0) {
		t.Error("AtLeast is wrong")
	}
}

func FuzzParseVersion(f *testing.F) {
	seeds := []string{"apptainer version 1.4.5\n", "singularity-ce version 4.5.0+12-g\n", "version", "apptainer version 99999999999.1.1"}
	for _, s := range seeds {
		f.Add(s)
	}
	if len(seeds) == 0 {
		f.Fatal("the corpus is empty")
	}
	f.Fuzz(func(t *testing.T, s string) {
		_, v, err := ParseVersion(s)
		if err != nil {
			return
		}
		var back Version
		b, _ := v.MarshalText()
		if err := back.UnmarshalText(b); err != nil || back != v {
			t.Errorf("%v doesn't come back from text: %v, %v", v, back, err)
		}
	})
}

func TestBuildConfig(t *testing.T) {
	c := parseBuildConfig("PACKAGE_NAME=singularity\nSINGULARITY_CONF_FILE=/etc/singularity/singularity.conf\nSINGULARITY_SUID_INSTALL=1\n")
	if !c.setUID || c.confFile != "/etc/singularity/singularity.conf" {
		t.Errorf("got %+v", c)
	}
	if parseBuildConfig("APPTAINER_SUID_INSTALL=0\n").setUID {
		t.Error("0 is read as setuid")
	}
	for conf, want := range map[string]bool{"": true, "# allow setuid = no\n": true, "allow setuid = no\n": false, "allow setuid=yes\n": true} {
		if got := setUIDAllowed(conf); got != want {
			t.Errorf("setUIDAllowed(%q): got %v, want %v", conf, got, want)
		}
	}
}

// fakeProgram writes a program that says of itself what it is told, and counts
// its calls in a file beside it.
func fakeProgram(t *testing.T, dir, name, version, suid string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	script := "#!/bin/sh\necho x >>" + path + ".calls\ncase $1 in\n--version) echo '" + version + "' ;;\nbuildcfg) echo APPTAINER_SUID_INSTALL=" + suid + " ;;\nesac\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFind(t *testing.T) {
	tmp := t.TempDir()
	dir := func(s string) string { return filepath.Join(tmp, s) }
	app := fakeProgram(t, dir("app"), "apptainer", "apptainer version 1.4.5", "0")
	fakeProgram(t, dir("sing"), "singularity", "apptainer version 1.2.0", "1")
	ce := fakeProgram(t, dir("ce"), "singularity", "singularity-ce version 4.5.0", "0")
	fakeProgram(t, dir("podman"), "apptainer", "podman version 5", "0")
	if err := os.MkdirAll(dir("empty/apptainer"), 0o755); err != nil {
		t.Fatal(err)
	}
	old := fakeProgram(t, dir("opt/1.1/bin"), "apptainer", "apptainer version 1.1.0", "0")
	newer := fakeProgram(t, dir("opt/1.4/bin"), "apptainer", "apptainer version 1.4.0", "0")
	_ = old
	gone := errors.New("no such module")

	for _, tc := range []struct {
		name    string
		o       FindOptions
		want    string
		flavor  Flavor
		setUID  bool
		wantErr error
		texts   []string
	}{
		{name: "path", o: FindOptions{Path: dir("empty") + ":" + dir("app") + ":" + dir("ce")}, want: app, flavor: Apptainer},
		{name: "singularity that is apptainer", o: FindOptions{Path: dir("sing")}, want: dir("sing/singularity"), flavor: Apptainer, setUID: true},
		{name: "one that isn't is passed over", o: FindOptions{Path: dir("podman") + ":" + dir("ce")}, want: ce, flavor: SingularityCE},
		{name: "newest of a pattern", o: FindOptions{Path: dir("empty"), Prefixes: []string{dir("opt/*/bin")}}, want: newer, flavor: Apptainer},
		{name: "module", o: FindOptions{Path: dir("empty"), Module: func(context.Context) (string, error) { return app, nil }}, want: app, flavor: Apptainer},
		{name: "nowhere", o: FindOptions{Path: dir("empty") + ":" + dir("podman"), Prefixes: []string{"/none/*/bin"}, Module: func(context.Context) (string, error) { return "", gone }},
			wantErr: hpcexec.ErrUnavailable, texts: []string{dir("empty"), "/none/*/bin", "podman", "no such module"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.o.NoUsual = true
			r, err := Find(t.Context(), tc.o)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("got error %v, want %v", err, tc.wantErr)
			}
			for _, s := range tc.texts {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("error %q doesn't tell of %q", err, s)
				}
			}
			if err == nil && (r.Path != tc.want || r.Flavor != tc.flavor || r.SetUID != tc.setUID) {
				t.Errorf("got %+v, want %s, %s, setuid %v", r, tc.want, tc.flavor, tc.setUID)
			}
		})
	}
}

// TestFindRemembers: a program is asked once, until it changes.
func TestFindRemembers(t *testing.T) {
	tmp := t.TempDir()
	app := fakeProgram(t, filepath.Join(tmp, "bin"), "apptainer", "apptainer version 1.4.5", "0")
	run := t.TempDir()
	find := func() *Runtime {
		t.Helper()
		r, err := Find(t.Context(), FindOptions{Path: filepath.Dir(app), NoUsual: true, RunDir: run})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	calls := func() int { b, _ := os.ReadFile(app + ".calls"); return strings.Count(string(b), "x") }
	first := find()
	n := calls()
	if again := find(); *again != *first || calls() != n {
		t.Errorf("second find: got %+v with %d calls, want %+v with %d", again, calls(), first, n)
	}
	if first.ConfigDir != filepath.Join(run, "apptainer") {
		t.Errorf("ConfigDir: got %q", first.ConfigDir)
	}
	fakeProgram(t, filepath.Dir(app), "apptainer", "apptainer version 1.4.66", "0")
	if r := find(); r.Version.Patch != 66 {
		t.Errorf("after a change: got %v, want 1.4.66", r.Version)
	}
	var back Runtime
	b, err := json.Marshal(first)
	if err == nil {
		err = json.Unmarshal(b, &back)
	}
	if err != nil || back != *first {
		t.Errorf("from JSON: got %+v, %v, want %+v", back, err, first)
	}
}
