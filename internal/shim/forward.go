package shim

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	dialTime      = 20 * time.Second
	forwardBuffer = 64 << 10

	// forwardLinger is how long a socket may take what was sent to it by a
	// client that has gone.
	forwardLinger = 5 * time.Second
)

// forwardUnix serves direct-streamlocal@openssh.com (PROTOCOL of OpenSSH,
// section 2.4): a unix socket of the place.
func (c *connection) forwardUnix(nc ssh.NewChannel) {
	var msg struct {
		Path     string
		Reserved string
		Port     uint32
	}
	if err := ssh.Unmarshal(nc.ExtraData(), &msg); err != nil {
		nc.Reject(ssh.ConnectionFailed, "bad request")
		return
	}
	if !filepath.IsAbs(msg.Path) {
		msg.Path = filepath.Join(c.srv.dir(), msg.Path)
	}
	c.forward(nc, "unix", msg.Path)
}

// forwardTCP serves direct-tcpip (RFC 4254, section 7.2): a port that can be
// reached from the place.
func (c *connection) forwardTCP(nc ssh.NewChannel) {
	var msg struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(nc.ExtraData(), &msg); err != nil || msg.Port > 65535 {
		nc.Reject(ssh.ConnectionFailed, "bad request")
		return
	}
	c.forward(nc, "tcp", net.JoinHostPort(msg.Host, strconv.Itoa(int(msg.Port))))
}

// stream is what net.UnixConn and net.TCPConn have in common.
type stream interface {
	net.Conn
	CloseWrite() error
}

// forward connects a channel with a socket until both directions have ended.
func (c *connection) forward(nc ssh.NewChannel, network, addr string) {
	ctx, cancel := context.WithTimeout(c.ctx, dialTime)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		nc.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	defer conn.Close()
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	sock := conn.(stream) // both networks have it
	data := &activeStream{ch, c.srv}
	sent, closed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sent)
		copyData(sock, data)
		sock.CloseWrite()
	}()
	go func() {
		defer close(closed)
		for req := range reqs {
			req.Reply(false, nil)
		}
		// The client has gone. What it had sent is still delivered, if the
		// socket takes it.
		late := time.NewTimer(forwardLinger)
		defer late.Stop()
		select {
		case <-sent:
		case <-late.C:
		case <-c.srv.ctx.Done():
		}
		sock.Close()
	}()
	copyData(data, sock)
	ch.CloseWrite()
	<-sent
	ch.Close()
	<-closed
}

func copyData(dst io.Writer, src io.Reader) {
	// Without ReadFrom and WriteTo: they would copy by buffers of their own.
	io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, forwardBuffer))
}
