package sshmux

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/sshtest"
)

// testConfig is a configuration for a server, with its key in a file and its
// host key known.
func testConfig(t *testing.T, server *sshtest.Server, addr string) *sshConfig {
	t.Helper()
	dir := t.TempDir()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	writeKey(t, dir+"/key", server, nil)
	c := &sshConfig{name: "test-host", all: map[string][]string{
		"hostname": {host}, "port": {port}, "user": {"test"}, "identityagent": {"none"},
		"identityfile": {dir + "/key"}, "userknownhostsfile": {dir + "/known"}, "stricthostkeychecking": {"ask"},
	}}
	known(t, c, fmt.Sprintf("[%s]:%s %s", host, port, ssh.MarshalAuthorizedKey(server.HostKey())))
	return c
}

func known(t *testing.T, c *sshConfig, lines string) {
	t.Helper()
	if err := os.WriteFile(c.all["userknownhostsfile"][0], []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
}

// writeKey writes the key that a server lets in, with a passphrase if there is
// one.
func writeKey(t *testing.T, path string, server *sshtest.Server, passphrase []byte) {
	t.Helper()
	var block *pem.Block
	var err error
	if passphrase == nil {
		block, err = ssh.MarshalPrivateKey(server.UserKey(), "")
	} else {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(server.UserKey(), "", passphrase)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
}

// dialAndRun connects and runs one command.
func dialAndRun(t *testing.T, c *sshConfig) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, chans, reqs, err := dialConfig(ctx, c, &pulse{}, 0)
	if err != nil {
		return err
	}
	h := NewHost(conn, chans, reqs, HostOptions{Place: "ssh:test", Peer: PeerSSHD})
	defer h.Close()
	var out bytes.Buffer
	resp, err := h.Run(ctx, hpcexec.Request{Args: []string{"echo", "hi"}, Stdout: &out})
	if err == nil && (resp.ExitCode != 0 || out.String() != "hi\n") {
		err = fmt.Errorf("got %+v, %q", resp, out.String())
	}
	return err
}

func TestDial(t *testing.T) {
	other := sshtest.New(t, sshtest.Options{})
	tests := []struct {
		name    string
		opts    sshtest.Options
		change  func(t *testing.T, s *sshtest.Server, c *sshConfig)
		wantErr error
		hint    string
	}{
		{"key file", sshtest.Options{}, func(*testing.T, *sshtest.Server, *sshConfig) {}, nil, ""},
		{"key of the agent", sshtest.Options{}, func(t *testing.T, s *sshtest.Server, c *sshConfig) {
			os.Remove(c.all["identityfile"][0])
			c.all["identityagent"] = []string{serveAgent(t, s)}
		}, nil, ""},
		{"key of the agent that isn't to be used", sshtest.Options{}, func(t *testing.T, s *sshtest.Server, c *sshConfig) {
			os.Remove(c.all["identityfile"][0])
			c.all["identityagent"] = []string{serveAgent(t, s)}
			c.all["identitiesonly"] = []string{"yes"}
		}, hpcexec.ErrNeedsLogin, "`hpcexec ssh login test-host`"},
		{"key with a passphrase", sshtest.Options{}, func(t *testing.T, s *sshtest.Server, c *sshConfig) {
			writeKey(t, c.all["identityfile"][0], s, []byte("x"))
		}, hpcexec.ErrNeedsLogin, "ssh-add /"},
		{"key that isn't accepted", sshtest.Options{}, func(t *testing.T, _ *sshtest.Server, c *sshConfig) {
			writeKey(t, c.all["identityfile"][0], other, nil)
		}, hpcexec.ErrNeedsLogin, "`hpcexec ssh login test-host`"},
		{"second factor", sshtest.Options{NoKeys: true}, func(*testing.T, *sshtest.Server, *sshConfig) {}, hpcexec.ErrNeedsLogin, "hpcexec ssh login"},
		{"host key unknown", sshtest.Options{}, func(t *testing.T, _ *sshtest.Server, c *sshConfig) {
			known(t, c, "")
		}, hpcexec.ErrNeedsLogin, "log in once"},
		{"host key unknown, strict", sshtest.Options{}, func(t *testing.T, _ *sshtest.Server, c *sshConfig) {
			known(t, c, "")
			c.all["stricthostkeychecking"] = []string{"true"}
		}, hpcexec.ErrNeedsLogin, "log in once"},
		{"host key unknown, to be accepted", sshtest.Options{}, func(t *testing.T, _ *sshtest.Server, c *sshConfig) {
			known(t, c, "")
			c.all["stricthostkeychecking"] = []string{"accept-new"}
		}, nil, ""},
		{"host key changed", sshtest.Options{}, func(t *testing.T, _ *sshtest.Server, c *sshConfig) {
			known(t, c, fmt.Sprintf("[%s]:%s %s", c.get("hostname"), c.get("port"), ssh.MarshalAuthorizedKey(other.HostKey())))
			c.all["stricthostkeychecking"] = []string{"accept-new"} // a changed one is never accepted
		}, hpcexec.ErrDenied, "ssh-keygen -R"},
		{"host key by its alias", sshtest.Options{}, func(t *testing.T, s *sshtest.Server, c *sshConfig) {
			known(t, c, "cluster "+string(ssh.MarshalAuthorizedKey(s.HostKey())))
			c.all["hostkeyalias"] = []string{"cluster"}
		}, nil, ""},
		{"pam_slurm_adopt", sshtest.Options{Banner: "Access denied by pam_slurm_adopt: you have no active jobs on this node\n", Hangup: true},
			func(*testing.T, *sshtest.Server, *sshConfig) {}, hpcexec.ErrAllocationGone, ""},
		{"hangs up", sshtest.Options{Hangup: true}, func(*testing.T, *sshtest.Server, *sshConfig) {}, hpcexec.ErrUnavailable, ""},
		{"connection refused", sshtest.Options{}, func(t *testing.T, _ *sshtest.Server, c *sshConfig) {
			c.all["port"] = []string{fmt.Sprint(freePort(t))}
		}, hpcexec.ErrUnavailable, ""},
		{"no such host", sshtest.Options{}, func(_ *testing.T, _ *sshtest.Server, c *sshConfig) {
			c.all["hostname"] = []string{"no-such-host.invalid"}
		}, hpcexec.ErrUnavailable, ""},
		{"takes the connection and says nothing", sshtest.Options{}, func(t *testing.T, _ *sshtest.Server, c *sshConfig) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			c.all["hostname"], c.all["port"] = []string{"127.0.0.1"}, []string{fmt.Sprint(l.Addr().(*net.TCPAddr).Port)}
			c.all["connecttimeout"] = []string{"1"}
		}, hpcexec.ErrUnavailable, ""},
		{"proxy command", sshtest.Options{}, func(t *testing.T, _ *sshtest.Server, c *sshConfig) {
			c.all["proxycommand"] = []string{os.Args[0] + " pipe %h:%p"}
		}, nil, ""},
		{"proxy command that fails", sshtest.Options{}, func(t *testing.T, _ *sshtest.Server, c *sshConfig) {
			c.all["proxycommand"] = []string{"echo no way >&2; exit 1"}
		}, hpcexec.ErrUnavailable, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := sshtest.New(t, tt.opts)
			c := testConfig(t, server, server.Listen())
			tt.change(t, server, c)
			err := dialAndRun(t, c)
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("got error %v, want %v", err, tt.wantErr)
			}
			if hint := hpcexec.Hint(err); !strings.Contains(hint, tt.hint) {
				t.Errorf("got hint %q, want %q in it", hint, tt.hint)
			}
		})
	}
}

