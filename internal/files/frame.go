package files

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

const (
	// chunk is the most data that one frame has, and so the largest file that
	// is a single frame.
	chunk = 256 << 10

	// maxPath is the longest path in a frame, relative to the top.
	maxPath = 16 << 10

	// maxFrame bounds what is read for one frame.
	maxFrame = chunk + 2*maxPath + 1024

	// pooled is the size from which frames are read into buffers that are
	// used again.
	pooled = 32 << 10
)

// A conn carries frames: a type, the length of the body in 4 bytes, big endian,
// and the body. One goroutine may read while any number write.
type conn struct {
	rw io.ReadWriteCloser
	r  *bufio.Reader

	kick chan struct{} // something waits in w
	end  chan struct{}
	once sync.Once

	mu   sync.Mutex
	w    *bufio.Writer
	werr error
}

// newConn makes a conn of a stream, which it owns.
func newConn(rw io.ReadWriteCloser) *conn {
	c := &conn{
		rw: rw, r: bufio.NewReaderSize(rw, 64<<10), w: bufio.NewWriterSize(rw, 64<<10),
		kick: make(chan struct{}, 1), end: make(chan struct{}),
	}
	go c.flushing()
	return c
}

// flushing writes what is buffered once nobody is about to add to it.
func (c *conn) flushing() {
	for {
		select {
		case <-c.kick:
			c.flush()
		case <-c.end:
			return
		}
	}
}

func (c *conn) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.werr == nil {
		c.werr = c.w.Flush()
	}
	return c.werr
}

// send queues one frame, whose body is the parts one after the other.
func (c *conn) send(typ byte, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > maxFrame {
		return fmt.Errorf("frame %q of %d bytes", typ, n)
	}
	c.mu.Lock()
	var head [5]byte
	head[0] = typ
	binary.BigEndian.PutUint32(head[1:], uint32(n))
	c.writeLocked(head[:])
	for _, p := range parts {
		c.writeLocked(p)
	}
	err := c.werr
	c.mu.Unlock()
	select {
	case c.kick <- struct{}{}:
	default:
	}
	return err
}

func (c *conn) writeLocked(p []byte) {
	if c.werr == nil {
		_, c.werr = c.w.Write(p)
	}
}

// A frame is what recv has read. Its body is the caller's until release.
type frame struct {
	typ  byte
	body []byte
	pool *[]byte
}

// buffers has the memory of long frames.
type buffers struct{ sync.Pool }

func (b *buffers) get() *[]byte {
	if p, ok := b.Get().(*[]byte); ok {
		return p
	}
	p := make([]byte, maxFrame)
	return &p
}

// recv reads one frame. At the end of the stream between two frames the error
// is io.EOF.
func (c *conn) recv(pool *buffers) (frame, error) {
	var head [5]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return frame{}, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return frame{}, fmt.Errorf("%w: a frame of %d bytes", errProtocol, n)
	}
	f := frame{typ: head[0]}
	if n >= pooled && pool != nil {
		f.pool = pool.get()
		f.body = (*f.pool)[:n]
	} else {
		f.body = make([]byte, n)
	}
	if _, err := io.ReadFull(c.r, f.body); err != nil {
		f.release(pool)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	return f, nil
}

// release gives the memory of a frame back.
func (f *frame) release(pool *buffers) {
	if f.pool != nil {
		pool.Put(f.pool)
	}
	f.pool, f.body = nil, nil
}

// close ends the stream; what is buffered is lost.
func (c *conn) close() error {
	var err error
	c.once.Do(func() {
		close(c.end)
		err = c.rw.Close()
	})
	return err
}
