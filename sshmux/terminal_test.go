package sshmux

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

func TestEscape(t *testing.T) {
	tests := []struct {
		name, typed, want string
		disconnects       bool
	}{
		{"nothing special", "ls\r", "ls\r", false},
		{"disconnect", "ls\r~.more", "ls\r", true},
		{"disconnect at once", "~.", "", true},
		{"in the middle of a line", "a~.\r", "a~.\r", false},
		{"itself", "~~.\r", "~.\r", false},
		{"something else", "~x\r", "~x\r", false},
		{"after a newline", "a\n~.", "a\n", true},
	}
	for _, tt := range tests {
		for _, piece := range []int{1, 100} { // keys come alone, or together
			t.Run(tt.name, func(t *testing.T) {
				disconnected := false
				r := &escapeReader{r: io.LimitReader(strings.NewReader(tt.typed), 1000), escape: '~', disconnect: func() { disconnected = true }}
				var got bytes.Buffer
				buf := make([]byte, piece)
				for {
					n, err := r.Read(buf)
					got.Write(buf[:n])
					if err != nil {
						if !errors.Is(err, io.EOF) {
							t.Fatal(err)
						}
						break
					}
				}
				// What was typed ahead of the order in one piece goes with it.
				if piece == 1 && got.String() != tt.want || disconnected != tt.disconnects {
					t.Errorf("got %q, disconnected %v, want %q, %v", &got, disconnected, tt.want, tt.disconnects)
				}
			})
		}
	}
}

func TestTerminalModes(t *testing.T) {
	_, slave := openTerminal(t)
	fd, err := fileFD(slave)
	if err != nil {
		t.Fatal(err)
	}
	tio, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	tio.Cc[unix.VINTR], tio.Cc[unix.VEOL2] = 7, 0
	modes := map[byte]uint32{}
	for b := terminalModes(tio); len(b) > 0; b = b[5:] {
		modes[b[0]] = uint32(b[1])<<24 | uint32(b[2])<<16 | uint32(b[3])<<8 | uint32(b[4])
	}
	// RFC 4254, section 8.
	for op, want := range map[byte]uint32{1: 7, 6: 255, 50: 1, 51: 0, 53: 0, 70: 0, 91: 1, 128: 38400} {
		if modes[op] != want {
			t.Errorf("mode %d: got %d, want %d", op, modes[op], want)
		}
	}
}

// A user makes the window larger: ssh tells the master by a signal, and the
// command gets to know.
func TestWindowChange(t *testing.T) {
	for name, socket := range sockets(t) {
		t.Run(name, func(t *testing.T) {
			master, slave, err := pty.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer master.Close()
			ssh := openssh(t, "ssh", socket, "-tt", "x", `trap 'stty size; exit' WINCH; echo up; while :; do sleep 0.05; done`)
			cmd := exec.Command(ssh.Path, ssh.Args[1:]...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			slave.Close()
			defer cmd.Wait()
			watchdog := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
			defer watchdog.Stop()
			readUntil(master, "up\r")
			// ssh may not listen for the signal yet, so it is sent again.
			seen := make(chan string)
			go func() { seen <- readUntil(master, "45 12") }()
			for cols := uint16(120); ; cols = 120 + (cols+1)%10 {
				if err := pty.Setsize(master, &pty.Winsize{Cols: cols, Rows: 45}); err != nil {
					t.Fatal(err)
				}
				select {
				case got := <-seen:
					if !strings.Contains(got, "45 12") {
						t.Errorf("got %q, want the new size", got)
					}
				case <-time.After(300 * time.Millisecond):
					continue
				}
				break
			}
			readUntil(master, "\x00") // to its end
		})
	}
}

// A shell that a user leaves by ~. is gone.
func TestEscapeDisconnects(t *testing.T) {
	for name, socket := range sockets(t) {
		t.Run(name, func(t *testing.T) {
			master, slave, err := pty.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer master.Close()
			ssh := openssh(t, "ssh", socket, "-tt", "x", `echo up; exec sleep 600`)
			cmd := exec.Command(ssh.Path, ssh.Args[1:]...)
			cmd.Env = append(os.Environ(), "TERM=vt100")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			slave.Close()
			watchdog := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
			readUntil(master, "up\r")
			io.WriteString(master, "\r~.")
			readUntil(master, "\x00")
			cmd.Wait()
			if !watchdog.Stop() {
				t.Error("ssh goes on")
			}
		})
	}
}
