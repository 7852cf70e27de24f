package sshmux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// connPair is a muxConn and the other end of its socket.
func connPair(t *testing.T) (*muxConn, *net.UnixConn) {
	t.Helper()
	ours, fd, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	unix.SetNonblock(fd, true)
	f := os.NewFile(uintptr(fd), "peer")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	m := newMuxConn(ours)
	t.Cleanup(func() { m.close(); c.Close() })
	ours.SetDeadline(time.Now().Add(10 * time.Second))
	return m, c.(*net.UnixConn)
}

// openFDs is how many descriptors this process has.
func openFDs(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestConnMessages(t *testing.T) {
	m, peer := connPair(t)
	big := bytes.Repeat([]byte{'x'}, 200_000)
	var all []byte
	all = hello{4}.append(all)
	all = appendText(all, sFailure, 1, big)
	all = appendNumber(all, sAlive, 2, 77)
	go func() {
		for len(all) > 0 { // in pieces of all sizes
			n := min(len(all), 1+len(all)%9000)
			peer.Write(all[:n])
			all = all[n:]
		}
		peer.Close()
	}()
	if typ, body, err := m.next(); typ != msgHello || len(body) != 4 || err != nil {
		t.Fatalf("got %#x, %d bytes, %v", typ, len(body), err)
	}
	typ, id, body, err := m.nextRequest()
	if typ != sFailure || id != 1 || err != nil {
		t.Fatalf("got %#x, id %d, %v", typ, id, err)
	}
	if s, err := parseString(body); s != string(big) || err != nil {
		t.Errorf("got %d bytes, %v", len(s), err)
	}
	if typ, id, _, err := m.nextRequest(); typ != sAlive || id != 2 || err != nil {
		t.Errorf("got %#x, id %d, %v", typ, id, err)
	}
	if _, _, err := m.next(); err != io.EOF {
		t.Errorf("got error %v, want EOF", err)
	}
}

func TestConnRefuses(t *testing.T) {
	frame := func(n, typ uint32) []byte {
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, n), typ)
	}
	tests := []struct {
		name    string
		bytes   []byte
		wantErr error
	}{
		{"longer than the limit", frame(maxMessage+1, cNewSession), errMalformed},
		{"exec longer than its limit", frame(maxExecMessage+1, cExec), errMalformed},
		{"no room for a type", frame(3, cNewSession), errMalformed},
		{"cut in the length", []byte{0, 0}, io.ErrUnexpectedEOF},
		{"cut in the body", frame(100, cNewSession), io.ErrUnexpectedEOF},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, peer := connPair(t)
			peer.Write(tt.bytes)
			peer.Close()
			if _, _, err := m.next(); !errors.Is(err, tt.wantErr) {
				t.Errorf("got error %v, want %v", err, tt.wantErr)
			}
		})
	}
}

func TestConnMemoryFollowsData(t *testing.T) {
	m, peer := connPair(t)
	go func() {
		peer.Write(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, maxExecMessage), cExec))
		peer.Close()
	}()
	m.next()
	if len(m.buf) > 2*readBuffer {
		t.Errorf("a length alone cost %d bytes", len(m.buf))
	}
}

func TestConnDescriptors(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	one := []byte{0}
	session := newSession{Command: "x"}.append(nil, 1)
	exec := execMsg{Flags: execStdin, Body: []byte("x")}.append(nil, 1)
	tests := []struct {
		name    string
		send    func(c *net.UnixConn)
		take    func(m *muxConn) ([]int, error)
		want    int
		wantErr error
	}{
		{"OpenSSH's way", func(c *net.UnixConn) {
			c.Write(session)
			for range 3 {
				sendFDs(c, one, []int{fd})
			}
		}, func(m *muxConn) ([]int, error) { return m.takeOpenSSH(3) }, 3, nil},
		{"one too few", func(c *net.UnixConn) {
			c.Write(session)
			sendFDs(c, one, []int{fd})
			sendFDs(c, one, []int{fd})
			c.Write(one)
		}, func(m *muxConn) ([]int, error) { return m.takeOpenSSH(3) }, 0, errDescriptors},
		{"one too many", func(c *net.UnixConn) {
			c.Write(session)
			sendFDs(c, one, []int{fd})
			sendFDs(c, one, []int{fd})
			sendFDs(c, one, []int{fd, fd})
		}, func(m *muxConn) ([]int, error) { return m.takeOpenSSH(3) }, 0, errDescriptors},
		{"our way", func(c *net.UnixConn) { sendFDs(c, exec, []int{fd}) },
			func(m *muxConn) ([]int, error) { return m.take(1) }, 1, nil},
		{"ours, none", func(c *net.UnixConn) { c.Write(exec) },
			func(m *muxConn) ([]int, error) { return m.take(1) }, 0, errDescriptors},
		{"a flood", func(c *net.UnixConn) {
			for range 5 {
				sendFDs(c, exec[:1], []int{fd, fd, fd, fd, fd})
			}
			c.Write(exec[1:])
		}, func(m *muxConn) ([]int, error) { return m.take(1) }, 0, errDescriptors},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := openFDs(t)
			m, peer := connPair(t)
			go func() {
				tt.send(peer)
				peer.CloseWrite()
			}()
			_, _, err := m.next()
			var fds []int
			if err == nil {
				fds, err = tt.take(m)
			}
			if len(fds) != tt.want || !errors.Is(err, tt.wantErr) {
				t.Errorf("got %d descriptors, error %v, want %d, %v", len(fds), err, tt.want, tt.wantErr)
			}
			for _, fd := range fds {
				if n, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || n&unix.FD_CLOEXEC == 0 {
					t.Errorf("descriptor %d: %d, %v, want close-on-exec", fd, n, err)
				}
			}
			closeFDs(fds)
			m.close()
			peer.Close()
			if after := openFDs(t); after != before {
				t.Errorf("got %d descriptors open, want %d", after, before)
			}
		})
	}
}

// FuzzConn feeds bytes to a server's reader as a client would.
func FuzzConn(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(append(hello{4}.append(nil), b...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 64<<10 {
			return
		}
		ours, fd, err := socketPair()
		if err != nil {
			t.Fatal(err)
		}
		m := newMuxConn(ours)
		defer m.close()
		unix.Write(fd, b)
		unix.Close(fd)
		total := 0
		for {
			typ, body, err := m.next()
			if err != nil {
				break
			}
			total += 8 + len(body)
			parse(typ, body)
		}
		if total > len(b) {
			t.Errorf("%d bytes of messages in %d", total, len(b))
		}
	})
}
