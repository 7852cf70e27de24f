package shim

import (
	"context"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec/internal/wire"
)

// maxLongExecs bounds the requests that one connection may be sending as
// channel data at the same time, each of up to wire.MaxExec bytes.
const maxLongExecs = 16

// A connection is one client.
type connection struct {
	srv    *server
	ctx    context.Context // ends with the connection
	cancel context.CancelCauseFunc
	long   chan struct{} // has a token for each long request being read

	mu   sync.Mutex
	beat *time.Timer // fires when the client is silent; nil before its first beat
}

// serveConn serves one client until its connection ends.
func (s *server) serveConn(rwc io.ReadWriteCloser) {
	s.track(nil, rwc)
	conn, chans, reqs, err := wire.Server(rwc)
	if err != nil {
		s.track(rwc, nil)
		s.log.Warn("connection refused", "err", err)
		return
	}
	s.track(rwc, conn)
	defer s.track(conn, nil)
	defer conn.Close()

	c := &connection{srv: s, long: make(chan struct{}, maxLongExecs)}
	c.ctx, c.cancel = context.WithCancelCause(s.ctx)
	s.touch()
	s.log.Debug("connected")
	var serving sync.WaitGroup
	serving.Go(func() { c.globals(reqs) })
	for nc := range chans { // until the connection ends
		c.channel(nc, &serving)
	}
	c.end(errLost)
	serving.Wait()
	s.log.Debug("disconnected")
}

// channel serves a channel that the client wants to open.
func (c *connection) channel(nc ssh.NewChannel, serving *sync.WaitGroup) {
	var serve func(ssh.NewChannel)
	switch nc.ChannelType() {
	case "session":
		serve = c.session
	case "direct-streamlocal@openssh.com":
		serve = c.forwardUnix
	case "direct-tcpip":
		serve = c.forwardTCP
	default:
		nc.Reject(ssh.UnknownChannelType, "the shim has no channels of this type")
		return
	}
	if c.srv.channels.Add(1) > int64(c.srv.opts.MaxChannels) {
		c.srv.channels.Add(-1)
		nc.Reject(ssh.ResourceShortage, "the shim has no more channels: end some commands first")
		return
	}
	serving.Go(func() {
		defer c.srv.channels.Add(-1)
		serve(nc)
	})
}

// globals answers global requests, which have no numbers: answers come in the
// order of the requests.
func (c *connection) globals(reqs <-chan *ssh.Request) {
	for req := range reqs {
		switch req.Type {
		case wire.RequestBeat:
			c.heard()
			req.Reply(true, nil)
		case wire.RequestHello:
			peer, err := wire.ParseHello(req.Payload)
			if err != nil {
				req.Reply(false, nil)
				continue
			}
			c.srv.log.Debug("hello", "build", peer.Build, "versions", peer.Versions)
			req.Reply(true, c.srv.hello().Marshal())
		case wire.RequestStatus:
			req.Reply(true, c.srv.status().Marshal())
		case wire.RequestStop:
			c.srv.mu.Lock()
			c.srv.stops = append(c.srv.stops, req)
			c.srv.mu.Unlock()
			c.srv.cancel(errStopped)
			for range reqs { // an answer would come before that of this one
			}
		default:
			req.Reply(false, nil)
		}
	}
}

func (s *server) hello() *wire.Hello {
	return &wire.Hello{
		Versions: []uint32{wire.Version}, Build: s.opts.Build,
		PID: os.Getpid(), UID: os.Getuid(), Home: s.dir(), Started: s.started,
	}
}

// runs notes that a command in the foreground is about to start. While none
// runs the client needs no beat; now it has to begin.
func (c *connection) runs() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.beat != nil {
		c.beat.Reset(c.srv.opts.beatTimeout)
	}
}

// heard notes a beat of the client.
func (c *connection) heard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.beat == nil {
		c.beat = time.AfterFunc(c.srv.opts.beatTimeout, func() { c.endCommands(errSilent) })
		return
	}
	c.beat.Reset(c.srv.opts.beatTimeout)
}

// end ends the connection's commands in the foreground for ever.
func (c *connection) end(cause error) {
	c.mu.Lock()
	if c.beat != nil {
		c.beat.Stop()
	}
	c.mu.Unlock()
	c.endCommands(cause)
	c.cancel(cause) // those that are about to start don't
}

// endCommands ends the commands in the foreground: SIGTERM now, and SIGKILL
// after lossGrace.
func (c *connection) endCommands(cause error) {
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	for cmd := range s.commands {
		if cmd.conn == c {
			cmd.cancel(cause)
			time.AfterFunc(lossGrace, cmd.kill)
		}
	}
}
