package sshmux

import (
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec/internal/wire"
)

// proxy serves MUX_C_PROXY: from here on the client speaks the SSH connection
// protocol (RFC 4254) itself, and its channels are carried on as channels of
// the host's connection.
func (c *muxClient) proxy(id uint32) error {
	if c.task != nil {
		c.deny(id, sFailure, "the connection has a session already")
		return nil
	}
	h, err := c.s.host(c.ctx)
	if err != nil {
		c.deny(id, sFailure, refusal(err))
		return nil
	}
	c.flush()
	c.conn.c.SetDeadline(time.Time{})
	// wire.Server does the whole greeting. The client's half has been read,
	// and the HELLO of this half was sent.
	greeting := hello{muxVersion}.append(nil)
	rw := &greetedConn{
		UnixConn: c.conn.c,
		pending:  append(appendRequest(greeting, cProxy, id, nil), c.conn.unread()...),
		swallow:  len(hello{muxVersion}.append(nil)),
	}
	conn, chans, reqs, err := wire.Server(rw)
	if err != nil {
		return err
	}
	defer conn.Close()
	go ssh.DiscardRequests(reqs)
	var open sync.WaitGroup
	for nc := range chans {
		open.Go(func() {
			h.beat.begin()
			defer h.beat.end()
			relay(h.conn, nc)
		})
	}
	open.Wait()
	return io.EOF
}

// A greetedConn is a connection of which the first bytes of both directions
// have passed.
type greetedConn struct {
	*net.UnixConn
	pending []byte // read already
	swallow int    // bytes to write that were written already
}

func (c *greetedConn) Read(p []byte) (int, error) {
	if len(c.pending) > 0 {
		n := copy(p, c.pending)
		c.pending = c.pending[n:]
		return n, nil
	}
	return c.UnixConn.Read(p)
}

func (c *greetedConn) Write(p []byte) (int, error) {
	n := min(c.swallow, len(p))
	c.swallow -= n
	if n == len(p) {
		return n, nil
	}
	m, err := c.UnixConn.Write(p[n:])
	return n + m, err
}

// relay carries one channel of a client on to another connection.
func relay(to ssh.Conn, nc ssh.NewChannel) {
	up, upReqs, err := to.OpenChannel(nc.ChannelType(), nc.ExtraData())
	if err != nil {
		if refused, ok := err.(*ssh.OpenChannelError); ok {
			nc.Reject(refused.Reason, refused.Message)
		} else {
			nc.Reject(ssh.ConnectionFailed, err.Error())
		}
		return
	}
	down, downReqs, err := nc.Accept()
	if err != nil {
		up.Close()
		ssh.DiscardRequests(upReqs)
		return
	}
	var wg sync.WaitGroup
	half := func(dst, src ssh.Channel, reqs <-chan *ssh.Request) {
		var data sync.WaitGroup
		data.Go(func() {
			copyOut(dst, src, nil, nil)
			dst.CloseWrite()
		})
		data.Go(func() { copyOut(dst.Stderr(), src.Stderr(), nil, nil) })
		for r := range reqs {
			ok, err := dst.SendRequest(r.Type, r.WantReply, r.Payload)
			r.Reply(ok && err == nil, nil)
		}
		data.Wait()
		dst.Close()
	}
	wg.Go(func() { half(down, up, upReqs) })
	wg.Go(func() { half(up, down, downReqs) })
	wg.Wait()
}
