package sshmux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

const (
	// maxDescriptors is how many received descriptors may wait to be taken.
	// No message has more than three.
	maxDescriptors = 8

	readBuffer = 16 << 10
)

// errDescriptors is the error of a peer that sent more descriptors than any
// message has, or fewer than this one needs.
var errDescriptors = errors.New("wrong number of file descriptors")

// A muxConn reads messages and the descriptors between them from a unix
// socket, and gathers what is to be written. One goroutine reads; writing is
// the business of its user.
//
// A stream of a unix socket never merges bytes over a descriptor: what was
// sent with one is at the end of what a single recvmsg returns. So a queue of
// descriptors beside the bytes keeps their order.
type muxConn struct {
	c *net.UnixConn

	buf        []byte // buf[start:end] is unread
	start, end int
	oob        []byte
	fds        []int
}

func newMuxConn(c *net.UnixConn) *muxConn {
	return &muxConn{c: c, buf: make([]byte, readBuffer), oob: make([]byte, unix.CmsgSpace(4*maxDescriptors))}
}

// next reads one message. The body is valid until the next call. The error is
// io.EOF between two messages and io.ErrUnexpectedEOF inside of one.
func (m *muxConn) next() (typ uint32, body []byte, err error) {
	if err := m.need(8); err != nil {
		return 0, nil, err
	}
	head := m.buf[m.start:]
	n := binary.BigEndian.Uint32(head)
	typ = binary.BigEndian.Uint32(head[4:])
	limit := uint32(maxMessage)
	if typ == cExec {
		limit = maxExecMessage
	}
	if n < 4 || n > limit {
		return 0, nil, fmt.Errorf("%w: message %#x is %d bytes long", errMalformed, typ, n)
	}
	if err := m.need(4 + int(n)); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	body = m.buf[m.start+8 : m.start+4+int(n)]
	m.start += 4 + int(n)
	return typ, body, nil
}

// nextRequest is next for messages with a request id.
func (m *muxConn) nextRequest() (typ, id uint32, body []byte, err error) {
	typ, body, err = m.next()
	if err != nil {
		return 0, 0, nil, err
	}
	if len(body) < 4 {
		return 0, 0, nil, fmt.Errorf("%w: message %#x has no request id", errMalformed, typ)
	}
	return typ, binary.BigEndian.Uint32(body), body[4:], nil
}

// buffered says whether a whole message is in memory, so that next wouldn't
// wait.
func (m *muxConn) buffered() bool {
	have := m.buf[m.start:m.end]
	return len(have) >= 4 && uint64(len(have)) >= 4+uint64(binary.BigEndian.Uint32(have))
}

// peekType is the type of the next message, if it is in memory.
func (m *muxConn) peekType() (typ uint32, ok bool) {
	if have := m.buf[m.start:m.end]; len(have) >= 8 {
		return binary.BigEndian.Uint32(have[4:]), true
	}
	return 0, false
}

// takeOpenSSH takes n descriptors that came the way OpenSSH sends them: one
// zero byte with each.
func (m *muxConn) takeOpenSSH(n int) ([]int, error) {
	for i := range n {
		if err := m.need(1); err != nil {
			return nil, err
		}
		m.start++
		if len(m.fds) <= i {
			return nil, errDescriptors
		}
	}
	return m.take(n)
}

// take takes n descriptors that came with the last message. The caller closes
// them. Whatever else came with it is closed and an error.
func (m *muxConn) take(n int) ([]int, error) {
	if len(m.fds) != n {
		m.closeFDs()
		return nil, errDescriptors
	}
	fds := m.fds
	m.fds = nil
	return fds, nil
}

// unread is what was read from the socket and belongs to no message that was
// taken. The muxConn is of no more use.
func (m *muxConn) unread() []byte { return m.buf[m.start:m.end] }

// need reads until n bytes are unread.
func (m *muxConn) need(n int) error {
	for m.end-m.start < n {
		if m.start == m.end {
			m.start, m.end = 0, 0
		}
		if m.end == len(m.buf) {
			buf := m.buf
			if m.start == 0 {
				// Grow with what really arrives: a length alone costs
				// the peer nothing.
				buf = make([]byte, 2*len(m.buf))
			}
			m.end = copy(buf, m.buf[m.start:m.end])
			m.start, m.buf = 0, buf
		}
		if err := m.fill(); err != nil {
			if err == io.EOF && m.end > m.start {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// fill reads once. buf has room.
func (m *muxConn) fill() error {
	n, oobn, flags, _, err := m.c.ReadMsgUnix(m.buf[m.end:], m.oob)
	if oobn > 0 {
		if err := m.addFDs(m.oob[:oobn]); err != nil {
			return err
		}
	}
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	if err != nil {
		return err
	}
	if flags&unix.MSG_CTRUNC != 0 || len(m.fds) > maxDescriptors {
		return errDescriptors
	}
	if n == 0 {
		return io.EOF
	}
	m.end += n
	return nil
}

func (m *muxConn) addFDs(oob []byte) error {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("%w: %v", errDescriptors, err)
	}
	for _, msg := range msgs {
		// Only SCM_RIGHTS can arrive: nothing else was asked for.
		fds, err := unix.ParseUnixRights(&msg)
		if err != nil {
			return fmt.Errorf("%w: %v", errDescriptors, err)
		}
		m.fds = append(m.fds, fds...)
	}
	return nil
}

func (m *muxConn) closeFDs() {
	for _, fd := range m.fds {
		unix.Close(fd)
	}
	m.fds = nil
}

// close closes the socket and the descriptors that nobody took.
func (m *muxConn) close() {
	m.c.Close()
	m.closeFDs()
}
