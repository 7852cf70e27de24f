package proctree

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a script in its own session. It returns once the script has
// written a line.
func start(t *testing.T, marker, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(os.Environ(), MarkerVar+"="+marker)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		Kill(ctx, Tree{PGID: cmd.Process.Pid, Marker: marker})
		cmd.Wait()
	})
	if _, err := bufio.NewReader(r).ReadString('\n'); err != nil {
		t.Fatal("script wrote no line:", err)
	}
	return cmd
}

func testCtx(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a condition that another process brings about.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not seen in 20 s:", what)
		}
	}
}

func TestKill(t *testing.T) {
	tests := []struct {
		name, script string
		want         int // members before the kill
	}{
		{"alone", `echo; exec sleep 600`, 1},
		{"child", `sleep 600 & echo; wait`, 2},
		{"ignores TERM", `trap '' TERM; sleep 600 & echo; wait`, 2},
		{"own group", `set -m; sleep 600 & echo; wait`, 2},
		{"own session", `setsid sleep 600 & sleep 600 & echo; wait`, 3},
		{"lost its parent", `(setsid sleep 600 &) ; echo; exec sleep 600`, 2},
		{"clean environment", `env -i sleep 600 & echo; wait`, 2},
		{"own session, another marker", `HPCEXEC_ID=inner setsid sleep 600 & echo; wait`, 2},
		{"stopped", `sleep 600 & kill -STOP $!; echo; wait`, 2},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			marker := fmt.Sprintf("proctree-kill-%d-%d", os.Getpid(), i)
			cmd := start(t, marker, tt.script)
			tree := Tree{PGID: cmd.Process.Pid, Marker: marker}
			eventually(t, fmt.Sprint(tt.want, " members"), func() bool { return len(Members(tree)) == tt.want })
			n, err := Kill(testCtx(t), tree)
			if n != 0 || err != nil {
				t.Errorf("Kill: got %d, %v, want 0, nil", n, err)
			}
			if m := Members(tree); len(m) != 0 {
				t.Errorf("after Kill: got members %v, want none", m)
			}
		})
	}
}

func TestKillOnlyTheTree(t *testing.T) {
	marker := fmt.Sprintf("proctree-other-%d", os.Getpid())
	other := start(t, marker+"-longer", `echo; exec sleep 600`)
	mine := start(t, marker, `echo; exec sleep 600`)
	if _, err := Kill(testCtx(t), Tree{PGID: mine.Process.Pid, Marker: marker}); err != nil {
		t.Fatal(err)
	}
	if m := Members(Tree{PGID: other.Process.Pid}); len(m) != 1 {
		t.Errorf("the neighbour: got members %v, want 1", m)
	}
}

func TestDetached(t *testing.T) {
	marker := fmt.Sprintf("proctree-detached-%d", os.Getpid())
	// The third has a marker again: a command of what was detached.
	cmd := start(t, marker, `env -i PATH="$PATH" OTHER=`+marker+`-d setsid sh -c "sleep 600 & HPCEXEC_ID=`+marker+`-i setsid sleep 600 & wait" & echo; wait`)
	detached := &Walker{Var: "OTHER"}
	eventually(t, "3 detached", func() bool { return len(detached.Members(Tree{Marker: marker + "-d"})) == 3 })
	if _, err := Kill(testCtx(t), Tree{PGID: cmd.Process.Pid, Marker: marker}); err != nil {
		t.Fatal(err)
	}
	if m := detached.Members(Tree{Marker: marker + "-d"}); len(m) != 3 {
		t.Errorf("detached: got %v alive, want all 3", m)
	}
	if n, err := detached.Kill(testCtx(t), Tree{Marker: marker + "-d"}); n != 0 || err != nil {
		t.Errorf("Kill of the detached: got %d, %v, want 0, nil", n, err)
	}
	if m := Members(Tree{Marker: marker + "-i"}); len(m) != 0 {
		t.Errorf("a command of the detached: got %v alive, want none", m)
	}
}

// TestInExec: a process in the middle of execve(2) shows no environment, and is
// a member all the same.
func TestInExec(t *testing.T) {
	marker := fmt.Sprintf("proctree-exec-%d", os.Getpid())
	again := t.TempDir() + "/again"
	if err := os.WriteFile(again, []byte(`exec sh "$0"`), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, marker, "echo; exec sh "+again)
	missed := 0
	for range 300 {
		if m := Members(Tree{Marker: marker}); len(m) != 1 {
			missed++
		}
	}
	if missed > 0 {
		t.Errorf("missed a process that runs one program after the other in %d of 300 walks", missed)
	}
}

