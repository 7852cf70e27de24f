package shim

import (
	"errors"
	"io"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

const (
	// maxEnv bounds what env requests of one channel may add up to.
	maxEnv = 256 << 10

	// maxPending is how many signals are kept for a command that is being
	// started.
	maxPending = 16
)

// A session is a channel of type session. Its requests are served by one
// goroutine, which never waits for anything, for x/crypto/ssh lets the whole
// connection wait for it.
type session struct {
	c  *connection
	ch ssh.Channel

	// Of plain SSH, before the command.
	env      []string
	envSize  int
	tty      *hpcexec.TTY
	occupied bool // there is a command or a subsystem

	stdout cutter

	mu      sync.Mutex
	cmd     *command // nil until it is about to start
	pending []func(hpcexec.Process)
	ended   error // why the command is to end, though it hasn't started
}

// session serves one such channel until it is closed.
func (c *connection) session(nc ssh.NewChannel) {
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	s := &session{c: c, ch: ch, stdout: cutter{w: ch}}
	var running sync.WaitGroup
	for req := range reqs {
		ok, run := s.request(req)
		req.Reply(ok, nil)
		if run != nil {
			running.Go(run)
		}
	}
	s.close()
	running.Wait()
}

// request serves a request. run is what it starts, after the reply.
func (s *session) request(req *ssh.Request) (ok bool, run func()) {
	switch req.Type {
	case wire.RequestExec:
		if s.occupied {
			return false, nil
		}
		s.occupied = true
		return true, func() { s.exec(req.Payload) }
	case wire.RequestCancel:
		s.end(errCancel)
		return true, nil
	case "eow@openssh.com":
		// Nobody reads what the command writes any more: it gets SIGPIPE.
		s.stdout.cut()
		return true, nil
	case "signal":
		return s.signal(req.Payload), nil
	case "window-change":
		return s.windowChange(req.Payload), nil
	case "env":
		return s.setenv(req.Payload), nil
	case "pty-req":
		return s.ptyRequest(req.Payload), nil
	case "exec":
		var msg struct{ Command string }
		if s.occupied || ssh.Unmarshal(req.Payload, &msg) != nil {
			return false, nil
		}
		s.occupied = true
		return true, func() { s.plain(s.c.srv.shell(), "-c", msg.Command) }
	case "shell":
		if s.occupied {
			return false, nil
		}
		s.occupied = true
		return true, func() { s.plain(s.c.srv.shell(), "-l") }
	case "subsystem":
		var msg struct{ Name string }
		if s.occupied || ssh.Unmarshal(req.Payload, &msg) != nil || msg.Name != "sftp" {
			return false, nil
		}
		s.occupied = true
		return true, s.sftp
	}
	return false, nil
}

func (s *session) signal(payload []byte) bool {
	var msg struct{ Name string }
	if ssh.Unmarshal(payload, &msg) != nil {
		return false
	}
	name, _, _ := strings.Cut(msg.Name, "@") // RFC 4254 wants a domain for those it doesn't know
	if _, ok := hpcexec.SignalNumber(name); !ok {
		return false
	}
	return s.withProcess(func(p hpcexec.Process) { p.Signal(name) })
}

func (s *session) windowChange(payload []byte) bool {
	var msg struct{ Cols, Rows, Width, Height uint32 }
	if ssh.Unmarshal(payload, &msg) != nil {
		return false
	}
	cols, rows := int(min(msg.Cols, 65535)), int(min(msg.Rows, 65535))
	return s.withProcess(func(p hpcexec.Process) { p.Resize(cols, rows) })
}

// withProcess does something with the process, or when there is one.
func (s *session) withProcess(do func(hpcexec.Process)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cmd != nil && s.cmd.proc != nil:
		do(s.cmd.proc)
	case len(s.pending) < maxPending:
		s.pending = append(s.pending, do)
	default:
		return false
	}
	return true
}

func (s *session) setenv(payload []byte) bool {
	var msg struct{ Name, Value string }
	if ssh.Unmarshal(payload, &msg) != nil || s.occupied {
		return false
	}
	size := s.envSize + len(msg.Name) + len(msg.Value) + 64 // of the entry itself
	if !hpcexec.ValidEnvName(msg.Name) || strings.IndexByte(msg.Value, 0) >= 0 || size > maxEnv {
		return false
	}
	s.env, s.envSize = append(s.env, msg.Name+"="+msg.Value), size
	return true
}

func (s *session) ptyRequest(payload []byte) bool {
	var msg struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}
	if ssh.Unmarshal(payload, &msg) != nil || s.occupied || strings.IndexByte(msg.Term, 0) >= 0 {
		return false
	}
	s.tty = &hpcexec.TTY{Term: msg.Term, Cols: int(min(msg.Cols, 65535)), Rows: int(min(msg.Rows, 65535))}
	return true
}

// end ends the command, or the one that is about to start.
func (s *session) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		s.cmd.cancel(cause)
	} else if s.ended == nil {
		s.ended = cause
	}
}

// close notes that the client has gone. The channel is closed by now.
func (s *session) close() {
	s.mu.Lock()
	background := s.cmd != nil && s.cmd.conn == nil
	s.mu.Unlock()
	if !background {
		s.end(errClosed)
	}
}

// A cutter passes on what is written until it is cut. A Write that the channel
// fails counts as done: the client is lost then, which ends the command's tree.
// An error would end the command alone, by SIGPIPE, an end of its own that
// leaves its children.
type cutter struct {
	w io.Writer

	mu  sync.Mutex
	off bool
}

var errCut = errors.New("the client doesn't read any more")

func (c *cutter) Write(p []byte) (int, error) {
	c.mu.Lock()
	off := c.off
	c.mu.Unlock()
	if off {
		return 0, errCut
	}
	return discardAfter{c.w}.Write(p)
}

// cut has Writes from now on fail. One in progress goes on.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = true
}
