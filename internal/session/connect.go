package session

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/atomicfile"
	"github.com/hpcexec/hpcexec/sshmux"
)

// Connect opens the control socket of a session, which is started where need
// be; with an option of w that differs from the session's it fails.
func (m *Manager) Connect(ctx context.Context, w Want) (*sshmux.Client, error) {
	if client, err := m.warm(w); client != nil || err != nil {
		return client, err
	}
	return m.open(ctx, w)
}

// ServeSSH is an SSH server on rwc whose commands run in a session; see
// [sshmux.Client.ServeSSH]. The session must be there, and is started where need
// be.
func (m *Manager) ServeSSH(ctx context.Context, name string, rwc io.ReadWriteCloser) error {
	if _, err := m.Dirs.Load(name); err != nil {
		return err
	}
	if _, err := m.KnownHosts(); err != nil {
		return err
	}
	// The socket may be of a master whose shim has died: the round trip finds
	// that out, where a client of ssh only saw its connection end.
	client, err := m.Connect(ctx, Want{Name: name})
	if err == nil {
		if _, e := client.Run(ctx, hpcexec.Request{Args: []string{"true"}}); e != nil && nothingRan(e) {
			client, err = m.open(ctx, Want{Name: name})
		}
	}
	if err != nil {
		return err
	}
	return client.ServeSSH(ctx, rwc, m.Dirs.hostKey())
}

// A KnownHosts is what ssh has to know to trust [Manager.ServeSSH].
type KnownHosts struct {
	File string // in the form of sshd(8), for all sessions of this user
	Line string // the one line of it
}

// KnownHosts makes the host key of this user's sessions where there is none.
func (m *Manager) KnownHosts() (KnownHosts, error) {
	if err := os.MkdirAll(filepath.Dir(m.Dirs.hostKey()), 0o700); err != nil {
		return KnownHosts{}, hpcexec.Errorf(hpcexec.ErrUnavailable, "state directory: %w", err)
	}
	public, err := sshmux.HostKey(m.Dirs.hostKey())
	if err != nil {
		return KnownHosts{}, err
	}
	k := KnownHosts{File: filepath.Join(filepath.Dir(m.Dirs.hostKey()), "known_hosts"), Line: SSHPrefix + "* " + public}
	if have, err := os.ReadFile(k.File); err == nil && string(have) == k.Line+"\n" {
		return k, nil
	}
	if err := atomicfile.Write(k.File, []byte(k.Line+"\n"), 0o600); err != nil {
		return KnownHosts{}, hpcexec.Errorf(hpcexec.ErrUnavailable, "known hosts: %w", err)
	}
	return k, nil
}

// SSHPrefix stands in front of a session's name where it is the name of a host.
const SSHPrefix = "hpcexec-"

func (d Dirs) hostKey() string { return filepath.Join(d.Home, "ssh", "host_key") }
