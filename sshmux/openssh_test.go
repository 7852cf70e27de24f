package sshmux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

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
			seen := readUntil(out, "terminal\r\n")
			if !strings.Contains(seen, "27 91\r\n") {
				t.Errorf("got %q, want the size of the terminal", seen)
			}
			io.WriteString(in, "typed\n")
			seen = readUntil(out, "got typed\r\n")
			if !strings.Contains(seen, "got typed\r\n") {
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

func TestOpenSSHForward(t *testing.T) {
	for name, socket := range sockets(t) {
		t.Run(name, func(t *testing.T) {
			port := echoServer(t)
			// -W: the client's stdin and stdout.
			cmd := openssh(t, "ssh", socket, "-W", "127.0.0.1:"+strconv.Itoa(port), "x")
			cmd.Stdin = strings.NewReader("ping")
			if out, errs, _ := output(t, cmd); out != "ping" {
				t.Errorf("-W: got %q, %q, want ping", out, errs)
			}
			// -L: a port of the master's.
			local := freePort(t)
			spec := fmt.Sprintf("%d:127.0.0.1:%d", local, port)
			for range 2 { // twice is once
				if _, errs, code := output(t, openssh(t, "ssh", socket, "-O", "forward", "-L", spec, "x")); code != 0 {
					t.Fatalf("forward: exit code %d, %s", code, errs)
				}
			}
			if got := echo(t, "tcp", "127.0.0.1:"+strconv.Itoa(local)); got != "hello" {
				t.Errorf("-L: got %q, want hello", got)
			}
			if _, errs, code := output(t, openssh(t, "ssh", socket, "-O", "cancel", "-L", spec, "x")); code != 0 {
				t.Errorf("cancel: exit code %d, %s", code, errs)
			}
			if _, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(local)); err == nil {
				t.Error("the cancelled forwarding is still there")
			}
			if _, errs, _ := output(t, openssh(t, "ssh", socket, "-O", "cancel", "-L", spec, "x")); !strings.Contains(errs, "port not forwarded") {
				t.Errorf("cancel again: got %q, want that there is none", errs)
			}
			// -L with paths.
			path := filepath.Join(tempDir(t), "fwd")
			if _, errs, code := output(t, openssh(t, "ssh", socket, "-O", "forward", "-L", path+":127.0.0.1:"+strconv.Itoa(port), "x")); code != 0 {
				t.Fatalf("forward of a path: exit code %d, %s", code, errs)
			}
			if got := echo(t, "unix", path); got != "hello" {
				t.Errorf("-L with a path: got %q, want hello", got)
			}
		})
	}
}

func TestOpenSSHForwardDynamic(t *testing.T) {
	for name, socket := range sockets(t) {
		t.Run(name, func(t *testing.T) {
			port, local := echoServer(t), freePort(t)
			if _, errs, code := output(t, openssh(t, "ssh", socket, "-O", "forward", "-D", strconv.Itoa(local), "x")); code != 0 {
				t.Fatalf("forward: exit code %d, %s", code, errs)
			}
			want := []byte{byte(port >> 8), byte(port)}
			for version, request := range map[string]string{
				"5, address": "\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01",
				"5, name":    "\x05\x02\x01\x00\x05\x01\x00\x03\x09localhost",
				"4":          "\x04\x01" + string(want) + "\x7f\x00\x00\x01me\x00",
				"4A":         "\x04\x01" + string(want) + "\x00\x00\x00\x01me\x00localhost\x00",
			} {
				c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(local))
				if err != nil {
					t.Fatal(err)
				}
				c.SetDeadline(time.Now().Add(10 * time.Second))
				skip := 8
				if version[0] == '5' {
					request += string(want)
					skip = 12
				}
				io.WriteString(c, request)
				if _, err := io.CopyN(io.Discard, c, int64(skip)); err != nil {
					t.Errorf("version %s: %v", version, err)
				}
				io.WriteString(c, "hello")
				c.(*net.TCPConn).CloseWrite()
				if b, err := io.ReadAll(c); string(b) != "hello" || err != nil {
					t.Errorf("version %s: got %q, %v, want hello", version, b, err)
				}
				c.Close()
			}
		})
	}
}

func TestOpenSSHForwardRemote(t *testing.T) {
	all := sockets(t)
	socket := all["sshd"]
	port := echoServer(t)
	to := ":127.0.0.1:" + strconv.Itoa(port)
	chosen, errs, code := output(t, openssh(t, "ssh", socket, "-O", "forward", "-R", "0"+to, "x"))
	there := strings.TrimSpace(chosen)
	if n, err := strconv.Atoi(there); code != 0 || err != nil || n == 0 {
		t.Fatalf("forward: got %q, exit code %d, %s", chosen, code, errs)
	}
	if got := echo(t, "tcp", "127.0.0.1:"+there); got != "hello" {
		t.Errorf("got %q, want hello", got)
	}
	if _, errs, code := output(t, openssh(t, "ssh", socket, "-O", "cancel", "-R", there+to, "x")); code != 0 {
		t.Errorf("cancel: exit code %d, %s", code, errs)
	}
	if _, err := net.Dial("tcp", "127.0.0.1:"+there); err == nil {
		t.Error("the cancelled forwarding is still there")
	}
	named := strconv.Itoa(freePort(t))
	if _, errs, code := output(t, openssh(t, "ssh", socket, "-O", "forward", "-R", named+to, "x")); code != 0 {
		t.Fatalf("forward of a port: exit code %d, %s", code, errs)
	}
	if got := echo(t, "tcp", "127.0.0.1:"+named); got != "hello" {
		t.Errorf("a port: got %q, want hello", got)
	}
	// A contained place makes nobody listen.
	if _, errs, _ := output(t, openssh(t, "ssh", all["shim"], "-O", "forward", "-R", "0"+to, "x")); !strings.Contains(errs, "shim") {
		t.Errorf("through a shim: got %q, want a refusal", errs)
	}
}

// echoServer sends back what it gets, on a port of the loopback interface.
func echoServer(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				io.Copy(c, c)
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return l.Addr().(*net.TCPAddr).Port
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// echo says hello to an echo server and gives its answer.
func echo(t *testing.T, network, addr string) string {
	t.Helper()
	c, err := net.DialTimeout(network, addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(c, "hello")
	c.(interface{ CloseWrite() error }).CloseWrite()
	b, _ := io.ReadAll(c)
	return string(b)
}

// x/crypto/ssh's client of the proxy mode.
func TestProxyMode(t *testing.T) {
	for name, socket := range sockets(t) {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			conn, chans, reqs, err := ssh.NewControlClientConn(c)
			if err != nil {
				t.Fatal(err)
			}
			client := ssh.NewClient(conn, chans, reqs)
			defer client.Close()
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					s, err := client.NewSession()
					if err != nil {
						t.Error(err)
						return
					}
					defer s.Close()
					s.Stdin = strings.NewReader(fmt.Sprint("input ", i))
					out, err := s.Output(`cat; exit 4`)
					var exit *ssh.ExitError
					if string(out) != fmt.Sprint("input ", i) || !errors.As(err, &exit) || exit.ExitStatus() != 4 {
						t.Errorf("got %q, %v, want the input and exit status 4", out, err)
					}
				})
			}
			all.Wait()
		})
	}
}
