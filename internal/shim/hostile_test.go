package shim

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec/internal/wire"
)

func TestOtherUserIsRefused(t *testing.T) {
	var refused atomic.Int64
	socket := serve(t, Options{checkPeer: func(c *net.UnixConn) error {
		refused.Add(1)
		return errors.New("not you")
	}})
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := wire.Client(c); err == nil {
		t.Error("got a connection, want it refused")
	}
	if n := refused.Load(); n != 1 {
		t.Errorf("the peer was looked at %d times, want once", n)
	}
}

// TestHostileHandshake has peers that never become a connection. The shim
// serves others meanwhile.
func TestHostileHandshake(t *testing.T) {
	socket := serve(t, Options{})
	for _, hello := range []string{"", "SSH-2.0-x\r\n", "\xff\xff\xff\xff", "\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x00\x03", strings.Repeat("\x00", 1<<16)} {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, hello)
	}
	if got := dial(t, socket).sh("echo served"); got != "served\n" {
		t.Errorf("got %q, want others to be served", got)
	}
}

func TestTooManyConnections(t *testing.T) {
	socket := serve(t, Options{})
	var conns []net.Conn
	for range maxConnections + 20 {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	if _, _, _, err := wire.Client(conns[len(conns)-1]); err == nil {
		t.Error("the last of too many was taken")
	}
	for _, c := range conns {
		c.Close()
	}
	eventually(t, "the shim takes connections again", func() bool {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return false
		}
		conn, _, _, err := wire.Client(c)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

func TestTooManyChannels(t *testing.T) {
	const most = 20
	c := dial(t, serve(t, Options{MaxChannels: most}))
	var open []ssh.Channel
	for range most {
		ch, reqs := c.channel()
		go ssh.DiscardRequests(reqs)
		open = append(open, ch)
	}
	_, _, err := c.OpenChannel("session", nil)
	refused, ok := err.(*ssh.OpenChannelError)
	if !ok || refused.Reason != ssh.ResourceShortage || !strings.Contains(refused.Message, "no more channels") {
		t.Errorf("got %v, want a refusal that says why", err)
	}
	for _, ch := range open {
		ch.Close()
	}
	eventually(t, "there are channels again", func() bool {
		ch, reqs, err := c.OpenChannel("session", nil)
		if err == nil {
			go ssh.DiscardRequests(reqs)
			ch.Close()
		}
		return err == nil
	})
}

// TestBadRequests has requests that nobody should send. Each is refused or
// ignored, and the connection serves on.
func TestBadRequests(t *testing.T) {
	c := dial(t, serve(t, Options{}))
	text := func(s string) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...) }
	for _, tt := range []struct {
		name, typ string
		payload   []byte
	}{
		{"unknown", "nonsense", nil},
		{"exec without a command", "exec", nil},
		{"exec cut off", "exec", []byte{0, 0, 0, 9, 'a'}},
		{"huge length", "exec", []byte{0xff, 0xff, 0xff, 0xff}},
		{"subsystem", "subsystem", text("netconf")},
		{"signal", "signal", text("$(reboot)")},
		{"signal cut off", "signal", []byte{0}},
		{"window", "window-change", []byte{1, 2, 3}},
		{"pty", "pty-req", text("xterm")},
		{"pty, NUL in its name", "pty-req", append(append(text("a\x00b"), make([]byte, 16)...), text("")...)},
		{"env", "env", text("A")},
		{"agent", "auth-agent-req@openssh.com", nil},
		{"x11", "x11-req", make([]byte, 20)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ch, reqs := c.channel()
			go ssh.DiscardRequests(reqs)
			defer ch.Close()
			if ok, err := ch.SendRequest(tt.typ, true, tt.payload); ok || err != nil {
				t.Errorf("got %v, %v, want it refused", ok, err)
			}
		})
	}
	for _, typ := range []string{"nonsense", "tcpip-forward", "streamlocal-forward@openssh.com", wire.RequestHello, "keepalive@openssh.com"} {
		if ok, _, err := c.SendRequest(typ, true, []byte("garbage")); ok || err != nil {
			t.Errorf("global request %s: got %v, %v, want it refused", typ, ok, err)
		}
	}
	for _, payload := range [][]byte{nil, {0}, make([]byte, 8), {0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff}, []byte("\x00\x00\x00\x01\x00\x00\x00\x03abc")} {
		p := c.open()
		p.SendRequest(wire.RequestExec, false, payload)
		p.CloseWrite()
		if exit := p.wait(); exit.ErrKind != "invalid" {
			t.Errorf("exec %x: got %+v, want kind invalid", payload, exit)
		}
	}
	if got := c.sh("echo on"); got != "on\n" {
		t.Errorf("got %q, want the connection to serve on", got)
	}
}

func TestSecondCommandOnAChannel(t *testing.T) {
	c := dial(t, serve(t, Options{}))
	file := tempDir(t) + "/up"
	p := c.start(wire.Exec{Args: sh(`touch "$1"; sleep 600`, file)})
	eventually(t, "the command runs", func() bool { _, err := os.Stat(file); return err == nil })
	again := ssh.Marshal(struct{ Command string }{"echo second"})
	for _, typ := range []string{"exec", "shell", wire.RequestExec} {
		if ok, err := p.SendRequest(typ, true, again); ok || err != nil {
			t.Errorf("%s: got %v, %v, want it refused", typ, ok, err)
		}
	}
	p.SendRequest(wire.RequestCancel, false, nil)
	if exit := p.wait(); exit.Signal != "TERM" || p.stdout.Len() > 0 {
		t.Errorf("got %+v, %q, want the first to have run alone", exit, &p.stdout)
	}
}

