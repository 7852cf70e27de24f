package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/session"
	"github.com/hpcexec/hpcexec/internal/shell"
)

func (in *invocation) sshCommand() *cli.Command {
	return &cli.Command{
		Name:  "ssh",
		Usage: "sessions for ssh and editors; the connections to hosts",
		Description: `Every program that speaks SSH reaches a session by the stanza that
` + "`hpcexec ssh config`" + ` prints. The other commands look after the connections that
hpcexec keeps to hosts: one for each, whoever uses it.`,
		Subcommands: []*cli.Command{
			{
				Name: "config", Usage: "print a stanza for ~/.ssh/config", UsageText: "hpcexec ssh config [NAME…] [--via HOST]",
				Description: `With it ` + "`ssh hpcexec-NAME`" + ` is a shell in the session, and scp, sftp, rsync, git,
VS Code and PyCharm work in it. A session that is stopped is started. Without
a NAME one stanza serves all sessions; editors list those with names.
--via is for the ssh configuration of your own machine: HOST is what ssh there
calls the login node.

EXAMPLES:
   hpcexec ssh config >> ~/.ssh/config && ssh hpcexec-train nvidia-smi
   ssh login hpcexec ssh config train --via login >> ~/.ssh/config`,
				Flags:  []cli.Flag{&cli.StringFlag{Name: "via", Usage: "for a machine that reaches hpcexec by ssh to `HOST`"}},
				Action: in.sshConfig,
			},
			{
				Name: "proxy", Usage: "be the ProxyCommand of such a stanza", UsageText: "hpcexec ssh proxy NAME",
				Description: "An SSH server on stdin and stdout; see `hpcexec ssh config`.\n\nEXAMPLES:\n   ssh -o ProxyCommand='hpcexec ssh proxy train' hpcexec-train",
				Action:      in.sshProxy,
			},
			{
				Name: "ls", Usage: "list the connections and their sockets", UsageText: "hpcexec ssh ls",
				Description: "A socket is good for `ssh -S`, `scp -o ControlPath=` and all that takes one.\n\nEXAMPLES:\n   hpcexec ssh ls",
				Action:      in.sshLs,
			},
			{
				Name: "check", Usage: "connect to hosts and say whether that works", UsageText: "hpcexec ssh check HOST…",
				Description: "EXAMPLES:\n   hpcexec ssh check gpu1",
				Action:      in.sshCheck,
			},
			{
				Name: "login", Usage: "log in to a host with a password or a second factor", UsageText: "hpcexec ssh login HOST",
				Description: `ssh asks what it has to ask, once; every command of hpcexec for that host goes
through this connection for ` + strconv.Itoa(int(session.LoginTime.Hours())) + ` hours after its last use.

EXAMPLES:
   hpcexec ssh login cluster.example.org`,
				Action: in.sshLogin,
			},
			{
				Name: "stop", Usage: "end connections to hosts", UsageText: "hpcexec ssh stop HOST…",
				Description: "Commands that run over one end. Sessions stay; the next command connects again.\n\nEXAMPLES:\n   hpcexec ssh stop gpu1",
				Action:      in.sshStop,
			},
		},
	}
}

func (in *invocation) sshConfig(c *cli.Context) error {
	names, err := in.args(0, 1000, "names of sessions")
	if err != nil {
		return err
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	known, err := m.KnownHosts()
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := m.Dirs.Load(name); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		names = []string{"*"}
	}
	s := stanza{via: c.String("via"), exe: m.Exe, known: known, user: os.Getenv("USER")}
	for _, v := range []string{"HPCEXEC_HOME", "HPCEXEC_SCRATCH"} {
		if value := os.Getenv(v); value != "" {
			s.env = append(s.env, v+"="+value)
		}
	}
	if in.json {
		var list []map[string]string
		for _, name := range names {
			list = append(list, map[string]string{"host": session.SSHPrefix + name, "proxy_command": s.proxy(name), "known_hosts": known.File, "known_hosts_line": known.Line})
		}
		return printJSON(in.out, map[string]any{"hosts": list})
	}
	for _, name := range names {
		if err := s.print(in.out, name); err != nil {
			return err
		}
	}
	return nil
}

// A stanza is a part of a file for ssh(1), in the form of ssh_config(5).
type stanza struct {
	via, exe, user string
	env            []string
	known          session.KnownHosts
}

