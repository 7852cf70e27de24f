package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
)

// countingConn counts the writes that reach it. The first waits for hold.
type countingConn struct {
	net.Conn
	hold chan struct{}

	mu     sync.Mutex
	writes int
}

func (c *countingConn) Write(p []byte) (int, error) {
	<-c.hold
	c.mu.Lock()
	c.writes++
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func TestQueueCoalesces(t *testing.T) {
	a, b := socketpair(t, 0)
	defer b.Close()
	c := &countingConn{Conn: a, hold: make(chan struct{})}
	q := NewQueue(c)
	var want []byte
	for i := range 1000 {
		p := binary.BigEndian.AppendUint32(nil, uint32(i))
		want = append(want, p...)
		if _, err := q.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	close(c.hold)
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, %v, want the %d that were written, in order", len(got), err, len(want))
	}
	if c.writes > 2 { // one may have begun before the others came
		t.Errorf("got %d writes to the socket for 1000 to the queue, want at most 2", c.writes)
	}
}

func TestQueueCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe() // nobody reads from b
		defer b.Close()
		q := NewQueue(a)
		if _, err := q.Write([]byte("never read")); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		q.Close()
		if d := time.Since(start); d != linger {
			t.Errorf("Close took %v, want %v", d, linger)
		}
		if _, err := q.Write([]byte("x")); err != io.EOF {
			t.Errorf("Write after Close: got %v, want io.EOF", err)
		}
		if err := q.Err(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Err after Close: got %v, want net.ErrClosed", err)
		}
	})
}

func TestQueueReadsOnAfterBrokenWrite(t *testing.T) {
	a, b := socketpair(t, 0)
	q := NewQueue(a)
	defer q.Close()
	b.Write([]byte("last words"))
	b.Close()
	for q.Err() == nil {
		q.Write([]byte("x"))
		time.Sleep(time.Millisecond)
	}
	if got, err := io.ReadAll(q); err != nil || string(got) != "last words" {
		t.Errorf("got %q, %v, want what the peer had said before it closed", got, err)
	}
}

func TestQueueWriteOnlyBrokenEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := net.Pipe() // what is read never comes
		defer w.Close()
		q := NewQueue(&halfBroken{Conn: r})
		defer q.Close()
		q.Write([]byte("x"))
		start := time.Now()
		if _, err := q.Read(make([]byte, 1)); err == nil {
			t.Error("Read: got no error, want the end of the connection")
		}
		if d := time.Since(start); d > linger {
			t.Errorf("Read ended after %v, want at most %v", d, linger)
		}
	})
}

type halfBroken struct{ net.Conn }

func (*halfBroken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// TestSlowReaderIsBounded has many writers and a peer that at first reads
// nothing.
func TestSlowReaderIsBounded(t *testing.T) {
	const writers, each = 64, 1 << 20
	a, b := socketpair(t, 4096)
	defer b.Close()
	q := NewQueue(a)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			if _, err := q.writeData(q, make([]byte, each)); err != nil {
				t.Error(err)
			}
		})
	}
	waiting := func() int {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.waiting)
	}
	for waiting() < writers {
		time.Sleep(time.Millisecond)
	}
	if got, most := q.size.Load(), int64(softCap+writers*maxData); got < softCap || got > most {
		t.Errorf("queue holds %d bytes, want %d to %d", got, softCap, most)
	}
	n, err := io.CopyN(io.Discard, b, writers*each)
	if err != nil {
		t.Errorf("got %d bytes of %d, %v", n, writers*each, err)
	}
	wg.Wait()
	q.Close()
}

// TestRoomForAll has waiters who, once let go, write nothing: a channel's
// window may be used up. The others don't wait for them.
func TestRoomForAll(t *testing.T) {
	a, b := socketpair(t, 4096)
	defer b.Close()
	q := NewQueue(a)
	defer q.Close()
	q.Write(make([]byte, 2*softCap))
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(q.room)
	}
	if _, err := io.CopyN(io.Discard, b, 2*softCap); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// packet is a packet of the connection protocol in the framing of proxy mode.
func packet(typ byte, body []byte) []byte {
	p := binary.BigEndian.AppendUint32(nil, uint32(2+len(body)))
	return append(append(p, 0, typ), body...)
}

func TestFloodIsCut(t *testing.T) {
	const msgPing = 192
	a, b := socketpair(t, 4096)
	defer a.Close()
	done := make(chan error, 1)
	go func() {
		conn, chans, reqs, err := Server(b)
		if err != nil {
			done <- err
			return
		}
		go end{conn, chans, reqs}.refuse()
		done <- conn.Wait()
	}()
	a.Write(greeting(0))
	ping := packet(msgPing, ssh.Marshal(struct{ Data []byte }{make([]byte, 100<<10)}))
	n := 0
	for ; n < 10*controlCap; n += len(ping) {
		if _, err := a.Write(ping); err != nil {
			break // what is wanted
		}
	}
	if err := <-done; err == nil || n >= 10*controlCap {
		t.Errorf("took %d bytes of pings whose answers nobody read, then %v; want the connection cut", n, err)
	}
}

// TestBadPackets has what the reader of x/crypto/ssh v0.59.0 panics at or
// would wait for.
func TestBadPackets(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []byte
		want string
	}{
		{"empty packet", []byte{0, 0, 0, 1, 0, 0}, "bad packet"},
		{"no packet", []byte{0, 0, 0, 0, 0, 0}, "bad packet"},
		{"huge", []byte{0xff, 0xff, 0xff, 0xff, 0, 94}, "bad packet"},
		{"just too long", []byte{0, 4, 0, 1, 0, 94}, "bad packet"},
		{"padding", []byte{0, 0, 0, 9, 1, 94}, "bad packet"},
		{"cut off", []byte{0, 0, 0}, "EOF"},
		{"cut off later", []byte{0, 0, 0, 9, 0, 94, 0}, "EOF"},
		{"garbage", []byte("GET / HTTP/1.1\r\n\r\n"), "bad packet"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := socketpair(t, 0)
			go func() {
				a.Write(greeting(0))
				a.Write(tt.in)
				a.CloseWrite()
				io.Copy(io.Discard, a)
			}()
			defer a.Close()
			conn, chans, reqs, err := Server(b)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			go end{conn, chans, reqs}.refuse()
			if err := conn.Wait(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}
