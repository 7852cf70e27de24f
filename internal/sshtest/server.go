// Package sshtest is an SSH server in the test's own process, with the habits
// of OpenSSH's sshd: a session's line goes to a shell in a session of its own;
// the exit is told before all output has been sent; nothing is ended when a
// client or its connection goes away; and there are only so many sessions.
//
//	test ── ssh.Conn ═══ socket pair ═══ Server ── sh -c LINE
//
// The protocol is the real one, keys and encryption included. There is no
// network, unless a test asks for a port of the loopback interface with
// [Server.Listen].
package sshtest

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec/internal/wire"
)

// Options say in what a server differs from a plain one.
type Options struct {
	// MaxSessions is how many sessions a connection may have; 0 is 10, like
	// OpenSSH's.
	MaxSessions int

	// Shell gets every line, with -c before it; empty is /bin/sh.
	Shell string

	// NoForward refuses direct-tcpip and direct-streamlocal, as
	// AllowTcpForwarding and AllowStreamLocalForwarding do.
	NoForward bool

	// NoSignal refuses signal requests, as OpenSSH before 7.9 does.
	NoSignal bool

	// NoKeys refuses every key: the server wants a person.
	NoKeys bool

	// Banner is shown before the login, and ends it if Hangup says so, as
	// pam_slurm_adopt does.
	Banner string
	Hangup bool
}

// A Server is an SSH server for one test.
type Server struct {
	t    testing.TB
	opts Options

	hostKey ssh.Signer
	userKey ssh.Signer
	userPEM ed25519.PrivateKey

	mu      sync.Mutex
	closed  bool
	conns   map[net.Conn]bool
	groups  map[int]bool // process groups that were started
	clients int
	logins  int
	working sync.WaitGroup
}

// New makes a server. At the end of the test its connections are closed, and
// everything that it has started is killed.
func New(t testing.TB, opts Options) *Server {
	t.Helper()
	if opts.MaxSessions == 0 {
		opts.MaxSessions = 10
	}
	if opts.Shell == "" {
		opts.Shell = "/bin/sh"
	}
	s := &Server{t: t, opts: opts, conns: map[net.Conn]bool{}, groups: map[int]bool{}}
	s.hostKey, _ = newKey(t)
	s.userKey, s.userPEM = newKey(t)
	t.Cleanup(s.close)
	return s
}

func newKey(t testing.TB) (ssh.Signer, ed25519.PrivateKey) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer, key
}

// HostKey is the server's.
func (s *Server) HostKey() ssh.PublicKey { return s.hostKey.PublicKey() }

// UserKey is the private key that the server lets in, for files and agents.
func (s *Server) UserKey() ed25519.PrivateKey { return s.userPEM }

// ClientConfig logs in to the server.
func (s *Server) ClientConfig() *ssh.ClientConfig {
	return &ssh.ClientConfig{
		User:            "test",
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(s.userKey)},
		HostKeyCallback: ssh.FixedHostKey(s.HostKey()),
	}
}

// Connect logs in over a socket pair. The caller closes the connection.
func (s *Server) Connect() (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request) {
	s.t.Helper()
	conn, chans, reqs, err := s.TryConnect()
	if err != nil {
		s.t.Fatal(err)
	}
	return conn, chans, reqs
}

// TryConnect is Connect for a login that may fail.
func (s *Server) TryConnect() (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	return wire.NewClientConn(s.Pipe(), "sshtest:22", s.ClientConfig())
}

// Pipe is the client's end of a socket pair whose other end is being served.
func (s *Server) Pipe() net.Conn {
	s.t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		if ends[i], err = net.FileConn(f); err != nil {
			s.t.Fatal(err)
		}
		f.Close()
	}
	s.serve(ends[0])
	return ends[1]
}

// Listen serves a port of the loopback interface and gives its address.
func (s *Server) Listen() string {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.serve(c)
		}
	}()
	s.t.Cleanup(func() {
		l.Close()
		<-accepting
	})
	return l.Addr().String()
}

// Break cuts all connections, as a dead network or a killed sshd would.
func (s *Server) Break() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// Clients is how many clients have connected so far, logged in or not.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clients
}

// Logins is how many clients have logged in so far.
func (s *Server) Logins() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logins
}

func (s *Server) close() {
	s.mu.Lock()
	s.closed = true
	for g := range s.groups {
		syscall.Kill(-g, syscall.SIGKILL)
	}
	s.mu.Unlock()
	s.Break()
	s.working.Wait()
}

// begin notes a process group; false means that the test is over.
func (s *Server) begin(start func() (group int, err error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("the test is over")
	}
	group, err := start()
	if err == nil {
		s.groups[group] = true
	}
	return err
}

func (s *Server) ended(group int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.groups, group)
}

func (s *Server) serve(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.Close()
		return
	}
	s.conns[c] = true
	s.clients++
	s.working.Go(func() {
		s.serveConn(c)
		c.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, c)
	})
}

func (s *Server) config() *ssh.ServerConfig {
	config := &ssh.ServerConfig{
		MaxAuthTries: 6,
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if s.opts.NoKeys || string(key.Marshal()) != string(s.userKey.PublicKey().Marshal()) {
				return nil, errors.New("not this key")
			}
			return nil, nil
		},
	}
	if s.opts.NoKeys {
		config.KeyboardInteractiveCallback = func(ssh.ConnMetadata, ssh.KeyboardInteractiveChallenge) (*ssh.Permissions, error) {
			return nil, errors.New("no")
		}
	}
	if s.opts.Banner != "" {
		config.BannerCallback = func(ssh.ConnMetadata) string { return s.opts.Banner }
	}
	config.AddHostKey(s.hostKey)
	return config
}

func (s *Server) serveConn(c net.Conn) {
	config := s.config()
	if s.opts.Hangup {
		config.PublicKeyCallback = func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
			c.Close()
			return nil, errors.New("access denied")
		}
	}
	q := wire.NewQueue(c)
	conn, chans, reqs, err := ssh.NewServerConn(q, config)
	if err != nil {
		q.Close()
		return
	}
	defer conn.Close()
	s.mu.Lock()
	s.logins++
	s.mu.Unlock()
	gated, chans := q.Gate(conn, chans)
	cc := &connection{s: s, conn: gated, listeners: map[uint32]net.Listener{}}
	s.working.Go(func() { cc.requests(reqs) })
	for nc := range chans {
		switch nc.ChannelType() {
		case "session":
			cc.session(nc)
		case "direct-tcpip", "direct-streamlocal@openssh.com":
			cc.forward(nc)
		default:
			nc.Reject(ssh.UnknownChannelType, "not known here")
		}
	}
}
