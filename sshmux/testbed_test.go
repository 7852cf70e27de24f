//go:build testbed

package sshmux

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/exectest"
	"github.com/hpcexec/hpcexec/internal/wire"
)

// These tests run as a user on a node of the testbed, with the test binary in
// a place that all nodes share (see testbed/).

// farNode is the node that they reach by ssh.
const farNode = "gpu1"

func dialNode(t *testing.T, opts HostOptions) *Host {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	h, err := Dial(ctx, farNode, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// farShim is a shim on the far node, at the end of a session of sshd.
func farShim(t *testing.T) *Host {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	carrier := dialNode(t, HostOptions{Place: "ssh:" + farNode, Peer: PeerSSHD})
	c, err := carrier.command(context.Background(), []string{exe, "shim", "--stdio"})
	if err != nil {
		t.Fatal(err)
	}
	h, err := shimHost(context.Background(), c, HostOptions{Place: "ssh:" + farNode})
	if err != nil {
		t.Fatal(c.(*commandStream).explain(err))
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func TestTestbedConformanceShim(t *testing.T) {
	facts := shimFacts
	facts.Place, facts.SharesFilesystem = "ssh:"+farNode, false
	probe := farShim(t)
	exectest.Run(t, exectest.Suite{
		New:   func(t *testing.T) hpcexec.Executor { return farShim(t) },
		Probe: func(*testing.T) hpcexec.Executor { return probe },
		Facts: &facts,
		Break: func(t *testing.T, ex hpcexec.Executor) { ex.(*Host).conn.Close() },
	})
}

func TestTestbedConformanceMaster(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(tempDir(t), "m")
	ctx := t.Context()
	master, err := EnsureMaster(ctx, EnsureOptions{Host: farNode, Socket: socket, Argv: []string{exe, "master", "--host", farNode, "--socket", socket}})
	if err != nil {
		t.Fatal(err)
	}
	defer master.Stop(context.Background())
	e := Endpoint{Socket: filepath.Join(tempDir(t), "e"), Place: "ssh:" + farNode, Kind: ShimStdio, Command: []string{exe, "shim", "--stdio"}}
	if err := master.Attach(ctx, e); err != nil {
		t.Fatal(err)
	}
	facts := shimFacts
	facts.Place, facts.SharesFilesystem, facts.OutlivesClient = "ssh:"+farNode, false, true
	probe := farShim(t)
	exectest.Run(t, exectest.Suite{
		New: func(t *testing.T) hpcexec.Executor {
			c, err := Open(e.Socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		},
		Probe: func(*testing.T) hpcexec.Executor { return probe },
		Facts: &facts,
		Break: func(t *testing.T, ex hpcexec.Executor) {
			// The shim is the parent of what it runs, and sshd that of the shim.
			var pid strings.Builder
			if _, err := ex.Run(ctx, hpcexec.Request{Args: []string{"sh", "-c", "ps -o ppid= -p $PPID"}, Stdout: &pid}); err != nil {
				t.Fatal(err)
			}
			if r, err := probe.Run(ctx, hpcexec.Request{Args: []string{"kill", "-KILL", strings.TrimSpace(pid.String())}}); err != nil || r.ExitCode != 0 {
				t.Fatal(r, err)
			}
			// What is sent until the master sees it has no known end.
			time.Sleep(300 * time.Millisecond)
		},
	})
}

// A plain sshd, of this user's own: the suite has cases with more commands at
// once than the MaxSessions of the node's.
func TestTestbedConformanceSSHD(t *testing.T) {
	sshd := newSSHD(t, "MaxSessions 100")
	facts := shimFacts
	facts.Place, facts.SharesFilesystem = "ssh:own", false
	exectest.Run(t, exectest.Suite{
		New: func(t *testing.T) hpcexec.Executor {
			h := sshd.dial(t, HostOptions{Place: "ssh:own", Peer: PeerSSHD})
			t.Cleanup(func() { h.Close() })
			return h
		},
		Probe: here,
		Facts: &facts,
		Break: func(t *testing.T, ex hpcexec.Executor) { ex.(*Host).conn.Close() },
	})
}

// A stock sshd, with ten sessions, never refuses a command; nor does one with a
// single session.
func TestTestbedSessions(t *testing.T) {
	hosts := map[string]func(t *testing.T) *Host{
		"of the node": func(t *testing.T) *Host { return dialNode(t, HostOptions{Place: "x", Peer: PeerSSHD}) },
	}
	for _, n := range []string{"1", "2"} {
		sshd := newSSHD(t, "MaxSessions "+n)
		hosts["MaxSessions "+n] = func(t *testing.T) *Host {
			h := sshd.dial(t, HostOptions{Place: "x", Peer: PeerSSHD})
			t.Cleanup(func() { h.Close() })
			return h
		}
	}
	for name, dial := range hosts {
		t.Run(name, func(t *testing.T) {
			h := dial(t)
			var all sync.WaitGroup
			for i := range 50 {
				all.Go(func() {
					var out strings.Builder
					resp, err := h.Run(t.Context(), hpcexec.Request{Args: []string{"echo", fmt.Sprint(i)}, Stdout: &out})
					if err != nil || resp.ExitCode != 0 || out.String() != fmt.Sprintln(i) {
						t.Errorf("%d: got %+v, %q, %v", i, resp, out.String(), err)
					}
				})
			}
			all.Wait()
		})
	}
}

// Programs of others go through our sockets as they do through OpenSSH's.
func TestTestbedPrograms(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(tempDir(t), "m")
	ctx := t.Context()
	master, err := EnsureMaster(ctx, EnsureOptions{Host: farNode, Socket: socket, Argv: []string{exe, "master", "--host", farNode, "--socket", socket}})
	if err != nil {
		t.Fatal(err)
	}
	defer master.Stop(context.Background())
	e := Endpoint{Socket: filepath.Join(tempDir(t), "e"), Place: "ssh:" + farNode, Kind: ShimStdio, Command: []string{exe, "shim", "--stdio"}}
	if err := master.Attach(ctx, e); err != nil {
		t.Fatal(err)
	}
	for name, socket := range map[string]string{"sshd": socket, "shim": e.Socket} {
		t.Run(name, func(t *testing.T) {
			home, err := os.MkdirTemp(os.Getenv("HOME"), "sshmux-t") // shared by the nodes
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(home)
			ssh := "ssh -F /dev/null -o ProxyCommand=false -o ControlPath=" + socket
			script := `set -e
				mkdir a; for i in 1 2 3 4 5; do seq $i 2000 >a/$i; done; ln -s 1 a/link; chmod 640 a/1
				rsync -a -e "$SSH" a/ x:"$PWD"/b/
				diff -r a b
				test "$(readlink b/link)" = 1
				rsync -a -e "$SSH" x:"$PWD"/b/ c/
				diff -r a c
				if command -v git >/dev/null; then
					git init -q r; cd r; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one; cd ..
					GIT_SSH_COMMAND="$SSH" git clone -q x:"$PWD"/r r2
					git -C r2 log --format=%s | grep -qx one
				fi
				$SSH x hostname`
			cmd := exec.Command("sh", "-c", script)
			cmd.Dir, cmd.Env = home, append(os.Environ(), "SSH="+ssh)
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != farNode+"\n" {
				t.Errorf("got %q, %v, want %s", out, err, farNode)
			}
		})
	}
}

// An ownSSHD is OpenSSH's sshd, run by this user for one connection at a time
// on a socket pair.
type ownSSHD struct {
	config string
	key    ssh.Signer
}

func newSSHD(t *testing.T, options ...string) *ownSSHD {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"host", "user"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", dir+"/"+name).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	config := "HostKey " + dir + "/host\nAuthorizedKeysFile " + dir + "/user.pub\nStrictModes no\nUsePAM no\nPidFile none\n" +
		"AcceptEnv LANG LC_*\nSubsystem sftp internal-sftp\n" + strings.Join(options, "\n") + "\n"
	if err := os.WriteFile(dir+"/config", []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(dir + "/user")
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.ParsePrivateKey(b)
	if err != nil {
		t.Fatal(err)
	}
	return &ownSSHD{dir + "/config", key}
}

func (s *ownSSHD) dial(t *testing.T, opts HostOptions) *Host {
	t.Helper()
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(theirs), "sshd")
	cmd := exec.Command("/usr/sbin/sshd", "-i", "-e", "-f", s.config)
	cmd.Stdin, cmd.Stdout = f, f
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	t.Cleanup(func() { cmd.Wait() })
	conn, chans, reqs, err := wire.NewClientConn(ours, "own:22", &ssh.ClientConfig{
		User: os.Getenv("USER"), Auth: []ssh.AuthMethod{ssh.PublicKeys(s.key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		ours.Close()
		cmd.Wait()
		t.Fatalf("%v; sshd says: %s", err, &log)
	}
	return NewHost(conn, chans, reqs, opts)
}
