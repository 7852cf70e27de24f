package sshtest

import (
	"io"
	"net"
	"strconv"
	"sync"

	"golang.org/x/crypto/ssh"
)

// requests serves the connection's global requests to its end.
func (c *connection) requests(reqs <-chan *ssh.Request) {
	for r := range reqs {
		var m struct {
			Host string
			Port uint32
		}
		switch {
		case r.Type == "tcpip-forward" && ssh.Unmarshal(r.Payload, &m) == nil && !c.s.opts.NoForward:
			c.listen(r, m.Host, m.Port)
		case r.Type == "cancel-tcpip-forward" && ssh.Unmarshal(r.Payload, &m) == nil && c.listeners[m.Port] != nil:
			c.listeners[m.Port].Close()
			delete(c.listeners, m.Port)
			r.Reply(true, nil)
		default:
			r.Reply(false, nil)
		}
	}
	for _, l := range c.listeners {
		l.Close()
	}
}

// listen serves tcpip-forward.
func (c *connection) listen(r *ssh.Request, host string, port uint32) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		r.Reply(false, nil)
		return
	}
	var reply []byte
	if port == 0 {
		port = uint32(l.Addr().(*net.TCPAddr).Port)
		reply = ssh.Marshal(struct{ Port uint32 }{port})
	}
	c.listeners[port] = l
	r.Reply(true, reply)
	c.s.working.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			ch, reqs, err := c.conn.OpenChannel("forwarded-tcpip", ssh.Marshal(struct {
				Host       string
				Port       uint32
				OriginHost string
				OriginPort uint32
			}{host, port, "127.0.0.1", 1}))
			if err != nil {
				from.Close()
				continue
			}
			c.join(ch, reqs, from)
		}
	})
}

// join connects a channel with a connection.
func (c *connection) join(ch ssh.Channel, reqs <-chan *ssh.Request, to net.Conn) {
	work := &c.s.working
	work.Go(func() { ssh.DiscardRequests(reqs) })
	work.Go(func() {
		var both sync.WaitGroup
		both.Go(func() {
			io.Copy(ch, to)
			ch.CloseWrite()
		})
		both.Go(func() {
			io.Copy(to, ch)
			to.(interface{ CloseWrite() error }).CloseWrite()
		})
		both.Wait()
		ch.Close()
		to.Close()
	})
}

func (c *connection) forward(nc ssh.NewChannel) {
	network, addr := "tcp", ""
	if nc.ChannelType() == "direct-tcpip" {
		var m struct {
			Host       string
			Port       uint32
			OriginHost string
			OriginPort uint32
		}
		ssh.Unmarshal(nc.ExtraData(), &m)
		addr = net.JoinHostPort(m.Host, strconv.Itoa(int(m.Port)))
	} else {
		var m struct {
			Path, Reserved string
			Zero           uint32
		}
		ssh.Unmarshal(nc.ExtraData(), &m)
		network, addr = "unix", m.Path
	}
	if c.s.opts.NoForward {
		nc.Reject(ssh.Prohibited, "administratively prohibited: open failed")
		return
	}
	to, err := net.Dial(network, addr)
	if err != nil {
		nc.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	ch, reqs, err := nc.Accept()
	if err != nil {
		to.Close()
		return
	}
	c.join(ch, reqs, to)
}
