package sshmux

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"time"

	"golang.org/x/crypto/ssh"
)

// A remoteForward is a port or a path where the host's SSH server listens for
// us (RFC 4254, section 7.1, and OpenSSH's PROTOCOL, section 2.4).
type remoteForward struct {
	network, host string // "tcp" and an address, or "unix" and a path
	port          uint32
}

// payload is that of the request to listen, and to stop.
func (f remoteForward) payload() []byte {
	if f.network == "unix" {
		return ssh.Marshal(struct{ Path string }{f.host})
	}
	return ssh.Marshal(struct {
		Host string
		Port uint32
	}{f.host, f.port})
}

// names are the requests to listen and to stop.
func (f remoteForward) names() (listen, cancel string) {
	if f.network == "unix" {
		return "streamlocal-forward@openssh.com", "cancel-streamlocal-forward@openssh.com"
	}
	return "tcpip-forward", "cancel-tcpip-forward"
}

// key is what an incoming connection has of it. Addresses come back in the
// server's own words.
func (f remoteForward) key() string {
	if f.network == "unix" {
		return f.host
	}
	return strconv.Itoa(int(f.port))
}

// forwardedKey is the key of an incoming channel, or "" for one that is none
// of these.
func forwardedKey(nc ssh.NewChannel) string {
	d := decoder{rest: nc.ExtraData()}
	host := d.string()
	switch nc.ChannelType() {
	case "forwarded-tcpip":
		if port := d.uint32(); d.err == nil {
			return strconv.Itoa(int(port))
		}
	case "forwarded-streamlocal@openssh.com":
		if d.err == nil {
			return host
		}
	}
	return ""
}

// listenRemote has the server listen, and serve called for each connection,
// until the connection to the host or cancel ends that. port is the one that
// the server has chosen, where 0 was asked for.
func (h *Host) listenRemote(ctx context.Context, f remoteForward, serve func(c io.ReadWriteCloser)) (port uint32, cancel func(), err error) {
	switch {
	case h.opts.Peer != PeerSSHD:
		return 0, nil, errors.New("a shim listens for nobody")
	case h.opts.ping != nil:
		return 0, nil, errors.New("the host is reached through a master of OpenSSH's: ask that one")
	}
	listen, stop := f.names()
	ok, reply, err := h.request(ctx, listen, f.payload())
	if err != nil {
		return 0, nil, err
	}
	if !ok {
		return 0, nil, errors.New("the SSH server refused to listen")
	}
	if f.network == "tcp" && f.port == 0 {
		if f.port, err = parseUint32(reply); err != nil || f.port == 0 || f.port > 65535 {
			return 0, nil, errors.New("the SSH server didn't tell the port")
		}
	}
	h.mu.Lock()
	if h.forwarded == nil {
		h.forwarded = map[string]func(io.ReadWriteCloser){}
	}
	h.forwarded[f.key()] = serve
	h.mu.Unlock()
	return f.port, func() {
		h.mu.Lock()
		delete(h.forwarded, f.key())
		h.mu.Unlock()
		ctx, done := context.WithTimeout(context.Background(), time.Second)
		defer done()
		h.request(ctx, stop, f.payload())
	}, nil
}

// accept serves an incoming channel if it belongs to a forwarding that was
// asked for; everything else is refused.
func (h *Host) accept(nc ssh.NewChannel) {
	var serve func(io.ReadWriteCloser)
	if key := forwardedKey(nc); key != "" {
		h.mu.Lock()
		serve = h.forwarded[key]
		h.mu.Unlock()
	}
	if serve == nil {
		nc.Reject(ssh.Prohibited, "not served here")
		return
	}
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	go serve(newChannelStream(ch, reqs))
}

// remote is the remoteForward that a client of ours asks for.
func (m forward) remote() remoteForward {
	if m.ListenPort == streamLocal {
		return remoteForward{network: "unix", host: m.ListenHost}
	}
	host := m.ListenHost
	switch host { // in OpenSSH's words
	case "":
		host = "localhost"
	case "*":
		host = ""
	}
	return remoteForward{network: "tcp", host: host, port: m.ListenPort}
}

// dialHere connects to what a remote forwarding leads to, on this machine.
func dialHere(ctx context.Context, host string, port uint32) (net.Conn, error) {
	var d net.Dialer
	if port == streamLocal {
		return d.DialContext(ctx, "unix", host)
	}
	return d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
}
