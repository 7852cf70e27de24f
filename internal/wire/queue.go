package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// softCap is where data begins to wait (see gate): enough to keep a
	// socket busy, little enough that what stands in front of a control
	// packet is gone in milliseconds on a slow carrier.
	softCap = 256 << 10

	// controlCap cuts a peer that makes us answer and doesn't read the
	// answers. 1,000 channels opened and closed at once are 0.1 MB of them.
	controlCap = 8 << 20

	// hardCap cuts any connection. The gate keeps data far below it.
	hardCap = 256 << 20

	// keepCap is the largest buffer that is kept when it was written.
	keepCap = 1 << 20

	// writePiece is what goes to the socket in one call, so that room in the
	// queue is seen while a large buffer is on its way.
	writePiece = 128 << 10

	readBuffer = 64 << 10

	// maxData is the data that one pass through the gate writes; it is the
	// largest data packet of x/crypto/ssh.
	maxData = 32 << 10

	// maxPacket is the longest packet that the reader of x/crypto/ssh takes.
	maxPacket = 256 << 10

	// linger is how long Close tries to get rid of what was queued.
	linger = 2 * time.Second
)

// Message numbers of RFC 4254 that carry data.
const (
	msgChannelData         = 94
	msgChannelExtendedData = 95
)

// ErrFlood is the error of a connection that was cut because the peer caused
// more than it read.
var ErrFlood = errors.New("peer doesn't read what it asks for")

// A Queue stands between x/crypto/ssh and a socket. Write copies, returns at
// once and never blocks; one goroutine writes to the socket all that has
// gathered since its last write. Read is buffered.
//
// A Queue bounds its memory by ending the connection. So whoever writes data
// to channels has to wait for room first: [Queue.Gate] does so for all users
// of an ssh.Conn. Waiting inside of Write would be no help: x/crypto/ssh calls
// it with the channel's write lock held, and its reader takes the same lock to
// answer the peer's close of that channel.
//
// A Queue implements net.Conn as far as what it stands on does.
type Queue struct {
	rwc io.ReadWriteCloser
	br  *bufio.Reader

	proxy bool // packets have the framing of the proxy mode
	rest  int  // bytes of the current packet still to be read

	size atomic.Int64 // bytes queued or being written; changes with mu held

	mu      sync.Mutex
	wake    *sync.Cond      // there is something to do for flush
	buf     []byte          // queued
	spare   []byte          // the other buffer, while nothing is being written
	control int             // bytes in size that are not channel data
	waiting []chan struct{} // who waits for room, first come first
	closing bool
	err     error

	flushed   chan struct{} // closed when flush has returned
	closeOnce sync.Once
	closeErr  error
}

var _ net.Conn = (*Queue)(nil)

// NewQueue makes a Queue on rwc, which it owns from then on. The caller must
// call Close.
func NewQueue(rwc io.ReadWriteCloser) *Queue {
	q := &Queue{
		rwc:     rwc,
		br:      bufio.NewReaderSize(rwc, readBuffer),
		flushed: make(chan struct{}),
	}
	q.wake = sync.NewCond(&q.mu)
	go q.flush()
	return q
}

// Write queues p. It fails with io.EOF once the connection is broken or
// closed; Err has the cause. (x/crypto/ssh passes any other error of the
// window message that follows a read on to who has read the data.)
func (q *Queue) Write(p []byte) (int, error) {
	data := q.proxy && len(p) > 5 && (p[5] == msgChannelData || p[5] == msgChannelExtendedData)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil || q.closing {
		return 0, io.EOF
	}
	if !data {
		q.control += len(p)
	}
	if size := q.size.Add(int64(len(p))); size > hardCap || q.proxy && q.control > controlCap {
		q.failLocked(ErrFlood)
		q.rwc.Close() // the peer gets nothing more
		return 0, io.EOF
	}
	if len(q.buf) == 0 {
		q.wake.Signal()
	}
	q.buf = append(q.buf, p...)
	return len(p), nil
}

