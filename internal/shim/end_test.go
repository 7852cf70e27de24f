package shim

import (
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec/internal/wire"
)

// stubborn is a command whose tree ignores SIGTERM and has left its process
// group. It writes three pids to the file $1.
const stubborn = `trap '' TERM
	sleep 600 & a=$!
	setsid sleep 600 & b=$!
	echo "$$ $a $b" >"$1.new" && mv "$1.new" "$1"
	wait; while :; do sleep 1; done`

// pids waits for the file that a stubborn command writes.
func pids(t *testing.T, file string) []int {
	t.Helper()
	var pids []int
	eventually(t, "the command runs", func() bool {
		data, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		for _, f := range strings.Fields(string(data)) {
			pid, _ := strconv.Atoi(f)
			pids = append(pids, pid)
		}
		return true
	})
	if len(pids) != 3 {
		t.Fatalf("got pids %v, want three", pids)
	}
	return pids
}

func allGone(pids []int) func() bool {
	return func() bool {
		for _, pid := range pids {
			if alive(pid) {
				return false
			}
		}
		return true
	}
}

// TestTreeDies has all the ways in which a client ends a command. Grace is so
// long where it plays no part that only what is tested can have killed it.
func TestTreeDies(t *testing.T) {
	for _, tt := range []struct {
		name  string
		grace time.Duration
		end   func(c *client, p *call)
	}{
		{"channel closed", 100 * time.Millisecond, func(c *client, p *call) { p.Close() }},
		{"cancelled", 100 * time.Millisecond, func(c *client, p *call) { p.SendRequest(wire.RequestCancel, false, nil) }},
		{"connection lost", time.Hour, func(c *client, p *call) { c.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := dial(t, serve(t, Options{Grace: tt.grace}))
			file := tempDir(t) + "/pids"
			p := c.start(wire.Exec{Args: sh(stubborn, file)})
			tree := pids(t, file)
			tt.end(c, p)
			eventually(t, "the tree gone", allGone(tree))
		})
	}
}

// TestLossIsNoClosedPipe: a channel that fails must not end the command by
// SIGPIPE, an end of its own after which what runs in the background stays: the
// loss of the client ends the tree. Only who doesn't want to read on is a
// closed pipe.
func TestLossIsNoClosedPipe(t *testing.T) {
	lost := cutter{w: failingWriter{}}
	if n, err := lost.Write([]byte("abc")); n != 3 || err != nil {
		t.Errorf("a channel that fails: got %d, %v, want 3, nil", n, err)
	}
	lost.cut()
	if _, err := lost.Write([]byte("abc")); err != errCut {
		t.Errorf("after eow: got %v, want %v", err, errCut)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.EOF }

// TestConnectionLostIsSoon holds the shim to its second: what ends the tree is
// lossGrace, and nothing that takes longer.
func TestConnectionLostIsSoon(t *testing.T) {
	if most := time.Second; lossGrace >= most {
		t.Errorf("SIGKILL comes after %v, want less than %v", lossGrace, most)
	}
}

// TestCancelTellsTheEnd: whoever gets the exit of a cancelled command knows
// that its tree is gone, and has the rest of its output.
func TestCancelTellsTheEnd(t *testing.T) {
	c := dial(t, serve(t, Options{Grace: time.Hour}))
	file := tempDir(t) + "/up"
	// A child of a shell that isn't the other program yet catches the signal
	// with the shell's trap, and forgets it when it becomes that.
	p := c.start(wire.Exec{Args: sh(`trap 'echo bye; exit 4' TERM; sleep 600 & echo $!
		until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done; touch "$1"; while :; do sleep 0.01; done`, file)})
	eventually(t, "the command runs", func() bool { _, err := os.Stat(file); return err == nil })
	p.SendRequest(wire.RequestCancel, false, nil)
	exit := p.wait()
	lines := strings.Fields(p.stdout.String())
	if exit.Code != 4 || exit.ErrKind != "" || len(lines) != 2 || lines[1] != "bye" {
		t.Fatalf("got %+v, %q, want code 4 and all output", exit, lines)
	}
	if pid, _ := strconv.Atoi(lines[0]); alive(pid) {
		t.Error("a child of the command is alive after its exit has come")
	}
}

func TestCancelBeforeItRuns(t *testing.T) {
	c := dial(t, serve(t, Options{}))
	file := tempDir(t) + "/ran"
	p := c.open()
	p.SendRequest(wire.RequestCancel, false, nil)
	wire.SendExec(p, &wire.Exec{Args: sh(`touch "$1"`, file)})
	if exit := p.wait(); exit.ErrKind == "" {
		t.Errorf("got %+v, want an error", exit)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the command ran")
	}
}

func TestBeat(t *testing.T) {
	const timeout = 600 * time.Millisecond
	c := dial(t, serve(t, Options{Grace: time.Hour, beatTimeout: timeout}))
	longer := wire.Exec{Args: sh("sleep 0.9")}

	// A client that never beats is left alone.
	if _, _, exit := c.run(longer, ""); exit.ErrKind != "" {
		t.Errorf("without a beat: got %+v, want success", exit)
	}

	// One that beats on is, too, and one that had nothing to beat for.
	c.SendRequest(wire.RequestBeat, false, nil)
	time.Sleep(timeout + timeout/2)
	p := c.start(longer)
	stop := make(chan struct{})
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		for {
			c.SendRequest(wire.RequestBeat, false, nil)
			select {
			case <-stop:
				return
			case <-time.After(timeout / 50):
			}
		}
	}()
	if exit := p.wait(); exit.ErrKind != "" {
		t.Errorf("with a beat: got %+v, want success", exit)
	}
	close(stop)
	<-beating

	// One that falls silent loses its commands, also those that it started
	// in the silence, but not those in the background.
	time.Sleep(timeout + timeout/2)
	file, file2 := tempDir(t)+"/pids", tempDir(t)+"/pids"
	p = c.start(wire.Exec{Args: sh(stubborn, file)})
	p2 := c.start(wire.Exec{Args: sh(stubborn, file2), Background: true, HasStdin: true})
	tree, tree2 := pids(t, file), pids(t, file2)
	if exit := p.wait(); exit.ErrKind != "unknown_end" {
		t.Errorf("silent client: got %+v, want kind unknown_end", exit)
	}
	eventually(t, "the tree gone", allGone(tree))
	for _, pid := range tree2 {
		if !alive(pid) {
			t.Error("a command in the background has ended")
		}
	}
	p2.SendRequest("signal", false, append([]byte{0, 0, 0, 4}, "KILL"...))
	p2.wait()
	syscall.Kill(tree2[2], syscall.SIGKILL) // it had left the group
}

