package sshmux

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/proctree"
	"github.com/hpcexec/hpcexec/internal/sshtest"
)

// ensure finds or starts a master in a process of its own.
func ensure(t *testing.T, host, socket string, more ...string) (*Client, error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv := append([]string{exe, "master", "--host", host, "--socket", socket}, more...)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := EnsureMaster(ctx, EnsureOptions{Host: host, Socket: socket, Argv: argv})
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// process starts a master in a process of its own and gives its pid.
func process(t *testing.T, host string, more ...string) (c *Client, pid int) {
	t.Helper()
	c, err := ensure(t, host, filepath.Join(tempDir(t), "m"), more...)
	if err != nil {
		t.Fatal(err)
	}
	if pid, err = c.Alive(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(pid, syscall.SIGTERM)
		waitGonePID(t, pid)
	})
	return c, pid
}

func waitGonePID(t *testing.T, pid int) {
	t.Helper()
	wait(t, "the end of the master", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
}

// wait waits until a condition holds.
func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s doesn't come", what)
		}
	}
}

// alive is how many processes of a run there are.
func alive(t *testing.T, id string) int {
	t.Helper()
	return len(proctree.Members(proctree.Tree{Marker: id}))
}

func TestEnsureMasterStartsOne(t *testing.T) {
	socket := filepath.Join(tempDir(t), "m")
	var mu sync.Mutex
	pids := map[int]int{}
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			c, err := ensure(t, Local, socket)
			if err != nil {
				t.Error(err)
				return
			}
			pid, err := c.Alive(context.Background())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			pids[pid]++
		})
	}
	all.Wait()
	if len(pids) != 1 {
		t.Errorf("got masters %v, want one", pids)
	}
	for pid := range pids {
		syscall.Kill(pid, syscall.SIGTERM)
		waitGonePID(t, pid)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of a master that was ended: %v", err)
	}
}

// fakeSSH puts an ssh into the PATH that knows one host, and gives its name.
func fakeSSH(t *testing.T, server *sshtest.Server, known bool) (host string) {
	t.Helper()
	dir := t.TempDir()
	block, err := ssh.MarshalPrivateKey(server.UserKey(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/key", pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	addr, port, err := net.SplitHostPort(server.Listen())
	if err != nil {
		t.Fatal(err)
	}
	var keys string
	if known {
		keys = fmt.Sprintf("[%s]:%s %s", addr, port, ssh.MarshalAuthorizedKey(server.HostKey()))
	}
	if err := os.WriteFile(dir+"/known", []byte(keys), 0o600); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\ncat <<.\nhostname %s\nport %s\nuser test\nidentityfile %s/key\nidentityagent none\nuserknownhostsfile %s/known\nglobalknownhostsfile none\nstricthostkeychecking ask\n.\n",
		addr, port, dir, dir)
	if err := os.WriteFile(dir+"/ssh", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return "test-host"
}

func TestEnsureMasterFails(t *testing.T) {
	tests := []struct {
		name    string
		opts    sshtest.Options
		known   bool
		wantErr error
	}{
		{"wants a person", sshtest.Options{NoKeys: true}, true, hpcexec.ErrNeedsLogin},
		{"unknown key", sshtest.Options{}, false, hpcexec.ErrNeedsLogin},
		{"no job", sshtest.Options{Banner: "Access denied by pam_slurm_adopt: you have no active jobs on this node\n", Hangup: true}, true, hpcexec.ErrAllocationGone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := sshtest.New(t, tt.opts)
			host := fakeSSH(t, server, tt.known)
			socket := filepath.Join(tempDir(t), "m")
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					_, err := ensure(t, host, socket)
					if !errors.Is(err, tt.wantErr) || errors.Is(tt.wantErr, hpcexec.ErrNeedsLogin) && hpcexec.Hint(err) == "" {
						t.Errorf("got error %v (hint %q), want %v", err, hpcexec.Hint(err), tt.wantErr)
					}
				})
			}
			all.Wait()
			// A site bans who tries too often.
			if n := server.Clients(); n != 1 {
				t.Errorf("got %d attempts to log in, want 1", n)
			}
		})
	}
}

