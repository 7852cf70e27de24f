package sshmux

import (
	"io"
	"net"
	"sync/atomic"
	"time"
)

// A pulse knows when a connection last brought anything. A peer that is busy
// taking what we send may answer late, but it isn't silent meanwhile.
type pulse struct {
	heard atomic.Int64 // Unix nanoseconds
}

func (p *pulse) beat() { p.heard.Store(time.Now().UnixNano()) }

// silence is how long nothing has come.
func (p *pulse) silence() time.Duration {
	return time.Duration(time.Now().UnixNano() - p.heard.Load())
}

// A pulseStream feels the pulse of a stream.
type pulseStream struct {
	io.ReadWriteCloser
	p *pulse
}

func (s pulseStream) Read(b []byte) (int, error) {
	n, err := s.ReadWriteCloser.Read(b)
	if n > 0 {
		s.p.beat()
	}
	return n, err
}

// A pulseConn feels the pulse of a network connection.
type pulseConn struct {
	net.Conn
	p *pulse
}

func (c pulseConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.p.beat()
	}
	return n, err
}
