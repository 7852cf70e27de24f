package sshmux

import (
	"context"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/sshtest"
)

// opensshMaster runs OpenSSH's own master for a server and gives its socket.
func opensshMaster(t *testing.T, server *sshtest.Server) string {
	t.Helper()
	dir := tempDir(t)
	block, err := ssh.MarshalPrivateKey(server.UserKey(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/key", pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(server.Listen())
	if err != nil {
		t.Fatal(err)
	}
	line := fmt.Sprintf("[%s]:%s %s", host, port, ssh.MarshalAuthorizedKey(server.HostKey()))
	if err := os.WriteFile(dir+"/known", []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "cm")
	cmd := exec.Command("ssh", "-F", "/dev/null", "-M", "-S", socket, "-N", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes",
		"-o", "IdentityAgent=none", "-i", dir+"/key", "-o", "UserKnownHostsFile="+dir+"/known", "-p", port, "test@"+host)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	wait(t, "OpenSSH's master", func() bool {
		_, err := os.Lstat(socket)
		return err == nil
	})
	return socket
}

// Where OpenSSH has logged in already, nobody has to again.
func TestJoinOpenSSH(t *testing.T) {
	server := sshtest.New(t, sshtest.Options{})
	c := testConfig(t, server, server.Listen())
	c.all["controlpath"] = []string{opensshMaster(t, server)}
	before := server.Clients()
	h, ok := joinMaster(t.Context(), c, HostOptions{Place: "ssh:test"})
	if !ok {
		t.Fatal("OpenSSH's master was not joined")
	}
	defer h.Close()
	for i := range 20 { // more than MaxSessions, one after the other
		if resp, err := h.Run(t.Context(), hpcexec.Request{Args: []string{"sh", "-c", "exit 5"}}); err != nil || resp.ExitCode != 5 {
			t.Fatalf("%d: got %+v, %v", i, resp, err)
		}
	}
	for range 2 { // a global request would end the connection
		if err := h.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if resp, err := h.Run(t.Context(), hpcexec.Request{Args: []string{"true"}}); err != nil || resp.ExitCode != 0 {
		t.Errorf("after a ping: got %+v, %v", resp, err)
	}
	if n := server.Clients() - before; n != 0 {
		t.Errorf("got %d more logins, want none", n)
	}
}

func TestJoinNothing(t *testing.T) {
	server := sshtest.New(t, sshtest.Options{})
	dir := tempDir(t)
	l, err := net.Listen("unix", dir+"/silent")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/stale"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	os.WriteFile(dir+"/file", nil, 0o600)
	for _, path := range []string{"none", dir + "/missing", dir + "/stale", dir + "/file"} {
		c := testConfig(t, server, "127.0.0.1:1")
		c.all["controlpath"] = []string{path}
		if h, ok := joinMaster(t.Context(), c, HostOptions{}); ok {
			h.Close()
			t.Errorf("%s was joined", path)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	c := testConfig(t, server, "127.0.0.1:1")
	c.all["controlpath"] = []string{dir + "/silent"}
	if h, ok := joinMaster(ctx, c, HostOptions{}); ok {
		h.Close()
		t.Error("a socket that says nothing was joined")
	}
}