// A script that calls hpcexec in a loop doesn't log in in a loop.
func TestEnsureMasterBudget(t *testing.T) {
	server := sshtest.New(t, sshtest.Options{NoKeys: true})
	host := fakeSSH(t, server, true)
	socket := filepath.Join(tempDir(t), "m")
	for range 10 {
		if _, err := ensure(t, host, socket); !errors.Is(err, hpcexec.ErrNeedsLogin) || hpcexec.Hint(err) == "" {
			t.Errorf("got error %v (hint %q), want ErrNeedsLogin", err, hpcexec.Hint(err))
		}
	}
	if n := server.Clients(); n != freeFailures+1 {
		t.Errorf("got %d attempts, want %d", n, freeFailures+1)
	}
	for count, want := range map[int]time.Duration{1: 0, 3: 0, 4: 2 * time.Second, 5: 4 * time.Second, 50: time.Minute} {
		if got := (&failure{Count: count}).pause(); got != want {
			t.Errorf("after %d failures: got a pause of %v, want %v", count, got, want)
		}
	}
}

func TestMasterOverSSH(t *testing.T) {
	server := sshtest.New(t, sshtest.Options{})
	c, _ := process(t, fakeSSH(t, server, true))
	for range 3 {
		var out bytes.Buffer
		resp, err := c.Run(t.Context(), hpcexec.Request{Args: []string{"sh", "-c", "echo hi; exit 3"}, Stdout: &out})
		if err != nil || resp.ExitCode != 3 || out.String() != "hi\n" || resp.Place != "ssh:test-host" {
			t.Errorf("got %+v, %q, %v", resp, out.String(), err)
		}
	}
	// The connection dies: the command's end is not known, and the next one
	// works.
	p, err := c.Start(t.Context(), hpcexec.Request{Args: []string{"sleep", "600"}})
	if err != nil {
		t.Fatal(err)
	}
	server.Break()
	if _, err := p.Wait(); !errors.Is(err, hpcexec.ErrUnknownEnd) {
		t.Errorf("got error %v, want ErrUnknownEnd", err)
	}
	if resp, err := c.Run(t.Context(), hpcexec.Request{Args: []string{"true"}}); err != nil || resp.ExitCode != 0 {
		t.Errorf("after the loss: got %+v, %v", resp, err)
	}
	if n := server.Logins(); n != 2 {
		t.Errorf("got %d logins, want 2", n)
	}
}

func TestMasterIdleEnds(t *testing.T) {
	c, pid := process(t, Local, "--idle", "200ms")
	ep := attachShim(t, c, serveShim(t))
	p, err := ep.Start(t.Context(), hpcexec.Request{Args: []string{"sleep", "1"}})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := p.Wait(); err != nil || resp.ExitCode != 0 {
		t.Errorf("a command longer than the idle time: got %+v, %v", resp, err)
	}
	ep.Close()
	c.Close()
	waitGonePID(t, pid)
	for _, socket := range []string{c.socket, ep.socket} {
		if _, err := Open(socket); !errors.Is(err, ErrNoMaster) {
			t.Errorf("%s: got error %v, want %v", socket, err, ErrNoMaster)
		}
	}
}

// Whoever comes as a master leaves is served, by it or by the next one.
func TestMasterIdleRace(t *testing.T) {
	socket := filepath.Join(tempDir(t), "m")
	pids := map[int]bool{}
	for i := range 40 {
		c, err := ensure(t, Local, socket, "--idle", "1ms")
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if pid, err := c.Alive(t.Context()); err == nil {
			pids[pid] = true
		} else if !errors.Is(err, hpcexec.ErrUnavailable) {
			t.Errorf("round %d: got error %v, want none or ErrUnavailable", i, err)
		}
		c.Close()
		time.Sleep(time.Duration(i%5) * 500 * time.Microsecond)
	}
	for pid := range pids {
		waitGonePID(t, pid)
	}
}

