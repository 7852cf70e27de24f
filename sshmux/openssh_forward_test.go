package sshmux

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

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