// A key that was accepted once is known from then on.
func TestDialRemembersKey(t *testing.T) {
	server := sshtest.New(t, sshtest.Options{})
	c := testConfig(t, server, server.Listen())
	known(t, c, "")
	c.all["stricthostkeychecking"] = []string{"accept-new"}
	if err := dialAndRun(t, c); err != nil {
		t.Fatal(err)
	}
	c.all["stricthostkeychecking"] = []string{"true"}
	if err := dialAndRun(t, c); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

// A host is reached through another one.
func TestDialJump(t *testing.T) {
	target := sshtest.New(t, sshtest.Options{})
	c := testConfig(t, target, target.Listen())
	bastion := sshtest.New(t, sshtest.Options{})
	c.all["proxyjump"] = []string{fakeSSH(t, bastion, true)}
	if err := dialAndRun(t, c); err != nil {
		t.Fatal(err)
	}
	if n := bastion.Logins(); n != 1 {
		t.Errorf("got %d logins at the jump host, want 1", n)
	}
	closed := sshtest.New(t, sshtest.Options{NoForward: true})
	c.all["proxyjump"] = []string{fakeSSH(t, closed, true)}
	if err := dialAndRun(t, c); !errors.Is(err, hpcexec.ErrUnavailable) {
		t.Errorf("a jump host that forwards nothing: got error %v, want ErrUnavailable", err)
	}
}

// serveAgent is an ssh-agent with a server's key, and gives its socket.
func serveAgent(t *testing.T, server *sshtest.Server) string {
	t.Helper()
	keyring := agent.NewKeyring()
	if err := keyring.Add(agent.AddedKey{PrivateKey: server.UserKey()}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(tempDir(t), "agent")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				agent.ServeAgent(keyring, c)
				c.Close()
			}()
		}
	}()
	return path
}