func TestBackgroundOutlivesConnection(t *testing.T) {
	socket := serve(t, Options{Grace: 100 * time.Millisecond})
	c := dial(t, socket)
	file := tempDir(t) + "/done"
	// It writes more than a pipe holds after its client has gone.
	p := c.start(wire.Exec{Args: sh(`touch "$1.up"; read x; head -c 1000000 /dev/zero && echo "$?" >"$1"; sleep 600`, file), Background: true, HasStdin: true})
	eventually(t, "the command runs", func() bool { _, err := os.Stat(file + ".up"); return err == nil })
	c.Close()
	p.done.Wait()
	c = dial(t, socket)
	eventually(t, "the command has written all", func() bool {
		b, _ := os.ReadFile(file)
		return string(b) == "0\n"
	})
	if st := c.status(); st.Running != 0 {
		t.Errorf("got %+v, want nothing in the foreground", st)
	}
}

// TestStop asks the shim to stop while commands of all kinds run.
func TestStop(t *testing.T) {
	for _, tt := range []struct {
		name string
		stop func(t *testing.T, p *shimProcess, c *client)
	}{
		{"SIGTERM", func(t *testing.T, p *shimProcess, c *client) { p.Process.Signal(syscall.SIGTERM) }},
		{"request", func(t *testing.T, p *shimProcess, c *client) {
			ok, _, err := c.SendRequest(wire.RequestStop, true, nil)
			if !ok || err != nil {
				t.Errorf("%s: got %v, %v, want true", wire.RequestStop, ok, err)
			}
			if st := leftoverOf(p.Process.Pid); len(st) > 0 {
				t.Errorf("the answer came while %v were alive", st)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			shim := spawn(t)
			c := dial(t, shim.socket)
			dir := tempDir(t)
			var trees []int
			for i, e := range []wire.Exec{
				{Args: sh(stubborn, dir+"/1")},
				{Args: sh(stubborn, dir+"/2"), Background: true},
				{Args: sh("("+stubborn+") & exit 0", dir+"/3")},
				{Args: sh("(env -i setsid sh -c '"+strings.ReplaceAll(stubborn, "''", `""`)+"' sh $1) & exit 0", dir+"/4")},
			} {
				c.start(e)
				trees = append(trees, pids(t, dir+"/"+strconv.Itoa(i+1))...)
			}
			polite := c.start(wire.Exec{Args: sh(`trap 'echo bye; exit 3' TERM; touch "$1"; while :; do sleep 0.01; done`, dir+"/5")})
			eventually(t, "the command runs", func() bool { _, err := os.Stat(dir + "/5"); return err == nil })
			if st := c.status(); st.Running != 2 || st.Background != 9 {
				t.Errorf("got %+v, want 2 in the foreground and 9 processes beside them", st)
			}
			tt.stop(t, shim, c)
			if code := shim.wait(t); code != 0 {
				t.Errorf("the shim ended with %d, want 0", code)
			}
			if !allGone(trees)() {
				t.Error("a process outlived the shim")
			}
			exit := polite.wait()
			if exit.Code != 3 || exit.ErrKind != "unknown_end" || polite.stdout.String() != "bye\n" {
				t.Errorf("got %+v, %q, want to be told of the end", exit, &polite.stdout)
			}
			if _, err := net.Dial("unix", shim.socket); err == nil {
				t.Error("somebody still listens")
			}
		})
	}
}

// TestNothingBeginsWhileStopping: what the shim's end has counted stays all.
func TestNothingBeginsWhileStopping(t *testing.T) {
	s := newServer(t.Context(), Options{})
	if !s.begin() {
		t.Fatal("nothing may begin before")
	}
	s.end()
	s.cancel(errStopped)
	s.shutdown()
	if s.begin() {
		t.Error("a command may begin after the end")
	}
}

// leftoverOf are the living children of another process.
func leftoverOf(pid int) []int {
	var left []int
	for _, child := range childrenOf(pid) {
		if alive(child) {
			left = append(left, child)
		}
	}
	return left
}

// TestKilledShim: when the shim itself is killed its clients learn at once
// that they don't know the end.
func TestKilledShim(t *testing.T) {
	shim := spawn(t)
	c := dial(t, shim.socket)
	file := tempDir(t) + "/pids"
	p := c.start(wire.Exec{Args: sh(stubborn, file)})
	tree := pids(t, file)
	shim.Process.Kill()
	p.done.Wait()
	if _, ok := p.requests[wire.RequestExit]; ok {
		t.Error("an exit came from a shim that was killed")
	}
	for _, pid := range tree { // which nobody owns now
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

func TestOrphansAreReaped(t *testing.T) {
	shim := spawn(t)
	c := dial(t, shim.socket)
	c.sh(`for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.1 &); done`)
	eventually(t, "no zombies", func() bool { return len(childrenOf(shim.Process.Pid)) == 0 })
}
