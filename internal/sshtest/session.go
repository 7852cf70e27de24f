package sshtest

import (
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"github.com/creack/pty"
	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// A connection is one client.
type connection struct {
	s    *Server
	conn ssh.Conn

	mu       sync.Mutex
	sessions int

	listeners map[uint32]net.Listener // of requests, by port
}

// enter takes one of the sessions that there may be.
func (c *connection) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions >= c.s.opts.MaxSessions {
		return false
	}
	c.sessions++
	return true
}

func (c *connection) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions--
}

func (c *connection) session(nc ssh.NewChannel) {
	if !c.enter() {
		nc.Reject(ssh.ConnectionFailed, "open failed") // in sshd's words
		return
	}
	ch, reqs, err := nc.Accept()
	if err != nil {
		c.leave()
		return
	}
	sess := &session{c: c, ch: ch, gone: make(chan struct{})}
	c.s.working.Go(func() {
		for r := range reqs {
			r.Reply(sess.request(r), nil)
			if sess.begin != nil { // the process, after the answer
				sess.begin()
				sess.begin = nil
			}
		}
		close(sess.gone)
		sess.hangup()
	})
}

// A session is one session channel. It counts until its process has ended,
// also where the client has closed it before.
type session struct {
	c    *connection
	ch   ssh.Channel
	gone chan struct{} // the client has closed the channel

	begin func() // of the goroutine that serves requests

	mu      sync.Mutex
	env     []string
	pty     *os.File // the terminal's end of ours
	tty     *os.File // and that of the process, until it is started
	group   int
	started bool
	stdin   io.Closer
	stdout  []*os.File
}

func (s *session) request(r *ssh.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Type {
	case "env":
		var m struct{ Name, Value string }
		if ssh.Unmarshal(r.Payload, &m) != nil || !strings.HasPrefix(m.Name, "LC_") && m.Name != "LANG" {
			return false // AcceptEnv of Debian
		}
		s.env = append(s.env, m.Name+"="+m.Value)
		return true
	case "pty-req":
		var m struct {
			Term                       string
			Cols, Rows, XPixel, YPixel uint32
			Modes                      string
		}
		if ssh.Unmarshal(r.Payload, &m) != nil || s.pty != nil {
			return false
		}
		var err error
		if s.pty, s.tty, err = pty.Open(); err != nil {
			return false
		}
		s.env = append(s.env, "TERM="+m.Term)
		return setSize(s.pty, m.Cols, m.Rows)
	case "window-change":
		var m struct{ Cols, Rows, XPixel, YPixel uint32 }
		if ssh.Unmarshal(r.Payload, &m) != nil || s.pty == nil {
			return false
		}
		return setSize(s.pty, m.Cols, m.Rows)
	case "signal":
		var m struct{ Name string }
		if ssh.Unmarshal(r.Payload, &m) != nil || s.group == 0 || s.c.s.opts.NoSignal {
			return false
		}
		sig, ok := signals[m.Name]
		if !ok {
			return false
		}
		return syscall.Kill(-s.group, sig) == nil
	case "eow@openssh.com":
		if len(s.stdout) > 0 {
			s.stdout[0].Close()
		}
		return true
	case "exec", "shell":
		var m struct{ Line string }
		if s.started || r.Type == "exec" && ssh.Unmarshal(r.Payload, &m) != nil {
			return false
		}
		s.started = true
		args := []string{"-c", m.Line}
		if r.Type == "shell" {
			args = nil
		}
		return s.start(exec.Command(s.c.s.opts.Shell, args...)) == nil
	case "subsystem":
		var m struct{ Name string }
		if s.started || ssh.Unmarshal(r.Payload, &m) != nil || m.Name != "sftp" {
			return false
		}
		s.started = true
		s.c.s.working.Go(s.sftp)
		return true
	}
	return false
}

var signals = map[string]syscall.Signal{
	"ABRT": syscall.SIGABRT, "ALRM": syscall.SIGALRM, "FPE": syscall.SIGFPE, "HUP": syscall.SIGHUP,
	"ILL": syscall.SIGILL, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL, "PIPE": syscall.SIGPIPE,
	"QUIT": syscall.SIGQUIT, "SEGV": syscall.SIGSEGV, "TERM": syscall.SIGTERM, "USR1": syscall.SIGUSR1,
	"USR2": syscall.SIGUSR2,
}

