package session

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/rundir"
	"github.com/hpcexec/hpcexec/sshmux"
)

// A Socket is one through which this user reaches a host or a session from
// this node.
type Socket struct {
	Kind string `json:"kind"` // "master", "login" (OpenSSH's), "host", "sshd" or "session"
	Name string `json:"name"` // of the host or session
	PID  int    `json:"pid"`  // of the master that serves it; 0: none does
	Path string `json:"path"`
}

var socketKinds = map[byte]string{'@': "master", '~': "login", '+': "host", '=': "sshd"}

// Sockets lists the sockets of this user on this node, sorted by kind and name,
// and says who serves them. It starts nothing.
func (m *Manager) Sockets(ctx context.Context) ([]Socket, error) {
	dir, err := rundir.Get(m.Dirs.Home)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "runtime directory: %w", err)
	}
	var list []Socket
	for _, e := range entries {
		if e.Type() != os.ModeSocket {
			continue
		}
		s := Socket{Kind: "session", Name: e.Name(), Path: rundir.SocketPath(dir, e.Name())}
		if kind, ok := socketKinds[e.Name()[0]]; ok {
			s.Kind, s.Name = kind, e.Name()[1:]
		} else if CheckName(s.Name) != nil { // a shim's or supervisor's
			continue
		}
		s.PID = alivePID(ctx, s.Path)
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Socket) int { return strings.Compare(a.Kind+a.Name, b.Kind+b.Name) })
	return list, nil
}

// alivePID is the master that answers on a socket within two seconds; 0 where
// none does.
func alivePID(ctx context.Context, socket string) int {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	client, err := sshmux.Open(socket)
	if err != nil {
		return 0
	}
	defer client.Close()
	pid, err := client.Alive(ctx)
	if err != nil {
		return 0
	}
	return pid
}

// CheckHost connects to a host, through its master, and returns the master's
// pid.
func (m *Manager) CheckHost(ctx context.Context, host string) (pid int, err error) {
	return onMaster(ctx, m, host, func(master *sshmux.Client) (int, error) { return master.Alive(ctx) })
}

// StopMaster ends the connection to a host with whatever runs over it, the one
// that a person has logged in with included. stopped says whether there was one.
func (m *Manager) StopMaster(ctx context.Context, host string) (stopped bool, err error) {
	dir, err := rundir.Get(m.Dirs.Home)
	if err != nil {
		return false, err
	}
	for _, path := range []string{masterPath(dir, host), loginPath(dir, host)} {
		client, err := sshmux.Open(path)
		if errors.Is(err, sshmux.ErrNoMaster) {
			continue
		}
		if err == nil {
			err = client.Stop(ctx)
			client.Close()
		}
		if err != nil {
			return stopped, err
		}
		stopped = true
	}
	return stopped, nil
}

// LoginTime is how long a login of a person lasts.
const LoginTime = 12 * time.Hour

// Login has OpenSSH log in to a host with the terminal of this process, so that
// passwords, one-time codes and touched keys are its work; masters go through
// that connection from then on. It stays for LoginTime after its last use.
func (m *Manager) Login(ctx context.Context, host string, in io.Reader, out, errs io.Writer) error {
	dir, err := rundir.Get(m.Dirs.Home)
	if err != nil {
		return err
	}
	socket := loginPath(dir, host)
	if alivePID(ctx, socket) == 0 {
		os.Remove(socket) // of one that was killed
		cmd := exec.CommandContext(ctx, "ssh", "-fN", "-o", "ControlMaster=yes", "-o", "ControlPath="+socket,
			"-o", "ControlPersist="+LoginTime.String(), "--", host)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, errs
		if err := cmd.Run(); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return hpcexec.Errorf(hpcexec.ErrNeedsLogin, "ssh %s: %w", host, err).WithHint("see what ssh has said above")
		}
	}
	// A master that was refused before must try again.
	if client, err := sshmux.Open(masterPath(dir, host)); err == nil {
		client.Stop(ctx)
		client.Close()
	}
	os.Remove(masterPath(dir, host) + ".err")
	_, err = m.CheckHost(ctx, host)
	return err
}
