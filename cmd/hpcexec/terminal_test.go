package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// A terminal is hpcexec on a terminal of its own, as a person has it.
type terminal struct {
	t    *testing.T
	cmd  *exec.Cmd
	ptmx *os.File

	mu     sync.Mutex
	output bytes.Buffer
}

// startTerminal runs the test binary as hpcexec on a terminal of 80 x 24.
func startTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	if err := pty.Setsize(ptmx, &pty.Winsize{Cols: 80, Rows: 24}); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	term := &terminal{t: t, ptmx: ptmx, cmd: &exec.Cmd{
		Path: os.Args[0], Args: append([]string{"hpcexec"}, args...),
		Env:   append(os.Environ(), "HOME="+home, "HPCEXEC_HOME="+home+"/state", "TERM=xterm"),
		Stdin: tty, Stdout: tty, Stderr: tty,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Setctty: true},
	}}
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 4096)
		for {
			n, err := ptmx.Read(b)
			term.mu.Lock()
			term.output.Write(b[:n])
			term.mu.Unlock()
			if err != nil {
				return // EIO: the last one on the terminal has gone
			}
		}
	}()
	t.Cleanup(func() {
		term.cmd.Process.Kill()
		term.cmd.Wait()
		ptmx.Close()
		<-done
	})
	return term
}

// expect waits for text on the terminal.
func (term *terminal) expect(text string) {
	term.t.Helper()
	term.until(text, func() bool {
		term.mu.Lock()
		defer term.mu.Unlock()
		return strings.Contains(term.output.String(), text)
	})
}

// until waits until something holds.
func (term *terminal) until(what string, holds func() bool) {
	term.t.Helper()
	for range 200 {
		if holds() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	term.mu.Lock()
	defer term.mu.Unlock()
	term.t.Fatalf("not within 10 s: %s\nterminal: %q", what, &term.output)
}

func (term *terminal) send(keys string) {
	term.t.Helper()
	if _, err := term.ptmx.WriteString(keys); err != nil {
		term.t.Fatal(err)
	}
}

// raw says whether every key goes to the program as it is.
func (term *terminal) raw() bool {
	term.t.Helper()
	state, err := unix.IoctlGetTermios(int(term.ptmx.Fd()), unix.TCGETS)
	if err != nil {
		term.t.Fatal(err)
	}
	return state.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) == 0
}

// wait returns the exit code.
func (term *terminal) wait() int {
	term.t.Helper()
	done := make(chan error, 1)
	go func() { done <- term.cmd.Wait() }()
	select {
	case err := <-done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			term.t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		term.t.Fatal("hpcexec didn't end within 20 s")
	}
	return term.cmd.ProcessState.ExitCode()
}

func TestTerminal(t *testing.T) {
	term := startTerminal(t, "exec", "-t", "--", "sh", "-c", `stty size; read x; echo "got $x"; until test "$(stty size)" = "30 100"; do sleep 0.05; done; exit 3`)
	term.expect("24 80")
	term.until("the terminal is raw while the command runs", term.raw)
	if err := pty.Setsize(term.ptmx, &pty.Winsize{Cols: 100, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	term.send("keys\r")
	term.expect("got keys")
	if code := term.wait(); code != 3 {
		t.Errorf("exit code: got %d, want 3", code)
	}
	if term.raw() {
		t.Error("after the command: got a raw terminal, want it as it was")
	}
}

// Ctrl-C on a raw terminal is the command's key.
func TestTerminalCtrlC(t *testing.T) {
	term := startTerminal(t, "exec", "-t", "--", "sh", "-c", "trap 'echo trapped; exit 9' INT; echo ready; while :; do sleep 0.1; done")
	term.expect("ready")
	term.until("the terminal is raw", term.raw)
	term.send("\x03")
	term.expect("trapped")
	if code := term.wait(); code != 9 {
		t.Errorf("exit code: got %d, want 9", code)
	}
}

// Without -t the terminal sends Ctrl-C to hpcexec, which passes it on.
func TestCtrlCWithoutTerminal(t *testing.T) {
	term := startTerminal(t, "exec", "--", "sh", "-c", "trap 'echo trapped; exit 9' INT; echo ready; while :; do sleep 0.1; done")
	term.expect("ready")
	if term.raw() {
		t.Error("without -t: got a raw terminal, want it as it was")
	}
	term.send("\x03")
	term.expect("trapped")
	if code := term.wait(); code != 9 {
		t.Errorf("exit code: got %d, want 9", code)
	}
}

// With -i and no -t the command reads what is typed, and isn't stopped for it.
func TestTerminalStdin(t *testing.T) {
	term := startTerminal(t, "exec", "-i", "--", "sh", "-c", "echo ready; read x; echo \"got $x\"")
	term.expect("ready")
	term.send("line\n")
	term.expect("got line")
	if code := term.wait(); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}
}

// What would remove files asks on the terminal.
func TestTerminalConfirm(t *testing.T) {
	term := startTerminal(t, "session", "rm", "nope")
	term.expect("remove nope with all files in it? [y/N] ")
	term.send("n\n")
	if code := term.wait(); code != exitFailed {
		t.Errorf("answered no: got exit code %d, want %d", code, exitFailed)
	}
	term.expect("nothing was done")
}
