package sshmux

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/hpcexec/hpcexec"
)

// dialTarget connects to what a client named: a path where port is
// streamLocal, else a host and a port. Without an SSH connection it is this
// machine's.
func (s *server) dialTarget(ctx context.Context, host string, port uint32) (io.ReadWriteCloser, error) {
	if s.link == nil {
		var d net.Dialer
		network, addr := "unix", host
		if port != streamLocal {
			network, addr = "tcp", net.JoinHostPort(host, strconv.Itoa(int(port)))
		}
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%w", err)
		}
		return c, nil
	}
	h, err := s.link.get(ctx)
	if err != nil {
		return nil, err
	}
	if port == streamLocal {
		return h.dialUnix(ctx, host)
	}
	return h.dialTCP(ctx, host, port)
}

// stdioForward serves MUX_C_NEW_STDIO_FWD: it joins two descriptors with a
// connection into the place.
func (c *muxClient) stdioForward(id uint32, body []byte) error {
	m, err := parseStdioFwd(body)
	if err != nil {
		return err
	}
	fds, err := c.conn.takeOpenSSH(2)
	if err != nil {
		c.deny(id, sFailure, "did not receive file descriptors")
		c.flush()
		return err
	}
	if c.task != nil {
		closeFDs(fds)
		c.deny(id, sFailure, "Multiple sessions not supported")
		return nil
	}
	t := &stdioTask{}
	c.task = t
	in, out := newFDStream(fds[0], c.s.master.poller), newFDStream(fds[1], c.s.master.poller)
	c.work.Add(1)
	go func() {
		defer c.work.Done()
		defer c.hangUp()
		defer in.Close()
		defer out.Close()
		to, err := c.s.dialTarget(c.ctx, m.Host, m.Port)
		if err != nil {
			c.deny(id, sFailure, refusal(err))
			return
		}
		c.send(appendNumber(nil, sSessionOpened, id, id))
		c.flush()
		stop := context.AfterFunc(c.ctx, func() {
			to.Close()
			in.stop()
			out.stop()
		})
		defer stop()
		splice(to, &stdioPair{in, out})
	}()
	return nil
}

// stdioTask is a forwarding on the descriptors of a client.
type stdioTask struct{}

func (stdioTask) signal(string) error   { return errNoCommand }
func (stdioTask) resize(int, int) error { return errNoCommand }
func (stdioTask) over() bool            { return false }

var errNoCommand = hpcexec.Errorf(hpcexec.ErrInvalid, "this connection carries no command")

// A stdioPair is a descriptor to read from and one to write to, as one stream.
type stdioPair struct {
	in, out *fdStream
}

func (p *stdioPair) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p *stdioPair) Write(b []byte) (int, error) { return p.out.Write(b) }

// CloseWrite ends the output. The input of ssh -W goes on, and so does that of
// a socket pair.
func (p *stdioPair) CloseWrite() error { return p.out.closeWrite() }

func (p *stdioPair) Close() error {
	p.in.stop()
	return p.out.Close()
}

// A forwarding is what a client has asked the master to listen for. It lives as
// long as the master, or until it is cancelled; one on the host as long as the
// connection.
type forwarding struct {
	stop  func() // stops to listen
	port  uint32 // of a remote one that was left to the server
	conns sync.WaitGroup
	ctx   context.Context // of its connections
	end   context.CancelFunc
	host  *Host // of a remote one
}

// forward serves MUX_C_OPEN_FWD and MUX_C_CLOSE_FWD.
func (c *muxClient) forward(typ, id uint32, body []byte) error {
	m, err := parseForward(body)
	if err != nil {
		return err
	}
	if typ == cCloseFwd {
		if err := c.s.closeForward(m); err != nil {
			c.deny(id, sFailure, refusal(err))
		} else {
			c.send(appendRequest(nil, sOK, id, nil))
		}
		return nil
	}
	port, err := c.s.openForward(c.ctx, m)
	switch {
	case err != nil:
		c.deny(id, sFailure, refusal(err))
	case m.Kind == fwdRemote && m.ListenPort == 0:
		c.send(appendNumber(nil, sRemotePort, id, port))
	default:
		c.send(appendRequest(nil, sOK, id, nil))
	}
	return nil
}

