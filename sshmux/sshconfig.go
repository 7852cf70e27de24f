package sshmux

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

// A sshConfig is what OpenSSH's configuration says about a host. `ssh -G` is
// asked for it: no parser of ours would agree with OpenSSH on Match, Include
// and canonical names.
type sshConfig struct {
	name string // as the user calls the host
	all  map[string][]string
}

// sshPrograms are where sites keep OpenSSH's client, after the PATH.
var sshPrograms = []string{"/usr/bin/ssh", "/usr/local/bin/ssh"}

// loadSSHConfig gives the configuration for [USER@]HOST[:PORT]. Without an
// ssh program it is OpenSSH's defaults.
func loadSSHConfig(ctx context.Context, target string) (*sshConfig, error) {
	login, host, port, err := splitTarget(target)
	if err != nil {
		return nil, err
	}
	c := &sshConfig{name: host, all: map[string][]string{}}
	ssh, err := findSSH()
	if err != nil {
		c.defaults(login, port)
		return c, nil
	}
	args := []string{"-G"}
	if login != "" {
		args = append(args, "-l", login)
	}
	if port != "" {
		args = append(args, "-p", port)
	}
	cmd := exec.CommandContext(ctx, ssh, append(args, "--", host)...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		text := err.Error()
		var exit *exec.ExitError
		if errors.As(err, &exit) && len(exit.Stderr) > 0 {
			text = string(bytes.TrimSpace(exit.Stderr))
		}
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "ssh -G %s: %s", host, text)
	}
	c.parse(string(out))
	return c, nil
}

func findSSH() (string, error) {
	path, err := exec.LookPath("ssh")
	if err == nil {
		return path, nil
	}
	for _, p := range sshPrograms {
		if path, perr := exec.LookPath(p); perr == nil {
			return path, nil
		}
	}
	return "", err
}

// splitTarget takes [USER@]HOST[:PORT] apart. An IPv6 address with a port has
// brackets.
func splitTarget(target string) (login, host, port string, err error) {
	bad := func(why string) (string, string, string, error) {
		return "", "", "", hpcexec.Errorf(hpcexec.ErrInvalid, "host %q: %s", target, why)
	}
	host = target
	if at := strings.LastIndexByte(host, '@'); at >= 0 {
		login, host = host[:at], host[at+1:]
		if login == "" {
			return bad("the user's name is empty")
		}
	}
	if h, p, err := net.SplitHostPort(host); err == nil {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return bad("the port is not a number from 1 to 65535")
		}
		host, port = h, p
	} else if strings.Count(host, ":") == 1 {
		return bad("the port is empty")
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	switch {
	case host == "":
		return bad("the name is empty")
	case host[0] == '-' || strings.HasPrefix(login, "-"):
		return bad("it begins with a dash")
	case strings.ContainsAny(target, " \t\n\r\x00"):
		return bad("it has white space")
	}
	return login, host, port, nil
}

// parse reads what `ssh -G` prints: one keyword in lower case and its value a
// line; keywords that may occur several times do.
func (c *sshConfig) parse(out string) {
	for line := range strings.Lines(out) {
		key, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
		if ok {
			c.all[key] = append(c.all[key], value)
		}
	}
}

// defaults are those of ssh_config(5).
func (c *sshConfig) defaults(login, port string) {
	if login == "" {
		login = os.Getenv("USER")
		if u, err := user.Current(); login == "" && err == nil {
			login = u.Username
		}
	}
	if port == "" {
		port = "22"
	}
	c.all = map[string][]string{
		"hostname": {c.name}, "user": {login}, "port": {port},
		"identityfile":         {"~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519"},
		"userknownhostsfile":   {"~/.ssh/known_hosts ~/.ssh/known_hosts2"},
		"globalknownhostsfile": {"/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"},
	}
}

// get is the value of a keyword, "" for "none" and for what isn't there.
func (c *sshConfig) get(key string) string {
	if v := c.all[key]; len(v) > 0 && v[0] != "none" {
		return v[0]
	}
	return ""
}

func (c *sshConfig) is(key, value string) bool { return c.get(key) == value }

// seconds is a time; OpenSSH prints them in seconds.
func (c *sshConfig) seconds(key string) time.Duration {
	n, err := strconv.Atoi(c.get(key))
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// files are the paths of a keyword, which may have several in one value.
func (c *sshConfig) files(key string) []string {
	var out []string
	for _, v := range c.all[key] {
		if v != "none" {
			out = append(out, c.path(v))
		}
	}
	return out
}

// path expands what `ssh -G` leaves in a path: ~ and tokens.
func (c *sshConfig) path(s string) string {
	home := homeDir()
	if s == "~" || strings.HasPrefix(s, "~/") {
		s = filepath.Join(home, s[1:])
	}
	return c.expand(s, "%d", home, "%i", strconv.Itoa(os.Getuid()), "%u", os.Getenv("USER"))
}

// expand replaces the tokens that a connection has, and some more.
func (c *sshConfig) expand(s string, more ...string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	local, _ := os.Hostname()
	short, _, _ := strings.Cut(local, ".")
	return strings.NewReplacer(append(more, "%%", "%", "%h", c.get("hostname"), "%n", c.name,
		"%p", c.get("port"), "%r", c.get("user"), "%l", local, "%L", short)...).Replace(s)
}

func homeDir() string {
	if h := os.Getenv("HOME"); h != "" {
		return h
	}
	if u, err := user.Current(); err == nil {
		return u.HomeDir
	}
	return "/"
}

// addr is where to connect.
func (c *sshConfig) addr() string { return net.JoinHostPort(c.get("hostname"), c.get("port")) }

// keyName is the name under which the host's key is known.
func (c *sshConfig) keyName() string {
	if alias := c.get("hostkeyalias"); alias != "" {
		return net.JoinHostPort(alias, "22") // an alias has no port
	}
	return c.addr()
}