func TestMasterEnds(t *testing.T) {
	tests := []struct {
		name   string
		signal syscall.Signal
	}{{"told to", syscall.SIGTERM}, {"killed", syscall.SIGKILL}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			shim := serveShim(t)
			c, pid := process(t, Local)
			ep := attachShim(t, c, shim)
			id := hpcexec.NewID()
			p, err := ep.Start(t.Context(), hpcexec.Request{ID: id, Args: []string{"sh", "-c", "sleep 600 & sleep 600"}})
			if err != nil {
				t.Fatal(err)
			}
			wait(t, "the command", func() bool { return alive(t, id) > 0 })
			syscall.Kill(pid, tt.signal)
			if _, err := p.Wait(); !errors.Is(err, hpcexec.ErrUnknownEnd) {
				t.Errorf("got error %v, want ErrUnknownEnd", err)
			}
			wait(t, "the end of the command's tree", func() bool { return alive(t, id) == 0 })
			waitGonePID(t, pid)

			// What a killed master has left over doesn't hinder the next.
			again, err := ensure(t, Local, c.socket)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Stop(context.Background())
			if err := again.Attach(t.Context(), Endpoint{Socket: ep.socket, Place: "local", Kind: ShimSocket, Path: shim}); err != nil {
				t.Fatal(err)
			}
			if resp, err := ep.Run(t.Context(), hpcexec.Request{Args: []string{"true"}}); err != nil || resp.ExitCode != 0 {
				t.Errorf("after the restart: got %+v, %v", resp, err)
			}
			if p, err := again.Alive(t.Context()); err == nil {
				t.Cleanup(func() { waitGonePID(t, p) })
			}
		})
	}
}

func TestClientKilled(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	master := serveMaster(t, MasterOptions{})
	ep := attachShim(t, master, serveShim(t))
	cmd := exec.Command(exe, "client", ep.socket, "sh", "-c", "echo $HPCEXEC_ID; sleep 600 & sleep 600")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(readUntil(out, "\n"))
	wait(t, "the command", func() bool { return alive(t, id) == 3 })
	cmd.Process.Kill()
	cmd.Wait()
	wait(t, "the end of the command's tree", func() bool { return alive(t, id) == 0 })
}

func TestMasterArguments(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	long := "/tmp/" + strings.Repeat("x", 100)
	tests := []struct {
		name string
		args []string
		code int
	}{
		{"no host", []string{"--socket", "/tmp/x"}, 2},
		{"no socket", []string{"--host", "h"}, 2},
		{"unknown flag", []string{"--host", "h", "--socket", "/tmp/x", "--nonsense"}, 2},
		{"rest", []string{"--host", "h", "--socket", "/tmp/x", "y"}, 2},
		{"path too long", []string{"--host", Local, "--socket", long}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command(exe, append([]string{"master"}, tt.args...)...)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != tt.code {
				t.Errorf("got exit code %d, want %d: %s", code, tt.code, out)
			}
		})
	}
}

// A socket that something has removed from /tmp comes back with the next
// attach, and what runs goes on.
func TestEndpointReappears(t *testing.T) {
	c := serveMaster(t, MasterOptions{Host: Local})
	e := Endpoint{Socket: filepath.Join(tempDir(t), "e"), Place: "local", Kind: ShimSocket, Path: serveShim(t)}
	if err := c.Attach(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	ep, err := Open(e.Socket)
	if err != nil {
		t.Fatal(err)
	}
	in, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	p, err := ep.Start(t.Context(), hpcexec.Request{Args: []string{"sh", "-c", "read x; exit 5"}, Stdin: in})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(e.Socket); err != nil {
		t.Fatal(err)
	}
	if err := c.Attach(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if resp, err := ep.Run(t.Context(), hpcexec.Request{Args: []string{"sh", "-c", "exit 4"}}); err != nil || resp.ExitCode != 4 {
		t.Errorf("through the new socket: got %+v, %v, want exit code 4", resp, err)
	}
	end.Close()
	if resp, err := p.Wait(); err != nil || resp.ExitCode != 5 {
		t.Errorf("what ran before: got %+v, %v, want exit code 5", resp, err)
	}
	// Something else is in its place: it isn't ours to remove.
	if err := os.Remove(e.Socket); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(e.Socket, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.Attach(t.Context(), e); !errors.Is(err, hpcexec.ErrUnavailable) {
		t.Errorf("with a directory in its place: got error %v, want ErrUnavailable", err)
	}
}
