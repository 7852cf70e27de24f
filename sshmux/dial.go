package sshmux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

const (
	// connectWait bounds everything from the first packet to the login, for
	// users whose configuration has no ConnectTimeout.
	connectWait = 20 * time.Second

	// maxJumps bounds a chain of jump hosts, which could be a circle.
	maxJumps = 8
)

// Dial connects to [USER@]HOST[:PORT] with the user's OpenSSH configuration,
// keys and known hosts. Where a master of OpenSSH's serves the host already (see
// ControlPath in ssh_config(5)), it goes through that. It asks nobody anything:
// a password, a second factor or a new host key needs a person.
//
// Errors: hpcexec.ErrUnavailable where the host isn't reached in time,
// hpcexec.ErrNeedsLogin where a person must log in first, hpcexec.ErrDenied
// for a host key that has changed, hpcexec.ErrAllocationGone where
// pam_slurm_adopt lets nobody in without a job, hpcexec.ErrInvalid for a name
// that is none.
func Dial(ctx context.Context, host string, opts HostOptions) (*Host, error) {
	config, err := loadSSHConfig(ctx, host)
	if err != nil {
		return nil, err
	}
	if h, ok := joinMaster(ctx, config, opts); ok {
		return h, nil
	}
	opts.pulse = &pulse{}
	conn, chans, reqs, err := dialConfig(ctx, config, opts.pulse, 0)
	if err != nil {
		return nil, err
	}
	return NewHost(conn, chans, reqs, opts), nil
}

// dialConfig makes a connection, through others where need be.
func dialConfig(ctx context.Context, c *sshConfig, p *pulse, depth int) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	wait := connectWait
	if t := c.seconds("connecttimeout"); t > 0 {
		wait = t
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, fmt.Errorf("no answer in %v", wait))
	defer cancel()
	keys, err := loadHostKeys(c)
	if err != nil {
		return nil, nil, nil, err
	}
	raw, err := dialTransport(ctx, c, depth)
	if err != nil {
		return nil, nil, nil, err
	}
	a := &auth{}
	defer a.close()
	var banner strings.Builder
	config := &ssh.ClientConfig{
		User:              c.get("user"),
		Auth:              a.methods(c),
		HostKeyCallback:   keys.check,
		HostKeyAlgorithms: keys.algorithms(),
		BannerCallback: func(text string) error {
			if banner.Len() < 4<<10 {
				banner.WriteString(text)
			}
			return nil
		},
	}
	// One deadline for the whole handshake: a host may take the connection
	// and then say nothing.
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	conn, chans, reqs, err := wire.NewClientConn(pulseConn{raw, p}, c.keyName(), config)
	if !stop() && err == nil {
		conn.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		raw.Close()
		return nil, nil, nil, loginError(ctx, c, keys, a, banner.String(), err)
	}
	return conn, chans, reqs, nil
}

// loginError is what a failed handshake means.
func loginError(ctx context.Context, c *sshConfig, keys *hostKeys, a *auth, banner string, err error) error {
	var ne net.Error
	lost := errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.As(err, &ne)
	switch {
	case strings.Contains(banner, "pam_slurm_adopt"):
		return hpcexec.Errorf(hpcexec.ErrAllocationGone, "%s lets nobody in without a job of theirs: %s", c.name, printable(strings.TrimSpace(banner)))
	case keys.err != nil:
		return keys.err
	case ctx.Err() != nil:
		return unreachable(c, context.Cause(ctx))
	case lost || !keys.passed:
		return unreachable(c, err)
	}
	// The host is who it should be, and didn't hang up: it wants more than
	// keys.
	e := hpcexec.Errorf(hpcexec.ErrNeedsLogin, "%s wants a login that needs a person: %w", c.name, err)
	if len(a.locked) > 0 {
		return e.WithHint("ssh-add %s", strings.Join(a.locked, " "))
	}
	return e.WithHint("log in once with `hpcexec ssh login %s`, or have a key of yours accepted there without a password", c.name)
}