// proxy is the ProxyCommand of a session, or of all for "*". ssh expands its %n
// to the name on its command line, and has its shell exec it.
func (s stanza) proxy(name string) string {
	argv := []string{s.exe, "ssh", "proxy"}
	if len(s.env) > 0 {
		argv = append(append([]string{"env"}, s.env...), argv...)
	}
	host := "%n"
	if name != "*" {
		host = session.SSHPrefix + name
	}
	command := strings.ReplaceAll(shell.Join(argv), "%", "%%") + " " + host
	if s.via == "" {
		return command
	}
	return "ssh " + s.via + " " + shell.Quote(command)
}

func (s stanza) print(w io.Writer, name string) error {
	lines := []string{"ProxyCommand " + s.proxy(name)}
	if s.user != "" {
		lines = append(lines, "User "+s.user)
	}
	if s.via == "" {
		lines = append(lines, `UserKnownHostsFile "`+strings.ReplaceAll(s.known.File, "%", "%%")+`"`)
	} else { // that file is there, not here
		lines = append(lines, `KnownHostsCommand /bin/echo `+s.known.Line, "UserKnownHostsFile none")
	}
	lines = append(lines, "GlobalKnownHostsFile none", "StrictHostKeyChecking yes", "PreferredAuthentications none")
	_, err := fmt.Fprintf(w, "Host %s%s\n    %s\n", session.SSHPrefix, name, strings.Join(lines, "\n    "))
	return err
}

// pipes are stdin and stdout as one stream.
type pipes struct {
	io.ReadCloser
	out io.WriteCloser
}

func (p pipes) Write(b []byte) (int, error) { return p.out.Write(b) }

func (p pipes) Close() error {
	return cmp.Or(p.out.Close(), p.ReadCloser.Close())
}

func (in *invocation) sshProxy(c *cli.Context) error {
	names, err := in.args(1, 1, "the name of a session")
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(names[0], session.SSHPrefix)
	m, err := in.manager()
	if err != nil {
		return err
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		return m.ServeSSH(ctx, name, pipes{in.in, os.Stdout})
	})
}

func (in *invocation) sshLs(c *cli.Context) error {
	if _, err := in.args(0, 0, "no name"); err != nil {
		return err
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	list, err := m.Sockets(c.Context)
	if err != nil {
		return err
	}
	if in.json {
		return printJSON(in.out, map[string]any{"sockets": notNil(list)})
	}
	t := newTable("KIND", "NAME", "MASTER", "SOCKET")
	for _, s := range list {
		master := "gone"
		if s.PID != 0 {
			master = "pid " + strconv.Itoa(s.PID)
		}
		t.row(s.Kind, s.Name, master, filepath.Clean(s.Path))
	}
	return t.print(in.out)
}

// eachHost does something with the hosts that are named.
func (in *invocation) eachHost(c *cli.Context, do func(ctx context.Context, m *session.Manager, host string) (any, error)) error {
	hosts, err := in.args(1, 1000, "names of hosts")
	if err != nil {
		return err
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		return in.each(hosts, func(host string) (any, error) { return do(ctx, m, host) })
	})
}

func (in *invocation) sshCheck(c *cli.Context) error {
	return in.eachHost(c, func(ctx context.Context, m *session.Manager, host string) (any, error) {
		pid, err := m.CheckHost(ctx, host)
		if err == nil && !in.json {
			_, err = fmt.Fprintf(in.out, "%s is connected, by the master with pid %d\n", host, pid)
		}
		return map[string]any{"host": host, "pid": pid}, err
	})
}

func (in *invocation) sshStop(c *cli.Context) error {
	return in.eachHost(c, func(ctx context.Context, m *session.Manager, host string) (any, error) {
		stopped, err := m.StopMaster(ctx, host)
		if err == nil && !stopped && !in.json {
			_, err = fmt.Fprintf(in.err, "hpcexec: there is no connection to %s\n", host)
		}
		return map[string]any{"host": host, "stopped": stopped}, err
	})
}

func (in *invocation) sshLogin(c *cli.Context) error {
	hosts, err := in.args(1, 1, "the name of a host")
	if err != nil {
		return err
	}
	if strings.HasPrefix(hosts[0], "-") {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "%q is not a host", hosts[0])
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	if err := m.Login(c.Context, hosts[0], in.in, in.err, in.err); err != nil {
		return err
	}
	if in.json {
		return printJSON(in.out, map[string]any{"host": hosts[0]})
	}
	_, err = fmt.Fprintf(in.out, "%s is logged in\n", hosts[0])
	return err
}