func TestEnd(t *testing.T) {
	tests := []struct {
		name, script string
		grace        time.Duration
		want         string // what the script wrote
	}{
		{"obeys TERM", `trap 'echo bye >"$OUT"; exit' TERM; echo; while :; do sleep 0.01; done`, 20 * time.Second, "bye"},
		{"escaped, obeys TERM", `setsid sh -c 'trap "echo bye >\"$OUT\"; exit" TERM; touch "$OUT.up"; while :; do sleep 0.01; done' &
			while ! [ -e "$OUT.up" ]; do sleep 0.01; done; echo; wait`, 20 * time.Second, "bye"},
		{"ignores TERM", `trap '' TERM; echo; while :; do sleep 0.01; done`, 50 * time.Millisecond, ""},
		{"no grace", `trap 'echo bye >"$OUT"; exit' TERM; echo; while :; do sleep 0.01; done`, 0, ""},
		{"stopped", `trap 'echo bye >"$OUT"; exit' TERM; echo; kill -STOP $$; while :; do sleep 0.01; done`, 20 * time.Second, "bye"},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out := t.TempDir() + "/out"
			t.Setenv("OUT", out)
			marker := fmt.Sprintf("proctree-end-%d-%d", os.Getpid(), i)
			cmd := start(t, marker, tt.script)
			tree := Tree{PGID: cmd.Process.Pid, Marker: marker}
			if n, err := new(Walker).End(testCtx(t), tree, tt.grace); n != 0 || err != nil {
				t.Errorf("End: got %d, %v, want 0, nil", n, err)
			}
			got, _ := os.ReadFile(out)
			if strings.TrimSpace(string(got)) != tt.want {
				t.Errorf("script wrote: got %q, want %q", got, tt.want)
			}
			if m := Members(tree); len(m) != 0 {
				t.Errorf("after End: got members %v, want none", m)
			}
		})
	}
}

func TestKillGivesUp(t *testing.T) {
	marker := fmt.Sprintf("proctree-ctx-%d", os.Getpid())
	start(t, marker, `trap '' TERM; echo; sleep 600`)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	cancel(why)
	n, err := new(Walker).End(ctx, Tree{Marker: marker}, time.Hour)
	if n == 0 || !errors.Is(err, why) {
		t.Errorf("End with a context that has ended: got %d, %v, want some, %v", n, err, why)
	}
}

func TestNothingNamed(t *testing.T) {
	if m := Members(Tree{}); m != nil {
		t.Errorf("members of no tree: got %v, want none", m)
	}
	if n, err := Kill(testCtx(t), Tree{}); n != 0 || err != nil {
		t.Errorf("Kill of no tree: got %d, %v, want 0, nil", n, err)
	}
	for _, pgid := range []int{-1, 0, 1} {
		if err := Signal(pgid, 0); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Signal(%d): got %v, want EINVAL", pgid, err)
		}
	}
}

func TestReusedPID(t *testing.T) {
	cmd := start(t, "proctree-reused", `echo; exec sleep 600`)
	p, ok := readStat(cmd.Process.Pid)
	if !ok {
		t.Fatal("no stat")
	}
	p.start-- // as if it were a later process with that pid
	if err := p.signal(syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal to the pid of another process: got %v, want %v", err, os.ErrProcessDone)
	}
}

func TestWalkerShares(t *testing.T) {
	marker := fmt.Sprintf("proctree-share-%d", os.Getpid())
	start(t, marker, `echo; exec sleep 600`)
	var w Walker
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			if m := w.Members(Tree{Marker: marker}); len(m) != 1 {
				t.Errorf("members: got %v, want one", m)
			}
		})
	}
	wg.Wait()
}

func TestParseStat(t *testing.T) {
	const tail = " 10 20 30 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 1"
	tests := []struct {
		name, line string
		want       process
		wantOK     bool
	}{
		{"plain", "7 (sh) S" + tail, process{ident: ident{7, 98765}, ppid: 10, pgrp: 20, sid: 30}, true},
		{"zombie", "7 (sh) Z" + tail, process{ident: ident{7, 98765}, ppid: 10, pgrp: 20, sid: 30, zombie: true}, true},
		{"name like fields", "7 (a) S 1 (b) S" + tail, process{ident: ident{7, 98765}, ppid: 10, pgrp: 20, sid: 30}, true},
		{"newline in name", "7 (a\nb) S" + tail, process{ident: ident{7, 98765}, ppid: 10, pgrp: 20, sid: 30}, true},
		{"short", "7 (sh) S 10 20", process{}, false},
		{"empty", "", process{}, false},
		{"no number", "x (sh) S" + tail, process{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := parseStat([]byte(tt.line))
			if got != tt.want || ok != tt.wantOK {
				t.Errorf("got %+v, %v, want %+v, %v", got, ok, tt.want, tt.wantOK)
			}
		})
	}
}

func FuzzParseStat(f *testing.F) {
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Add([]byte("7 (a) S 1 (b) S 10 20 30"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, ok := parseStat(data); !ok && p != (process{}) {
			t.Errorf("not ok, but %+v", p)
		}
	})
}

func TestMarkerIn(t *testing.T) {
	tests := []struct{ name, env, want string }{
		{"first", "HPCEXEC_ID=a\x00X=1\x00", "a"},
		{"last, unfinished", "X=1\x00HPCEXEC_ID=a", "a"},
		{"inside a value", "X=HPCEXEC_ID=a\x00", ""},
		{"longer name", "XHPCEXEC_ID=a\x00HPCEXEC_IDX=b\x00", ""},
		{"none", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := markerIn([]byte(tt.env), MarkerVar); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func BenchmarkWalk(b *testing.B) {
	for b.Loop() {
		readTable(MarkerVar)
	}
}
