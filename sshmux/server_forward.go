package sshmux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"

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

// A forwarding is a listener that a client asked for. It lives as long as the
// master, or until it is cancelled.
type forwarding struct {
	ln    net.Listener
	conns sync.WaitGroup
	end   context.CancelFunc
}

// forward serves MUX_C_OPEN_FWD and MUX_C_CLOSE_FWD.
func (c *muxClient) forward(typ, id uint32, body []byte) error {
	m, err := parseForward(body)
	if err != nil {
		return err
	}
	if typ == cOpenFwd {
		err = c.s.openForward(m)
	} else {
		err = c.s.closeForward(m)
	}
	if err != nil {
		c.deny(id, sFailure, refusal(err))
		return nil
	}
	c.send(appendRequest(nil, sOK, id, nil))
	return nil
}

// openForward listens here for connections into the place. Asked for twice it
// is the same one.
func (s *server) openForward(m forward) error {
	if m.Kind != fwdLocal {
		return errors.New("only local forwarding is supported")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.forwards[m]; ok {
		return nil
	}
	ln, err := listenForward(m)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(s.master.ctx)
	f := &forwarding{ln: ln, end: end}
	if s.forwards == nil {
		s.forwards = map[forward]*forwarding{}
	}
	s.forwards[m] = f
	f.conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			f.conns.Go(func() { s.serveForward(ctx, c, m) })
		}
	})
	return nil
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

func (s *server) serveForward(ctx context.Context, c net.Conn, m forward) {
	if !s.master.enter() {
		c.Close()
		return
	}
	defer s.master.leave()
	to, err := s.dialTarget(ctx, m.ConnectHost, m.ConnectPort)
	if err != nil {
		s.master.log.Warn("forwarding", "to", m.ConnectHost, "err", err)
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
	f, ok := s.forwards[m]
	delete(s.forwards, m)
	s.mu.Unlock()
	if !ok {
		return fmt.Errorf("port not forwarded")
	}
	f.ln.Close()
	return nil
}

// closeForwards ends all forwardings and their connections.
func (s *server) closeForwards() {
	s.mu.Lock()
	all := s.forwards
	s.forwards = nil
	s.mu.Unlock()
	for _, f := range all {
		f.ln.Close()
		f.end()
		f.conns.Wait()
	}
}
