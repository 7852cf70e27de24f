package sshmux

import (
	"context"
	"net"
	"os"
	"syscall"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec/internal/wire"
)

// joinMaster joins the master of OpenSSH's that serves a host for this user,
// if there is one: whatever the login took, a one-time code, a ticket or a
// touched key, was OpenSSH's work, and it took it already. ok is false where
// there is none.
//
// The connection is the proxy mode of its control socket. That ends at a
// global request, so the master is asked on another connection whether it
// lives.
func joinMaster(ctx context.Context, c *sshConfig, opts HostOptions) (h *Host, ok bool) {
	if path := c.get("controlpath"); path != "" {
		h, ok = joinMasterAt(ctx, c.path(path), opts)
	}
	if !ok && opts.Login != "" {
		h, ok = joinMasterAt(ctx, opts.Login, opts)
	}
	return h, ok
}

func joinMasterAt(ctx context.Context, path string, opts HostOptions) (h *Host, ok bool) {
	st, err := os.Lstat(path)
	if err != nil || st.Mode().Type() != os.ModeSocket {
		return nil, false
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !ok || int(sys.Uid) != os.Geteuid() {
		return nil, false
	}
	client := &Client{socket: path}
	if _, err := client.Alive(ctx); err != nil {
		return nil, false
	}
	conn, chans, reqs, err := joinSocket(ctx, path)
	if err != nil {
		return nil, false
	}
	opts.Peer = PeerSSHD
	opts.ping = func(ctx context.Context) error {
		_, err := client.Alive(ctx)
		return err
	}
	return NewHost(conn, chans, reqs, opts), true
}

func joinSocket(ctx context.Context, path string) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, nil, nil, err
	}
	if uc, ok := raw.(*net.UnixConn); ok {
		if err := wire.CheckPeer(uc); err != nil {
			raw.Close()
			return nil, nil, nil, err
		}
	}
	return wire.Client(raw)
}
