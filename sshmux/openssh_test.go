package sshmux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec/internal/sshtest"
)

// OpenSSH's own client is the judge here: what it can do with its own master
// it must be able to do with ours, in front of a plain SSH server and in front
// of a shim.

// sockets are a master's socket for a plain server and an endpoint for a shim.
func sockets(t *testing.T) map[string]string {
	t.Helper()
	server := sshtest.New(t, sshtest.Options{})
	master := serveMaster(t, MasterOptions{Host: "test", Dial: dialTest(server)})
	ep := attachShim(t, serveMaster(t, MasterOptions{}), serveShim(t))
	return map[string]string{"sshd": master.socket, "shim": ep.socket}
}

func dialTest(server *sshtest.Server) func(context.Context) (*Host, error) {
	return func(context.Context) (*Host, error) {
		conn, chans, reqs, err := server.TryConnect()
		if err != nil {
			return nil, err
		}
		return NewHost(conn, chans, reqs, HostOptions{Place: "ssh:test", Peer: PeerSSHD}), nil
	}
}

// openssh runs a program of OpenSSH with a socket as its ControlPath, and
// without a way to reach the host by itself.
func openssh(t *testing.T, program, socket string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("OpenSSH's client is needed: %v", err)
	}
	opts := []string{"-F", "/dev/null", "-o", "ControlPath=" + socket, "-o", "ProxyCommand=false"}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, path, append(opts, args...)...)
}

func output(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestOpenSSHSession(t *testing.T) {
	for name, socket := range sockets(t) {
		tests := []struct {
			name, stdin, line, stdout, stderr string
			code                              int
		}{
			{"output", "", "echo out; echo err >&2", "out\n", "err\n", 0},
			{"exit code", "", "exit 7", "", "", 7},
			{"signal", "", "kill -TERM $$", "", "", 143},
			{"stdin", "a\nb\n", "cat", "a\nb\n", "", 0},
			{"not found", "", "exec hpcexec-no-such-program", "", "not found", 127},
			{"environment", "", "echo $LC_TEST", "value\n", "", 0},
		}
		for _, tt := range tests {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				cmd := openssh(t, "ssh", socket, "-o", "SetEnv=LC_TEST=value", "x", tt.line)
				cmd.Stdin = strings.NewReader(tt.stdin)
				stdout, stderr, code := output(t, cmd)
				if stdout != tt.stdout || code != tt.code || !strings.Contains(stderr, tt.stderr) {
					t.Errorf("got %q, %q, exit code %d, want %q, %q, %d", stdout, stderr, code, tt.stdout, tt.stderr, tt.code)
				}
			})
		}
	}
}

// A subsystem that isn't there ends the session, with a reason.
func TestOpenSSHSubsystem(t *testing.T) {
	for name, socket := range sockets(t) {
		t.Run(name, func(t *testing.T) {
			_, stderr, code := output(t, openssh(t, "ssh", socket, "-s", "x", "no-such-subsystem"))
			if code != 255 || !strings.Contains(stderr, "subsystem request failed") {
				t.Errorf("got %q, exit code %d, want 255 and a reason", stderr, code)
			}
		})
	}
}

func TestOpenSSHControl(t *testing.T) {
	for name, socket := range sockets(t) {
		t.Run(name, func(t *testing.T) {
			_, stderr, code := output(t, openssh(t, "ssh", socket, "-O", "check", "x"))
			if want := fmt.Sprintf("Master running (pid=%d)", os.Getpid()); code != 0 || !strings.Contains(stderr, want) {
				t.Errorf("check: got %q, exit code %d, want %q", stderr, code, want)
			}
			_, stderr, code = output(t, openssh(t, "ssh", socket, "-O", "stop", "x"))
			if code != 0 || !strings.Contains(stderr, "Stop listening request sent") {
				t.Errorf("stop: got %q, exit code %d", stderr, code)
			}
			if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket is still there: %v", err)
			}
		})
	}
}

func TestOpenSSHExit(t *testing.T) {
	ended := make(chan error, 1)
	socket := filepath.Join(tempDir(t), "m")
	ready := make(chan struct{})
	go func() {
		ended <- ServeMaster(context.Background(), MasterOptions{Host: Local, Socket: socket, Ready: func() { close(ready) }})
	}()
	<-ready
	_, stderr, code := output(t, openssh(t, "ssh", socket, "-O", "exit", "x"))
	if code != 0 || !strings.Contains(stderr, "Exit request sent") {
		t.Errorf("got %q, exit code %d", stderr, code)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the master goes on")
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestOpenSSHFiles(t *testing.T) {
	for name, socket := range sockets(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			data := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
			if err := os.WriteFile(dir+"/a", data, 0o640); err != nil {
				t.Fatal(err)
			}
			check := func(path string) {
				t.Helper()
				if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%s: got %d bytes, %v, want %d", path, len(got), err, len(data))
				}
			}
			if out, errs, code := output(t, openssh(t, "scp", socket, dir+"/a", "x:"+dir+"/b")); code != 0 {
				t.Fatalf("scp there: exit code %d, %s %s", code, out, errs)
			}
			check(dir + "/b")
			if out, errs, code := output(t, openssh(t, "scp", socket, "x:"+dir+"/b", dir+"/c")); code != 0 {
				t.Fatalf("scp back: exit code %d, %s %s", code, out, errs)
			}
			check(dir + "/c")
			cmd := openssh(t, "sftp", socket, "-b", "-", "x")
			cmd.Stdin = strings.NewReader("get " + dir + "/b " + dir + "/d\n")
			if out, errs, code := output(t, cmd); code != 0 {
				t.Fatalf("sftp: exit code %d, %s %s", code, out, errs)
			}
			check(dir + "/d")
		})
	}
}

func TestOpenSSHTerminal(t *testing.T) {
	script, err := exec.LookPath("script")
	if err != nil {
		t.Fatalf("script(1) is needed: %v", err)
	}
	for name, socket := range sockets(t) {
		t.Run(name, func(t *testing.T) {
			ssh := openssh(t, "ssh", socket, "-tt", "x", `stty size; test -t 0 && echo terminal; read l; echo "got $l"; exit 5`)
			cmd := exec.Command(script, "-qec", "stty cols 91 rows 27; "+quoteAll(ssh.Args), "/dev/null")
			cmd.Env = append(os.Environ(), "SHELL=/bin/sh")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			watchdog := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
			defer watchdog.Stop()
			// Whether ssh has its terminal in raw mode by now is a race.
			seen := readUntil(out, "terminal\r")
			if !strings.Contains(seen, "27 91\r") {
				t.Errorf("got %q, want the size of the terminal", seen)
			}
			io.WriteString(in, "typed\n")
			seen = readUntil(out, "got typed\r")
			if !strings.Contains(seen, "got typed\r") {
				t.Errorf("got %q, want what was typed", seen)
			}
			io.Copy(io.Discard, out)
			cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 5 {
				t.Errorf("got exit code %d, want 5", code)
			}
		})
	}
}

// readUntil reads until it has seen a text, or the end.
func readUntil(r io.Reader, text string) string {
	var all []byte
	buf := make([]byte, 1024)
	for !bytes.Contains(all, []byte(text)) {
		n, err := r.Read(buf)
		all = append(all, buf[:n]...)
		if err != nil {
			break
		}
	}
	return string(all)
}

func quoteAll(argv []string) string {
	var b strings.Builder
	for _, a := range argv {
		b.WriteString("'" + strings.ReplaceAll(a, "'", `'\''`) + "' ")
	}
	return b.String()
}