// openForward begins to listen. Asked for twice it is the same one.
func (s *server) openForward(ctx context.Context, m forward) (port uint32, err error) {
	s.forwarding.Lock() // one at a time; a remote one waits for the host
	defer s.forwarding.Unlock()
	s.mu.Lock()
	f := s.forwards[m]
	s.mu.Unlock()
	if f != nil && (f.host == nil || !f.host.ended()) {
		return f.port, nil
	}
	f = &forwarding{}
	f.ctx, f.end = context.WithCancel(s.master.ctx)
	if m.Kind == fwdRemote {
		err = s.listenThere(ctx, f, m)
	} else {
		err = s.listenHere(f, m)
	}
	if err != nil {
		f.end()
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forwards == nil {
		s.forwards = map[forward]*forwarding{}
	}
	if s.forwards[m] == nil { // else it was one of a connection that has ended
		s.master.hold(1)
	}
	s.forwards[m] = f
	return f.port, nil
}

// listenHere listens for a local or a dynamic forwarding.
func (s *server) listenHere(f *forwarding, m forward) error {
	if s.link == nil && m.Kind == fwdDynamic {
		return errors.New("there is no host to reach others from")
	}
	ln, err := listenForward(m)
	if err != nil {
		return err
	}
	f.stop = func() { ln.Close() }
	f.conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			f.conns.Go(func() { s.serveForward(f.ctx, c, m) })
		}
	})
	return nil
}

// listenThere has the host listen for a remote forwarding.
func (s *server) listenThere(ctx context.Context, f *forwarding, m forward) error {
	h, err := s.host(ctx)
	if err != nil {
		return err
	}
	port, cancel, err := h.listenRemote(ctx, m.remote(), func(c io.ReadWriteCloser) {
		s.join(f.ctx, c, func(ctx context.Context) (io.ReadWriteCloser, error) {
			return dialHere(ctx, m.ConnectHost, m.ConnectPort)
		})
	})
	f.host, f.port, f.stop = h, port, cancel
	return err
}

func listenForward(m forward) (net.Listener, error) {
	if m.ListenPort == streamLocal {
		ln, err := net.Listen("unix", m.ListenHost)
		if err != nil {
			return nil, err
		}
		return ln, os.Chmod(m.ListenHost, 0o600)
	}
	host := m.ListenHost
	switch host {
	case "", "localhost":
		host = "127.0.0.1"
	case "*":
		host = ""
	}
	return net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(int(m.ListenPort))))
}

// serveForward serves a connection to a local or dynamic forwarding.
func (s *server) serveForward(ctx context.Context, c net.Conn, m forward) {
	if m.Kind == fwdLocal {
		s.join(ctx, c, func(ctx context.Context) (io.ReadWriteCloser, error) {
			return s.dialTarget(ctx, m.ConnectHost, m.ConnectPort)
		})
		return
	}
	c.SetDeadline(time.Now().Add(patience))
	host, port, answer, err := readSOCKS(c)
	if err != nil {
		s.master.log.Warn("forwarding", "err", err)
		c.Close()
		return
	}
	s.join(ctx, c, func(ctx context.Context) (io.ReadWriteCloser, error) {
		to, err := s.dialTarget(ctx, host, port)
		if aerr := answer(err == nil); err == nil && aerr != nil {
			to.Close()
			err = aerr
		}
		c.SetDeadline(time.Time{})
		return to, err
	})
}

// join connects a stream with what dial gives, and closes it in any case.
func (s *server) join(ctx context.Context, c io.ReadWriteCloser, dial func(context.Context) (io.ReadWriteCloser, error)) {
	if !s.master.enter() {
		c.Close()
		return
	}
	defer s.master.leave()
	to, err := dial(ctx)
	if err != nil {
		s.master.log.Warn("forwarding", "err", err)
		c.Close()
		return
	}
	stop := context.AfterFunc(ctx, func() {
		c.Close()
		to.Close()
	})
	defer stop()
	splice(c, to)
}

func (s *server) closeForward(m forward) error {
	s.mu.Lock()
	f := s.forwards[m]
	if f == nil && m.Kind == fwdRemote {
		// A port that the server has chosen is cancelled by its number, too.
		any := m
		any.ListenPort = 0
		if f = s.forwards[any]; f != nil && f.port == m.ListenPort {
			m = any
		} else {
			f = nil
		}
	}
	delete(s.forwards, m)
	s.mu.Unlock()
	if f == nil {
		return errors.New("port not forwarded")
	}
	f.stop()
	s.master.hold(-1)
	return nil
}

// closeForwards ends all forwardings and their connections.
func (s *server) closeForwards() {
	s.mu.Lock()
	all := s.forwards
	s.forwards = nil
	s.mu.Unlock()
	for _, f := range all {
		if f.host == nil || !f.host.ended() {
			f.stop()
		}
		f.end()
		f.conns.Wait()
		s.master.hold(-1)
	}
}
