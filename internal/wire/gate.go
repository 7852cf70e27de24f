package wire

import (
	"io"
	"net"

	"golang.org/x/crypto/ssh"
)

// Gate returns conn and its incoming channels in a form where those who send
// data, open channels or make requests wait while the queue is full. conn must
// stand on q. The caller uses what is returned, not what was given.
//
// Replies, closes, and the window messages of reading pass the gate: the
// connection lives by them.
func (q *Queue) Gate(conn ssh.Conn, chans <-chan ssh.NewChannel) (ssh.Conn, <-chan ssh.NewChannel) {
	out := make(chan ssh.NewChannel)
	ended := make(chan struct{})
	go func() {
		conn.Wait()
		close(ended)
	}()
	go func() {
		defer close(out)
		for nc := range chans {
			select {
			case out <- &gatedNewChannel{nc, q}:
			case <-ended:
			}
		}
	}()
	return &gatedConn{conn, q}, out
}

// NewClientConn makes the client end of an encrypted SSH connection over a Queue.
// The caller must serve both Go channels and close the ssh.Conn.
func NewClientConn(c net.Conn, addr string, config *ssh.ClientConfig) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	q := NewQueue(c)
	conn, chans, reqs, err := ssh.NewClientConn(q, addr, config)
	if err != nil {
		q.Close()
		return nil, nil, nil, err
	}
	conn, chans = q.Gate(conn, chans)
	return conn, chans, reqs, nil
}

// NewServerConn makes the server end of an encrypted SSH connection over a Queue,
// which owns rwc from then on, also when it fails. The caller must serve both Go
// channels and close the ssh.Conn.
func NewServerConn(rwc io.ReadWriteCloser, config *ssh.ServerConfig) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	q := NewQueue(rwc)
	conn, chans, reqs, err := ssh.NewServerConn(q, config)
	if err != nil {
		q.Close()
		return nil, nil, nil, err
	}
	gated, chans := q.Gate(conn, chans)
	return gated, chans, reqs, nil
}

type gatedConn struct {
	ssh.Conn
	q *Queue
}

func (c *gatedConn) OpenChannel(name string, data []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	c.q.room()
	ch, reqs, err := c.Conn.OpenChannel(name, data)
	if err != nil {
		return nil, nil, err
	}
	return newGatedChannel(ch, c.q), reqs, nil
}

func (c *gatedConn) SendRequest(name string, wantReply bool, payload []byte) (bool, []byte, error) {
	c.q.room()
	return c.Conn.SendRequest(name, wantReply, payload)
}

type gatedNewChannel struct {
	ssh.NewChannel
	q *Queue
}

func (n *gatedNewChannel) Accept() (ssh.Channel, <-chan *ssh.Request, error) {
	ch, reqs, err := n.NewChannel.Accept()
	if err != nil {
		return nil, nil, err
	}
	return newGatedChannel(ch, n.q), reqs, nil
}

type gatedChannel struct {
	ssh.Channel
	stderr gatedStream
	q      *Queue
}

func newGatedChannel(ch ssh.Channel, q *Queue) *gatedChannel {
	return &gatedChannel{Channel: ch, stderr: gatedStream{ch.Stderr(), q}, q: q}
}

func (c *gatedChannel) Write(p []byte) (int, error) { return c.q.writeData(c.Channel, p) }

func (c *gatedChannel) Stderr() io.ReadWriter { return &c.stderr }

func (c *gatedChannel) SendRequest(name string, wantReply bool, payload []byte) (bool, error) {
	c.q.room()
	return c.Channel.SendRequest(name, wantReply, payload)
}

type gatedStream struct {
	io.ReadWriter
	q *Queue
}

func (s *gatedStream) Write(p []byte) (int, error) { return s.q.writeData(s.ReadWriter, p) }

// writeData writes p to w in pieces, each when there is room.
func (q *Queue) writeData(w io.Writer, p []byte) (n int, err error) {
	for len(p) > 0 {
		q.room()
		piece := p[:min(len(p), maxData)]
		m, err := w.Write(piece)
		n += m
		if err != nil {
			return n, err
		}
		p = p[m:]
	}
	return n, nil
}
