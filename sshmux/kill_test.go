package sshmux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/proctree"
)

// killRounds is how many rounds TestRandomKills has; HPCEXEC_KILLS says
// another number.
const killRounds = 25

// Whatever dies at whatever moment, nothing is left running, no exit code is
// wrong, no byte is lost or doubled, and the next command works.
func TestRandomKills(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	rounds := killRounds
	if s := os.Getenv("HPCEXEC_KILLS"); s != "" {
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := tempDir(t)
	k := &killer{t: t, exe: exe, socket: filepath.Join(dir, "m"), endpoint: filepath.Join(dir, "e")}
	defer func() {
		if c, err := Open(k.socket); err == nil {
			pid, _ := c.Alive(context.Background())
			c.Stop(context.Background())
			waitGonePID(t, pid)
		}
	}()
	for i := range rounds {
		victim := []string{"nobody", "client", "master", "shim", "command"}[random.IntN(5)]
		k.round(i, victim, time.Duration(random.IntN(30_000))*time.Microsecond)
		if t.Failed() {
			return
		}
	}
}

type killer struct {
	t                     *testing.T
	exe, socket, endpoint string
}

// lines is what the command writes.
const lines = 300

func (k *killer) round(i int, victim string, delay time.Duration) {
	t := k.t
	master, err := ensure(t, Local, k.socket)
	if err != nil {
		t.Fatalf("round %d: %v", i, err)
	}
	defer master.Close()
	masterPID, err := master.Alive(t.Context())
	if err != nil {
		t.Fatalf("round %d: %v", i, err)
	}
	if err := master.Attach(t.Context(), Endpoint{Socket: k.endpoint, Place: "x", Kind: ShimStdio, Command: []string{k.exe, "shim", "--stdio"}}); err != nil {
		t.Fatalf("round %d: %v", i, err)
	}
	k.mustWork(i)

	script := fmt.Sprintf(`exec 2>/dev/null; echo $HPCEXEC_ID $PPID $$; sleep 600 >/dev/null 2>&1 & s=$!
		i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); done
		sleep 0.02; kill $s; exit 7`, lines)
	cmd := exec.Command(k.exe, "client", k.endpoint, "sh", "-c", script)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := readUntil(out, "\n")
	head, rest, _ := strings.Cut(first, "\n")
	var id string
	var shimPID, commandPID int
	if _, err := fmt.Sscan(head, &id, &shimPID, &commandPID); err != nil {
		t.Fatalf("round %d: the command wrote %q: %v; %s", i, first, err, &stderr)
	}
	time.Sleep(delay)
	switch victim {
	case "client":
		cmd.Process.Kill()
	case "master":
		syscall.Kill(masterPID, syscall.SIGKILL)
	case "shim":
		syscall.Kill(shimPID, syscall.SIGKILL)
	case "command":
		syscall.Kill(commandPID, syscall.SIGKILL)
	}
	var all bytes.Buffer
	all.WriteString(rest)
	all.ReadFrom(out)
	cmd.Wait()
	k.check(i, victim, all.String(), cmd.ProcessState, stderr.String())
	if victim == "command" || victim == "shim" {
		// What a command leaves in the background lives on, and a shim that
		// was killed ends nobody: that is its supervisor's matter.
		if n, err := proctree.Kill(t.Context(), proctree.Tree{PGID: commandPID, Marker: id}); n > 0 || err != nil {
			t.Errorf("round %d (%s): %d processes are left, %v", i, victim, n, err)
		}
	}
	wait(t, fmt.Sprintf("round %d (%s): the end of the tree", i, victim), func() bool { return alive(t, id) == 0 })
	if victim == "master" {
		waitGonePID(t, masterPID)
	}
}

// check compares how the client ended with what had happened.
func (k *killer) check(i int, victim, out string, st *os.ProcessState, stderr string) {
	t := k.t
	var want strings.Builder
	for n := range lines {
		fmt.Fprintf(&want, "line %d\n", n)
	}
	if !strings.HasPrefix(want.String(), out) {
		t.Errorf("round %d (%s): the output isn't the beginning of what was written: %q", i, victim, out)
	}
	code, whole := st.ExitCode(), out == want.String()
	ok := code == 7 && whole // it was over before
	switch victim {
	case "client":
		ok = ok || st.Sys().(syscall.WaitStatus).Signaled()
	case "master", "shim":
		ok = ok || code == 125 && strings.TrimSpace(stderr) != ""
	case "command":
		ok = ok || code == 128+9
	}
	if !ok {
		t.Errorf("round %d (%s): got exit code %d, all output %v, stderr %q", i, victim, code, whole, stderr)
	}
}

// mustWork runs a command until the place has noticed that it was lost: what is
// sent until then has no known end.
func (k *killer) mustWork(i int) {
	t := k.t
	c, err := Open(k.endpoint)
	if err != nil {
		t.Fatalf("round %d: %v", i, err)
	}
	defer c.Close()
	for range 3 {
		resp, err := c.Run(t.Context(), hpcexec.Request{Args: []string{"sh", "-c", "exit 9"}})
		if err == nil && resp.ExitCode == 9 {
			return
		}
		if !errors.Is(err, hpcexec.ErrUnknownEnd) {
			t.Fatalf("round %d: got %+v, %v", i, resp, err)
		}
	}
	t.Fatalf("round %d: the place doesn't come back", i)
}
