package wire

import (
	"net"
	"os"
	"time"
)

// pipeAddr is the address of what has none, such as stdin and stdout.
type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

// LocalAddr is that of the socket, or "pipe" for something else.
func (q *Queue) LocalAddr() net.Addr {
	if c, ok := q.rwc.(net.Conn); ok {
		return c.LocalAddr()
	}
	return pipeAddr{}
}

// RemoteAddr is that of the socket, or "pipe" for something else.
func (q *Queue) RemoteAddr() net.Addr {
	if c, ok := q.rwc.(net.Conn); ok {
		return c.RemoteAddr()
	}
	return pipeAddr{}
}

// SetDeadline sets the deadlines of the socket; os.ErrNoDeadline where it has
// none.
func (q *Queue) SetDeadline(t time.Time) error {
	if c, ok := q.rwc.(interface{ SetDeadline(time.Time) error }); ok {
		return c.SetDeadline(t)
	}
	return os.ErrNoDeadline
}

// SetReadDeadline is SetDeadline for reading alone.
func (q *Queue) SetReadDeadline(t time.Time) error {
	if c, ok := q.rwc.(interface{ SetReadDeadline(time.Time) error }); ok {
		return c.SetReadDeadline(t)
	}
	return os.ErrNoDeadline
}

// SetWriteDeadline is SetDeadline for writing alone. It bounds the writes of
// the queue to the socket, not Write, which never blocks.
func (q *Queue) SetWriteDeadline(t time.Time) error {
	if c, ok := q.rwc.(interface{ SetWriteDeadline(time.Time) error }); ok {
		return c.SetWriteDeadline(t)
	}
	return os.ErrNoDeadline
}