// TestStalledRequests has a client that announces many long requests and sends
// none, and floods of requests behind them: other channels are served.
func TestStalledRequests(t *testing.T) {
	c := dial(t, serve(t, Options{}))
	announce := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 1}, wire.MaxExec)
	var stalled []*call
	for range 2 * maxLongExecs {
		p := c.open()
		p.SendRequest(wire.RequestExec, false, announce)
		for range 100 {
			p.SendRequest("signal", false, []byte("\x00\x00\x00\x04TERM"))
			p.SendRequest("window-change", false, make([]byte, 16))
		}
		stalled = append(stalled, p)
	}
	if got := c.sh("echo served"); got != "served\n" {
		t.Errorf("got %q, want other channels served", got)
	}
	if got := dial(t, c.socket).sh("echo served"); got != "served\n" {
		t.Errorf("got %q, want other connections served", got)
	}
	for _, p := range stalled {
		p.Close()
		p.done.Wait()
	}
	// Those that gave up make room.
	if _, _, exit := c.run(wire.Exec{Args: sh(":", strings.Repeat("x", 100<<10))}, ""); exit.Code != 0 || exit.ErrKind != "" {
		t.Errorf("a long request after it: got %+v, want success", exit)
	}
}

// TestSlowReader has a client that doesn't read what its commands write. The
// shim holds no more of it than the windows of channels and a queue, and all
// arrives in the end.
func TestSlowReader(t *testing.T) {
	const commands, size = 8, 64 << 20
	shim := spawn(t)
	c := dial(t, shim.socket)
	type slow struct {
		ssh.Channel
		reqs <-chan *ssh.Request
	}
	var slows []slow
	for range commands {
		ch, reqs := c.channel()
		wire.SendExec(ch, &wire.Exec{Args: sh("head -c $1 /dev/zero", strconv.Itoa(size))})
		slows = append(slows, slow{ch, reqs})
	}
	if got := c.sh("echo served"); got != "served\n" {
		t.Errorf("got %q, want other channels served", got)
	}
	var wg sync.WaitGroup
	for _, s := range slows {
		wg.Go(func() {
			go ssh.DiscardRequests(s.reqs)
			if n, err := io.Copy(io.Discard, s); n != size || err != nil {
				t.Errorf("got %d bytes, %v, want %d", n, err, size)
			}
		})
	}
	wg.Wait()
	if got, most := peakMemory(t, shim.Process.Pid), 96<<10; got > most {
		t.Errorf("the shim took %d KiB, want at most %d for %d MiB of output", got, most, commands*size>>20)
	}
}

// peakMemory is the largest resident size of a process, in KiB.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmHWM:" {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// TestUnread has a client that reads nothing at all from its socket, not even
// answers, and asks for more and more: it is cut.
func TestUnread(t *testing.T) {
	c, err := net.Dial("unix", serve(t, Options{}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write([]byte("\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x00\x04\x00\x00\x00\x08\x10\x00\x00\x0f\x00\x00\x00\x00"))
	req := ssh.Marshal(struct {
		Type    string `sshtype:"80"`
		Reply   bool
		Payload []byte `ssh:"rest"`
	}{wire.RequestHello, true, []byte("{}")})
	packet := append(binary.BigEndian.AppendUint32(nil, uint32(1+len(req))), 0)
	packet = append(packet, req...)
	many := []byte(strings.Repeat(string(packet), 1000))
	const most = 1 << 30
	for n := 0; n < most; n += len(many) {
		if _, err := c.Write(many); err != nil {
			return // cut
		}
	}
	t.Errorf("the shim took %d bytes of requests whose answers nobody read", most)
}

// TestChannelsNeverClosed has a client that doesn't answer the close of its
// channels. They count until its connection ends.
func TestChannelsNeverClosed(t *testing.T) {
	const most = 5
	socket := serve(t, Options{MaxChannels: most})
	raw, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	raw.Write([]byte("\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x00\x04\x00\x00\x00\x08\x10\x00\x00\x0f\x00\x00\x00\x00"))
	for id := range uint32(most) {
		open := ssh.Marshal(struct {
			Type                string `sshtype:"90"`
			ID, Window, MaxSize uint32
		}{"session", id, 1 << 20, 1 << 15})
		raw.Write(append(append(binary.BigEndian.AppendUint32(nil, uint32(1+len(open))), 0), open...))
	}
	c := dial(t, socket)
	eventually(t, "all channels taken", func() bool {
		ch, reqs, err := c.OpenChannel("session", nil)
		if err == nil {
			go ssh.DiscardRequests(reqs)
			ch.Close()
		}
		return err != nil
	})
	raw.Close()
	eventually(t, "channels given back", func() bool {
		ch, reqs, err := c.OpenChannel("session", nil)
		if err == nil {
			go ssh.DiscardRequests(reqs)
			ch.Close()
		}
		return err == nil
	})
}
