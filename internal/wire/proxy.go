package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
)

// Messages of the mux protocol (PROTOCOL.mux of OpenSSH) up to where the proxy
// mode begins. All integers are big endian, all messages have a length first.
const (
	muxVersion = 4

	muxHello            = 0x00000001
	muxProxy            = 0x1000000f
	muxPermissionDenied = 0x80000002
	muxFailure          = 0x80000003
	muxProxyAnswer      = 0x8000000f

	// maxGreeting bounds a HELLO with the extensions of versions to come.
	maxGreeting = 4 << 10

	// handshakeTime bounds the whole handshake.
	handshakeTime = 10 * time.Second
)

// Client makes the client end of a connection in proxy mode and owns rwc from
// then on, also when it fails. The caller must serve both Go channels and
// close the ssh.Conn. The peer is a [Server], or the master of OpenSSH.
//
// The handshake is bounded to 10 s. Errors are of kind hpcexec.ErrUnavailable.
func Client(rwc io.ReadWriteCloser) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	return handshake(rwc, func(q *Queue) error {
		q.Write(greeting(0)) // an error of the socket shows in the read
		if err := readHello(q); err != nil {
			return err
		}
		typ, body, err := readMux(q)
		switch {
		case err != nil:
			return err
		case typ == muxPermissionDenied || typ == muxFailure:
			return fmt.Errorf("peer refused proxy mode: %s", muxReason(body))
		case typ != muxProxyAnswer || !bytes.Equal(body, make([]byte, 4)):
			return fmt.Errorf("peer answered %#x instead of proxy mode", typ)
		}
		return nil
	})
}

// Server makes the other end, the one that a [Client] or `ssh -O proxy`
// connects to, and owns rwc from then on, also when it fails. The caller must
// serve both Go channels and close the ssh.Conn. Its handshake is bounded like
// that of Client.
func Server(rwc io.ReadWriteCloser) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	return handshake(rwc, func(q *Queue) error {
		q.Write(muxMessage(muxHello, muxVersion))
		if err := readHello(q); err != nil {
			return err
		}
		typ, body, err := readMux(q)
		switch {
		case err != nil:
			return err
		case len(body) < 4:
			return fmt.Errorf("mux request %#x without an id", typ)
		}
		id := binary.BigEndian.Uint32(body)
		if typ != muxProxy {
			const reason = "only proxy mode is served here"
			m := binary.BigEndian.AppendUint32(nil, uint32(4+4+4+len(reason)))
			for _, v := range []uint32{muxFailure, id, uint32(len(reason))} {
				m = binary.BigEndian.AppendUint32(m, v)
			}
			q.Write(append(m, reason...))
			return fmt.Errorf("peer asked for %#x instead of proxy mode", typ)
		}
		q.Write(muxMessage(muxProxyAnswer, id))
		return nil
	})
}

// handshake runs greet on a new queue and then hands the queue to
// x/crypto/ssh, whose own greeting never reaches the socket. x/crypto/ssh has
// only the client end, but from there on both ends are the same.
func handshake(rwc io.ReadWriteCloser, greet func(*Queue) error) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	q := NewQueue(rwc)
	greeted := make(chan error, 1)
	go func() { greeted <- greet(q) }()
	timer := time.NewTimer(handshakeTime)
	defer timer.Stop()
	var err error
	select {
	case err = <-greeted:
	case <-timer.C:
		// Close interrupts the greeting, unless rwc is a file that blocks in
		// read(2): that one isn't waited for.
		rwc.Close()
		err = errors.New("no answer in 10 s")
	}
	if err == nil {
		q.proxy = true
		var conn ssh.Conn
		var chans <-chan ssh.NewChannel
		var reqs <-chan *ssh.Request
		if conn, chans, reqs, err = ssh.NewControlClientConn(newGreeted(q)); err == nil {
			conn, chans = q.Gate(conn, chans)
			return conn, chans, reqs, nil
		}
	}
	q.Close()
	return nil, nil, nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "mux handshake: %w", err)
}

// greeted is a connection of which the greetings of both sides are over. What
// NewControlClientConn writes and reads as its greeting stays in memory.
type greeted struct {
	net.Conn
	expect []byte // what is still to be swallowed
	answer []byte // what is still to be read
}

func newGreeted(c net.Conn) *greeted {
	return &greeted{c, greeting(0), append(muxMessage(muxHello, muxVersion), muxMessage(muxProxyAnswer, 0)...)}
}

func (g *greeted) Write(p []byte) (int, error) {
	if len(g.expect) == 0 {
		return g.Conn.Write(p)
	}
	rest, ok := bytes.CutPrefix(g.expect, p)
	if !ok {
		return 0, fmt.Errorf("x/crypto/ssh greets with %x", p)
	}
	g.expect = rest
	return len(p), nil
}

func (g *greeted) Read(p []byte) (int, error) {
	if len(g.answer) == 0 {
		return g.Conn.Read(p)
	}
	n := copy(p, g.answer)
	g.answer = g.answer[n:]
	return n, nil
}

// muxMessage is a message of a type and one number.
func muxMessage(typ, v uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, 8)
	b = binary.BigEndian.AppendUint32(b, typ)
	return binary.BigEndian.AppendUint32(b, v)
}

// greeting is what a client says first.
func greeting(id uint32) []byte {
	return append(muxMessage(muxHello, muxVersion), muxMessage(muxProxy, id)...)
}

// readMux reads one message of the mux protocol.
func readMux(r io.Reader) (typ uint32, body []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 4 || n > maxGreeting {
		return 0, nil, fmt.Errorf("mux message is %d bytes long", n)
	}
	body = make([]byte, n-4)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, err
	}
	return binary.BigEndian.Uint32(head[4:]), body, nil
}

// readHello reads the peer's HELLO; extensions after its version are ignored,
// as the protocol says.
func readHello(r io.Reader) error {
	typ, body, err := readMux(r)
	switch {
	case err != nil:
		return err
	case typ != muxHello || len(body) < 4:
		return fmt.Errorf("peer said %#x instead of hello", typ)
	}
	if v := binary.BigEndian.Uint32(body); v != muxVersion {
		return fmt.Errorf("peer speaks version %d of the mux protocol, not %d", v, muxVersion)
	}
	return nil
}

// muxReason is the text in the body of a refusal.
func muxReason(body []byte) string {
	if len(body) < 8 {
		return "no reason given"
	}
	n := binary.BigEndian.Uint32(body[4:])
	if uint64(n) > uint64(len(body)-8) {
		return "no reason given"
	}
	return fmt.Sprintf("%q", body[8:8+n])
}