func TestSplitTarget(t *testing.T) {
	tests := []struct {
		in                string
		login, host, port string
		wantErr           error
	}{
		{"gpu1", "", "gpu1", "", nil},
		{"ada@gpu1:2222", "ada", "gpu1", "2222", nil},
		{"a@b@gpu1", "a@b", "gpu1", "", nil}, // names of some sites' users
		{"[::1]:22", "", "::1", "22", nil},
		{"::1", "", "::1", "", nil},
		{"[::1]", "", "::1", "", nil},
		{"", "", "", "", hpcexec.ErrInvalid},
		{"@gpu1", "", "", "", hpcexec.ErrInvalid},
		{"gpu1:", "", "", "", hpcexec.ErrInvalid},
		{"gpu1:0", "", "", "", hpcexec.ErrInvalid},
		{"gpu1:ssh", "", "", "", hpcexec.ErrInvalid},
		{"-oProxyCommand=x", "", "", "", hpcexec.ErrInvalid},
		{"-l@gpu1", "", "", "", hpcexec.ErrInvalid},
		{"gpu1 -v", "", "", "", hpcexec.ErrInvalid},
		{"gpu1\nx", "", "", "", hpcexec.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			login, host, port, err := splitTarget(tt.in)
			if login != tt.login || host != tt.host || port != tt.port || !errors.Is(err, tt.wantErr) {
				t.Errorf("got %q, %q, %q, %v, want %q, %q, %q, %v", login, host, port, err, tt.login, tt.host, tt.port, tt.wantErr)
			}
		})
	}
}

func TestSSHConfig(t *testing.T) {
	t.Setenv("HOME", "/home/ada")
	t.Setenv("USER", "ada")
	c := &sshConfig{name: "gpu1", all: map[string][]string{}}
	// As `ssh -G` of OpenSSH 10 prints it.
	c.parse("host gpu1\nuser ada\nhostname gpu1.cluster\nport 22\nconnecttimeout 7\nproxycommand none\n" +
		"identityfile ~/.ssh/id_ed25519\nidentityfile /keys/%u@%h\nproxyjump login\nuserknownhostsfile /a /b\n")
	if got := c.get("hostname"); got != "gpu1.cluster" {
		t.Errorf("got hostname %q", got)
	}
	if got := c.get("proxycommand"); got != "" {
		t.Errorf("got proxycommand %q, want none", got)
	}
	if got := c.seconds("connecttimeout"); got != 7*time.Second {
		t.Errorf("got %v, want 7 s", got)
	}
	if got, want := c.files("identityfile"), []string{"/home/ada/.ssh/id_ed25519", "/keys/ada@gpu1.cluster"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := c.expand("nc %h %p %r %n 100%%"); got != "nc gpu1.cluster 22 ada gpu1 100%" {
		t.Errorf("got %q", got)
	}
	if got := c.keyName(); got != "gpu1.cluster:22" {
		t.Errorf("got key name %q", got)
	}
}

func FuzzSSHConfig(f *testing.F) {
	f.Add("host x\nport 22\nproxycommand nc %h %p\n")
	f.Add("identityfile ~/%d%%h\r\n\n \nx")
	f.Fuzz(func(t *testing.T, out string) {
		c := &sshConfig{name: "x", all: map[string][]string{}}
		c.parse(out)
		c.addr()
		c.keyName()
		c.seconds("port")
		c.files("identityfile")
	})
}

func FuzzSplitTarget(f *testing.F) {
	for _, s := range []string{"a@b:1", "[::1]:22", "-x", "a@b@c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		login, host, _, err := splitTarget(s)
		if err == nil && (host == "" || host[0] == '-' || strings.HasPrefix(login, "-") || strings.ContainsAny(host, " \n\x00")) {
			t.Errorf("%q gave login %q, host %q", s, login, host)
		}
	})
}