// flush writes what is queued until the queue is closed or broken.
func (q *Queue) flush() {
	defer close(q.flushed)
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.buf) == 0 && !q.closing && q.err == nil {
			// Nothing is on its way that could wake a waiter later.
			q.admitLocked(len(q.waiting))
			q.wake.Wait()
		}
		if q.err != nil || len(q.buf) == 0 {
			q.admitLocked(len(q.waiting))
			return
		}
		out, control := q.buf, q.control
		q.buf, q.spare = q.spare[:0], nil
		for done := 0; done < len(out); {
			piece := out[done:min(len(out), done+writePiece)]
			q.mu.Unlock()
			n, err := q.rwc.Write(piece)
			q.mu.Lock()
			if err != nil {
				q.failLocked(err)
				// What the peer had sent before it went away is still to
				// be read, and the reader sees the end by itself. Only
				// where writing alone is broken it would wait for ever.
				time.AfterFunc(linger, func() { q.Close() })
				return
			}
			done += n
			if room := softCap - q.size.Add(int64(-n)); room > 0 {
				q.admitLocked(int(room/maxData) + 1)
			}
		}
		q.control -= control
		if cap(out) <= keepCap {
			q.spare = out
		}
	}
}

// failLocked makes err the end of the connection.
func (q *Queue) failLocked(err error) {
	if q.err == nil {
		q.err = err
	}
	q.buf = nil
	q.admitLocked(len(q.waiting))
	q.wake.Signal()
}

// admitLocked lets the first n waiters go.
func (q *Queue) admitLocked(n int) {
	n = min(n, len(q.waiting))
	for _, w := range q.waiting[:n] {
		close(w)
	}
	q.waiting = q.waiting[n:]
	if len(q.waiting) == 0 {
		q.waiting = nil
	}
}

// room waits until data may be written, or the connection has ended. A caller
// writes at most maxData bytes then. It holds no lock that the reader of the
// connection may want.
func (q *Queue) room() {
	if q.size.Load() < softCap {
		return
	}
	q.mu.Lock()
	if q.size.Load() < softCap || q.err != nil || q.closing {
		q.mu.Unlock()
		return
	}
	// More than softCap is queued or being written, so flush has to pass
	// admitLocked once more.
	w := make(chan struct{})
	q.waiting = append(q.waiting, w)
	q.mu.Unlock()
	<-w
}

// Read reads from the socket. In proxy mode it lets through only what
// x/crypto/ssh can stand: its reader panics at an empty packet.
func (q *Queue) Read(p []byte) (int, error) {
	if !q.proxy {
		return q.br.Read(p)
	}
	if q.rest == 0 {
		head, err := q.br.Peek(6) // length, padding length, message type
		if err != nil {
			if len(head) > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		n := binary.BigEndian.Uint32(head)
		if n < 2 || n > maxPacket || head[4] != 0 {
			return 0, fmt.Errorf("wire: bad packet: length %d, padding %d", n, head[4])
		}
		q.rest = 4 + int(n)
	}
	n, err := q.br.Read(p[:min(len(p), q.rest)])
	q.rest -= n
	return n, err
}

// Close stops writers, gives what was queued up to 2 s to leave, and closes
// the socket.
func (q *Queue) Close() error {
	q.mu.Lock()
	q.closing = true
	q.wake.Signal()
	q.mu.Unlock()
	q.closeOnce.Do(func() {
		t := time.NewTimer(linger)
		defer t.Stop()
		select {
		case <-q.flushed:
		case <-t.C:
		}
		q.closeErr = q.rwc.Close()
		q.mu.Lock()
		q.failLocked(net.ErrClosed)
		q.mu.Unlock()
	})
	return q.closeErr
}

// Err is why the connection can't be written to any more: an error of the
// socket, ErrFlood, or net.ErrClosed. It is nil while it can.
func (q *Queue) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}
