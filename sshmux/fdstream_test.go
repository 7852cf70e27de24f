package sshmux

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

func startPoller(t *testing.T) *poller {
	t.Helper()
	p, err := newPoller()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

// stream makes an fdStream of a copy of a file's descriptor.
func stream(t *testing.T, f *os.File, p *poller) *fdStream {
	t.Helper()
	fd, err := fileFD(f)
	if err != nil {
		t.Fatal(err)
	}
	if fd, err = unix.Dup(fd); err != nil {
		t.Fatal(err)
	}
	s := newFDStream(fd, p)
	t.Cleanup(func() { s.Close() })
	return s
}

// pipes makes the two ends of what a caller may have as its streams, in the
// blocking mode of a shell's.
var pipes = map[string]func(t *testing.T) (r, w *os.File){
	"pipe": func(t *testing.T) (*os.File, *os.File) {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
	},
	"socket": func(t *testing.T) (*os.File, *os.File) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
	},
	"terminal": func(t *testing.T) (*os.File, *os.File) {
		master, slave := openTerminal(t)
		return slave, master
	},
}

// openTerminal makes a terminal in raw mode.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close(); slave.Close() })
	fd, err := fileFD(slave)
	if err != nil {
		t.Fatal(err)
	}
	tio, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	tio.Lflag &^= unix.ICANON | unix.ECHO
	tio.Oflag &^= unix.OPOST
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, tio); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

func flags(t *testing.T, f *os.File) int {
	t.Helper()
	fd, err := fileFD(f)
	if err != nil {
		t.Fatal(err)
	}
	n, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestStreamReads(t *testing.T) {
	p := startPoller(t)
	for name, open := range pipes {
		t.Run(name, func(t *testing.T) {
			r, w := open(t)
			defer r.Close()
			defer w.Close()
			before := flags(t, r)
			s := stream(t, r, p)
			for _, text := range []string{"one", "two"} {
				go func() {
					time.Sleep(10 * time.Millisecond) // so that Read has to wait
					io.WriteString(w, text)
				}()
				buf := make([]byte, 100)
				n, err := s.Read(buf)
				if string(buf[:n]) != text || err != nil {
					t.Errorf("got %q, %v, want %q", buf[:n], err, text)
				}
			}
			if got := flags(t, r); got != before {
				t.Errorf("got flags %#o, want %#o: the description is the caller's", got, before)
			}
			w.Close()
			if n, err := s.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("at the end: got %d, %v, want EOF", n, err)
			}
		})
	}
}

// A key that is pressed after the command has ended is for the caller.
func TestStreamSwallowsNothing(t *testing.T) {
	p := startPoller(t)
	for name, open := range pipes {
		t.Run(name, func(t *testing.T) {
			r, w := open(t)
			defer r.Close()
			defer w.Close()
			s := stream(t, r, p)
			failed := make(chan error, 1)
			go func() {
				_, err := s.Read(make([]byte, 100))
				failed <- err
			}()
			time.Sleep(20 * time.Millisecond)
			s.stop()
			select {
			case err := <-failed:
				if !errors.Is(err, errStopped) {
					t.Errorf("got error %v, want %v", err, errStopped)
				}
			case <-time.After(5 * time.Second):
				t.Fatal("Read goes on")
			}
			io.WriteString(w, "key")
			buf := make([]byte, 100)
			n, err := r.Read(buf)
			if string(buf[:n]) != "key" || err != nil {
				t.Errorf("the caller got %q, %v, want the key", buf[:n], err)
			}
			if n, err := s.Read(buf); n != 0 || !errors.Is(err, errStopped) {
				t.Errorf("a stopped stream read %d bytes, %v", n, err)
			}
		})
	}
}

func TestStreamWrites(t *testing.T) {
	p := startPoller(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 40_000)
	for name, open := range pipes {
		t.Run(name, func(t *testing.T) {
			r, w := open(t)
			defer r.Close()
			defer w.Close()
			if name == "terminal" {
				r, w = w, r // a command writes to the slave
			}
			before := flags(t, w)
			s := stream(t, w, p)
			wrote := make(chan error, 1)
			go func() {
				n, err := s.Write(data)
				if n != len(data) && err == nil {
					err = io.ErrShortWrite
				}
				wrote <- err
			}()
			got := make([]byte, len(data))
			if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, data) {
				t.Errorf("got %v, or other bytes", err)
			}
			if err := <-wrote; err != nil {
				t.Error(err)
			}
			if got := flags(t, w); got != before {
				t.Errorf("got flags %#o, want %#o", got, before)
			}
		})
	}
}

// Who doesn't read delays nobody but itself, also where it goes away.
func TestStreamStuckWriteEnds(t *testing.T) {
	p := startPoller(t)
	for name, open := range pipes {
		t.Run(name, func(t *testing.T) {
			r, w := open(t)
			defer r.Close()
			defer w.Close()
			if name == "terminal" {
				w = r
			}
			s := stream(t, w, p)
			failed := make(chan error, 1)
			go func() {
				_, err := s.Write(make([]byte, 4<<20))
				failed <- err
			}()
			time.Sleep(20 * time.Millisecond)
			s.Close()
			select {
			case err := <-failed:
				if !errors.Is(err, errStopped) {
					t.Errorf("got error %v, want %v", err, errStopped)
				}
			case <-time.After(5 * time.Second):
				if name != "terminal" {
					t.Fatal("Write goes on")
				}
				// Kernels can't write to a terminal without waiting.
				t.Log("ends with the terminal")
			}
		})
	}
}

func TestStreamFiles(t *testing.T) {
	p := startPoller(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := stream(t, f, p)
	if n, err := s.Write([]byte("written")); n != 7 || err != nil {
		t.Fatalf("got %d, %v", n, err)
	}
	f.Seek(2, io.SeekStart) // the offset is shared with the caller
	b, err := io.ReadAll(s)
	if string(b) != "itten" || err != nil {
		t.Errorf("got %q, %v, want what follows the offset", b, err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	s = stream(t, null, p)
	if n, err := s.Write([]byte("x")); n != 1 || err != nil {
		t.Errorf("/dev/null: wrote %d, %v", n, err)
	}
	if n, err := s.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("/dev/null: got %d, %v, want EOF", n, err)
	}
}

func TestStreamBrokenPipe(t *testing.T) {
	p := startPoller(t)
	r, w := pipes["pipe"](t)
	defer w.Close()
	s := stream(t, w, p)
	r.Close()
	if _, err := s.Write([]byte("x")); !errors.Is(err, unix.EPIPE) {
		t.Errorf("got error %v, want EPIPE", err)
	}
}