func unreachable(c *sshConfig, err error) error {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: no address is known for the host %s: %w", c.name, dns.Name, errors.New(dns.Err)).
			WithHint("see whether the name is right and whether `ssh %s` works from here", c.name)
	}
	return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: %w", c.name, err).
		WithHint("see whether the name is right and whether `ssh %s` works from here", c.name)
}

// dialTransport is the byte stream to a host's SSH server.
func dialTransport(ctx context.Context, c *sshConfig, depth int) (net.Conn, error) {
	if cmd := c.get("proxycommand"); cmd != "" {
		return proxyCommand(c.expand(cmd))
	}
	if jumps := c.get("proxyjump"); jumps != "" {
		return dialJump(ctx, c, jumps, depth)
	}
	var nd net.Dialer
	conn, err := nd.DialContext(ctx, "tcp", c.addr())
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, unreachable(c, err)
	}
	if tc, ok := conn.(*net.TCPConn); ok {
		limitUnsent(tc)
	}
	return conn, nil
}

// unsentLimit is how much may wait in the kernel to be sent. What waits in our
// own queue instead is seen there, and signals and beats don't stand behind
// megabytes of stdin.
const unsentLimit = 128 << 10

func limitUnsent(c *net.TCPConn) {
	rc, err := c.SyscallConn()
	if err != nil {
		return
	}
	// A kernel that can't does without.
	rc.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentLimit) })
}

// dialJump goes through a chain of hosts, the last of which is next to the target.
func dialJump(ctx context.Context, c *sshConfig, jumps string, depth int) (net.Conn, error) {
	if depth >= maxJumps {
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "%s: more than %d jump hosts", c.name, maxJumps)
	}
	before, last := "", jumps
	if i := strings.LastIndexByte(jumps, ','); i >= 0 {
		before, last = jumps[:i], jumps[i+1:]
	}
	via, err := loadSSHConfig(ctx, strings.TrimPrefix(last, "ssh://"))
	if err != nil {
		return nil, err
	}
	if before != "" {
		via.all["proxyjump"] = []string{before}
		delete(via.all, "proxycommand")
	}
	conn, chans, reqs, err := dialConfig(ctx, via, &pulse{}, depth+1)
	if err != nil {
		return nil, err
	}
	h := NewHost(conn, chans, reqs, HostOptions{Place: "ssh:" + via.name, Peer: PeerSSHD})
	var port uint32
	fmt.Sscan(c.get("port"), &port)
	ch, err := h.dialTCP(ctx, c.get("hostname"), port)
	if err != nil {
		h.Close()
		return nil, err
	}
	return &jumpConn{streamConn{ReadWriteCloser: ch}, h}, nil
}

// A jumpConn is a connection that ends with the host that carries it.
type jumpConn struct {
	streamConn
	via *Host
}

func (c *jumpConn) Close() error {
	err := c.streamConn.Close()
	c.via.Close()
	return err
}

// proxyCommand is the stdin and stdout of a command of the user's.
func proxyCommand(line string) (net.Conn, error) {
	sh := "/bin/sh"
	if _, err := exec.LookPath(sh); err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "ProxyCommand: %w", err)
	}
	c, err := localCommand([]string{sh, "-c", "exec " + line})
	if err != nil {
		return nil, err
	}
	return streamConn{ReadWriteCloser: c}, nil
}

// A streamConn is a byte stream as far as x/crypto/ssh needs a net.Conn.
type streamConn struct {
	io.ReadWriteCloser
}

func (streamConn) LocalAddr() net.Addr                { return streamAddr{} }
func (streamConn) RemoteAddr() net.Addr               { return streamAddr{} }
func (streamConn) SetDeadline(t time.Time) error      { return nil }
func (streamConn) SetReadDeadline(t time.Time) error  { return nil }
func (streamConn) SetWriteDeadline(t time.Time) error { return nil }

type streamAddr struct{}

func (streamAddr) Network() string { return "stream" }

// String has the form that known_hosts lookups want of every address.
func (streamAddr) String() string { return "0.0.0.0:0" }