func (s *session) sftp() {
	defer s.c.leave()
	srv, err := sftp.NewServer(noClose{s.ch}) // which still has to tell the exit
	if err == nil {
		srv.Serve()
		srv.Close()
	}
	s.exit("exit-status", ssh.Marshal(struct{ Code uint32 }{0}))
	s.ch.Close()
}

type noClose struct{ ssh.Channel }

func (noClose) Close() error { return nil }

// start starts the process; s.mu is held.
func (s *session) start(cmd *exec.Cmd) error {
	cmd.Env = append(os.Environ(), s.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var ours, theirs []*os.File
	if s.pty != nil {
		cmd.SysProcAttr.Setctty = true
		cmd.Stdin, cmd.Stdout, cmd.Stderr = s.tty, s.tty, s.tty
		ours, theirs = []*os.File{s.pty}, []*os.File{s.tty}
		s.stdin = nil
	} else {
		inR, inW, err := os.Pipe()
		if err != nil {
			return err
		}
		outR, outW, err := os.Pipe()
		if err != nil {
			return err
		}
		errR, errW, err := os.Pipe()
		if err != nil {
			return err
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, errW
		ours, theirs = []*os.File{outR, errR}, []*os.File{inR, outW, errW}
		s.stdin = inW
		s.stdout = ours
	}
	err := s.c.s.begin(func() (int, error) {
		err := cmd.Start()
		if err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
	for _, f := range theirs {
		f.Close()
	}
	if err != nil {
		for _, f := range ours {
			f.Close()
		}
		return err
	}
	s.group = cmd.Process.Pid
	s.begin = func() { s.copy(cmd, ours) }
	return nil
}

func (s *session) copy(cmd *exec.Cmd, ours []*os.File) {
	work := &s.c.s.working
	var in io.Writer = s.pty
	if s.pty == nil {
		in = s.stdin.(*os.File)
	}
	work.Go(func() {
		io.Copy(in, s.ch)
		if s.stdin != nil {
			s.stdin.Close()
		}
	})
	var outputs sync.WaitGroup
	outputs.Go(func() { io.Copy(s.ch, ours[0]) })
	if len(ours) > 1 {
		outputs.Go(func() { io.Copy(s.ch.Stderr(), ours[1]) })
	}
	work.Go(func() {
		st, err := cmd.Process.Wait()
		s.c.s.ended(s.group)
		s.c.leave()
		if err == nil {
			s.tell(st) // before the output is complete, as sshd does
		}
		outputs.Wait()
		s.ch.CloseWrite()
		s.ch.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, f := range ours {
			f.Close()
		}
	})
}

// setSize sets the size of a terminal. (pty.Setsize would take it out of
// non-blocking mode.)
func setSize(f *os.File, cols, rows uint32) bool {
	rc, err := f.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	rc.Control(func(fd uintptr) {
		ok = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(cols), Row: uint16(rows)}) == nil
	})
	return ok
}

// tell says how the process ended.
func (s *session) tell(st *os.ProcessState) {
	ws := st.Sys().(syscall.WaitStatus)
	if !ws.Signaled() {
		s.exit("exit-status", ssh.Marshal(struct{ Code uint32 }{uint32(ws.ExitStatus())}))
		return
	}
	name := "SIG@openssh.com"
	for n, sig := range signals {
		if sig == ws.Signal() {
			name = n
		}
	}
	s.exit("exit-signal", ssh.Marshal(struct {
		Name       string
		Core       bool
		Text, Lang string
	}{Name: name}))
}

func (s *session) exit(name string, payload []byte) { s.ch.SendRequest(name, false, payload) }

// hangup is what sshd does when the client has closed the channel: it closes
// the pipes and leaves the process alone.
func (s *session) hangup() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.started = true
		s.c.leave()
	}
	for _, f := range s.stdout {
		f.Close()
	}
	if s.stdin != nil {
		s.stdin.Close()
	}
	if s.pty != nil {
		s.pty.Close()
	}
}
