package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"hpcexec": main})
}

// TestScripts runs testdata/script: the command line as people use it, with
// this test binary as hpcexec, without a cluster and without a network.
func TestScripts(t *testing.T) {
	const dir = "testdata/script"
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(files) < 5 {
		t.Fatalf("scripts in %s: got %d, want 5 or more", dir, len(files))
	}
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(env *testscript.Env) error {
			home := filepath.Join(env.WorkDir, "home")
			env.Setenv("HOME", home)
			env.Setenv("HPCEXEC_HOME", filepath.Join(env.WorkDir, "state"))
			env.Setenv("HPCEXEC_SCRATCH", filepath.Join(env.WorkDir, "scratch"))
			env.Setenv("SSH_AUTH_SOCK", "")
			return os.MkdirAll(home, 0o700)
		},
	})
}
