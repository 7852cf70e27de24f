package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
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
			env.Defer(func() { endProcesses(t, env.WorkDir) })
			return os.MkdirAll(home, 0o700)
		},
	})
}

// endProcesses kills what a script that failed has left in the background:
// whatever has the script's directory in its environment or command line.
func endProcesses(t *testing.T, dir string) {
	for _, file := range []string{"environ", "cmdline"} {
		paths, err := filepath.Glob("/proc/[0-9]*/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			b, _ := os.ReadFile(path) // it may have ended, or be somebody else's
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err == nil && pid != os.Getpid() && bytes.Contains(b, []byte(dir+"/")) {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}
