package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv("SNAPSHOTS_TEST_MODE"); mode != "" {
		os.Exit(child(mode))
	}
	goleak.VerifyTestMain(m)
}

// child is what the test binary does as another process: one operation on a
// store, killed at the step that the environment names.
func child(mode string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := Open(os.Getenv("SNAPSHOTS_TEST_STORE"), Options{step: func(name string) error {
		if name == os.Getenv("SNAPSHOTS_TEST_STEP") {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}})
	arg := os.Getenv("SNAPSHOTS_TEST_ARG")
	var layers []string
	if l := os.Getenv("SNAPSHOTS_TEST_LAYERS"); l != "" {
		layers = strings.Split(l, ",")
	}
	if err == nil {
		switch mode {
		case "create":
			_, err = s.Create(ctx, CreateOptions{Upper: arg, Layers: layers})
		case "remove":
			err = s.Remove(ctx, arg, RemoveOptions{})
		case "unpack":
			err = s.Unpack(ctx, arg, os.Getenv("SNAPSHOTS_TEST_DIR"))
		}
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func childCmd(s *Store, mode, arg string, more ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SNAPSHOTS_TEST_MODE="+mode, "SNAPSHOTS_TEST_STORE="+s.Root(), "SNAPSHOTS_TEST_ARG="+arg)
	cmd.Env = append(cmd.Env, more...)
	return cmd
}

func runKilled(t *testing.T, s *Store, mode, arg, step string, more ...string) {
	t.Helper()
	out, err := childCmd(s, mode, arg, append(more, "SNAPSHOTS_TEST_STEP="+step)...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("got %v %s, want the process killed at step %q", err, out, step)
	}
}

// asUser runs the test again in a process of an ordinary user where this one is
// the superuser's, whom permissions don't stop. It says whether it did.
func asUser(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return false
	}
	const uid = 65533
	dir, err := os.MkdirTemp("/tmp", "as-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin, tmp := filepath.Join(dir, "test"), filepath.Join(dir, "tmp")
	for _, err := range []error{copyFile(bin, os.Args[0]), os.Chmod(dir, 0o755), os.Mkdir(tmp, 0o700), os.Chown(tmp, uid, uid)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = tmp
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as uid %d: %v\n%s", uid, err, out)
	}
	return true
}

func copyFile(dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
