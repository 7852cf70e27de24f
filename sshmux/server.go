package sshmux

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
)

const (
	// goodbye is how long a client may take to hang up after its last answer.
	goodbye = 5 * time.Second

	// patience is how long a client may say nothing while nothing runs for
	// it: it keeps the master from leaving.
	patience = time.Minute

	// answerTime is how long a client may take to read an answer.
	answerTime = 10 * time.Second
)

// A server serves the mux protocol on one socket of a master.
type server struct {
	master *master
	sock   *socket
	place  string
	link   *link     // nil: "local", which has no connection
	forEP  *Endpoint // nil for the master's own socket

	sharedLink bool // link is the master's

	forwarding sync.Mutex // held while a forwarding is begun; before mu

	mu        sync.Mutex
	listening bool
	forwards  map[forward]*forwarding
}

// accept serves clients until the socket is closed.
func (s *server) accept(ln *net.UnixListener) {
	for {
		c, err := ln.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, most likely: those who wait are not lost.
			s.master.log.Warn("accept", "socket", s.sock.path, "err", err)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		s.begin(c)
	}
}

// begin serves one client in the background.
func (s *server) begin(c *net.UnixConn) {
	if !s.master.enter() {
		// Nothing ran, and the client is told so.
		c.SetWriteDeadline(time.Now().Add(time.Second))
		c.Write(asError(errEnding).append(hello{muxVersion}.append(nil), 0))
		c.Close()
		return
	}
	go func() {
		defer s.master.leave()
		if err := s.master.checkPeer(c); err != nil {
			s.master.log.Warn("client refused", "err", err)
			c.Close()
			return
		}
		newMuxClient(s, c).serve()
	}()
}

// A muxClient is one connection of a client.
type muxClient struct {
	s    *server
	conn *muxConn
	ctx  context.Context // ends with the connection, and with the master
	end  context.CancelFunc
	work sync.WaitGroup // what runs for this client beside its reader

	greeted bool
	task    task // what the connection is used for, nil so far

	mu       sync.Mutex
	out      []byte // answers that wait for the next flush
	deferred bool   // out is the greeting alone, and a command will answer
	broken   bool
	done     bool // nothing more will come
}

// A task is a command or a forwarding that a connection was made for: a
// connection has one at a time.
type task interface {
	signal(name string) error
	resize(cols, rows int) error
	over() bool
}

func newMuxClient(s *server, c *net.UnixConn) *muxClient {
	ctx, end := context.WithCancel(s.master.ctx)
	return &muxClient{s: s, conn: newMuxConn(c), ctx: ctx, end: end}
}

// serve reads requests until the client hangs up. That ends what runs for it.
func (c *muxClient) serve() {
	stop := context.AfterFunc(c.ctx, func() { c.conn.c.CloseRead() })
	defer stop()
	err := c.requests()
	if err != nil && err != io.EOF && c.ctx.Err() == nil {
		c.s.master.log.Warn("client cut off", "err", err)
	}
	c.end()
	c.work.Wait()
	c.conn.close()
}

func (c *muxClient) requests() error {
	for {
		// Answers leave together, just before the reader waits. A command
		// answers when it has ended, and then the greeting goes with it: one
		// message less to wake the client for.
		if !c.conn.buffered() {
			c.flush()
		}
		c.setPatience()
		typ, body, err := c.conn.next()
		if err != nil {
			return err
		}
		if err := c.handle(typ, body); err != nil {
			return err
		}
	}
}

// setPatience limits how long the reader waits for the next message.
func (c *muxClient) setPatience() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.done:
		c.conn.c.SetReadDeadline(time.Now().Add(goodbye))
	case c.busy():
		c.conn.c.SetReadDeadline(time.Time{})
	default:
		c.conn.c.SetReadDeadline(time.Now().Add(patience))
	}
}

// handle serves one message. Its error cuts the connection.
func (c *muxClient) handle(typ uint32, body []byte) error {
	if typ == msgHello {
		return c.hello(body)
	}
	d := decoder{rest: body}
	id := d.uint32()
	if d.err != nil {
		return d.err
	}
	body = d.rest
	if !c.greeted {
		c.deny(id, sFailure, "say hello first")
		return errMalformed
	}
	switch typ {
	case cExec:
		return c.exec(id, body)
	case cSignal:
		name, err := parseString(body)
		if err != nil {
			return err
		}
		c.answer(id, c.toTask(func(t task) error { return t.signal(name) }))
	case cResize:
		m, err := parseResize(body)
		if err != nil {
			return err
		}
		c.answer(id, c.toTask(func(t task) error { return t.resize(int(m.Cols), int(m.Rows)) }))
	case cAttach:
		return c.attach(id, body)
	case cDetach:
		path, err := parseString(body)
		if err != nil {
			return err
		}
		c.answer(id, c.s.master.detach(path))
	case cInfo:
		return c.info(id)
	case cAliveCheck:
		// The real pid: ssh sends it SIGWINCH.
		c.send(appendNumber(nil, sAlive, id, uint32(os.Getpid())))
	case cTerminate:
		c.send(appendRequest(nil, sOK, id, nil))
		c.flush()
		c.s.terminate()
	case cStopListening:
		c.s.stopListening()
		c.send(appendRequest(nil, sOK, id, nil))
	case cNewSession:
		return c.newSession(id, body)
	case cNewStdioFwd:
		return c.stdioForward(id, body)
	case cOpenFwd, cCloseFwd:
		return c.forward(typ, id, body)
	case cProxy:
		return c.proxy(id)
	default:
		c.deny(id, sFailure, "unsupported request")
	}
	return nil
}

func (c *muxClient) hello(body []byte) error {
	m, err := parseHello(body)
	switch {
	case err != nil:
		return err
	case c.greeted:
		return errors.New("hello received twice")
	case m.Version != muxVersion:
		c.send(hello{muxVersion}.append(nil))
		c.flush()
		return errors.New("client speaks another version of the mux protocol")
	}
	c.greeted = true
	c.send(hello{muxVersion}.append(nil))
	// OpenSSH's client waits for the greeting; ours sends its request at once.
	if typ, ok := c.conn.peekType(); ok && typ == cExec {
		c.mu.Lock()
		c.deferred = true
		c.mu.Unlock()
	}
	return nil
}

// send queues an answer for the next flush.
func (c *muxClient) send(msg []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = append(c.out, msg...)
	c.deferred = false
}

// flush writes what is queued.
func (c *muxClient) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.out) == 0 || c.deferred || c.broken {
		return
	}
	c.conn.c.SetWriteDeadline(time.Now().Add(answerTime))
	if _, err := c.conn.c.Write(c.out); err != nil {
		c.broken = true
	}
	c.out = nil
}

// deny answers with a refusal that OpenSSH's client understands.
func (c *muxClient) deny(id uint32, typ uint32, reason string) {
	c.send(appendText(nil, typ, id, reason))
}

// answer answers a request of our own.
func (c *muxClient) answer(id uint32, err error) {
	if err != nil {
		c.send(asError(err).append(nil, id))
		return
	}
	c.send(appendRequest(nil, sOK, id, nil))
}

func (c *muxClient) toTask(f func(task) error) error {
	if c.task == nil {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "no command runs on this connection")
	}
	return f(c.task)
}

// busy says that the connection has a command already.
func (c *muxClient) busy() bool { return c.task != nil && !c.task.over() }

// hangUp tells a client of OpenSSH's that nothing more will come.
func (c *muxClient) hangUp() {
	c.flush()
	c.conn.c.CloseWrite()
	c.finish()
}

// finish gives the client a moment to hang up.
func (c *muxClient) finish() {
	c.mu.Lock()
	c.done = true
	c.mu.Unlock()
	c.setPatience()
}

func (c *muxClient) attach(id uint32, body []byte) error {
	text, err := parseString(body)
	if err != nil {
		return err
	}
	var e Endpoint
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return err
	}
	c.answer(id, c.s.master.attach(e))
	return nil
}

// An info is what a socket tells about what is behind it.
type info struct {
	PID        int                `json:"pid"`
	Host       string             `json:"host"`
	Properties hpcexec.Properties `json:"properties"`
}

func (c *muxClient) info(id uint32) error {
	p := hpcexec.Properties{Place: c.s.place}
	if c.s.link != nil {
		peer := PeerShim
		if c.s.forEP == nil || c.s.forEP.Kind == SSH {
			peer = PeerSSHD
		}
		p = peerProperties(peer)
		p.Place = c.s.place
		p.SharesFilesystem = c.s.forEP != nil && c.s.forEP.SharesFilesystem
	}
	b, err := json.Marshal(info{PID: os.Getpid(), Host: c.s.master.opts.Host, Properties: p})
	if err != nil {
		return err
	}
	c.send(appendText(nil, sInfo, id, b))
	return nil
}

// host is the connection that this socket speaks for.
func (s *server) host(ctx context.Context) (*Host, error) {
	if s.link == nil {
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "the master of %q runs no commands itself: attach an endpoint", s.master.opts.Host)
	}
	return s.link.get(ctx)
}

// terminate ends what the socket stands for: the master, or an endpoint.
func (s *server) terminate() {
	if s.forEP != nil {
		s.master.tasks.Go(func() { s.master.detach(s.sock.path) })
		return
	}
	s.master.stop()
}

// stopListening gives the socket away. Clients that are there stay.
func (s *server) stopListening() {
	s.mu.Lock()
	was := s.listening
	s.listening = false
	s.mu.Unlock()
	if was {
		s.sock.hide()
		s.acceptWaiting()
		s.sock.release()
	}
}

// hide takes the socket file away for a moment, show puts it back.
func (s *server) hide() { s.whileListening((*socket).hide) }
func (s *server) show() { s.whileListening((*socket).show) }

func (s *server) whileListening(f func(*socket)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listening {
		f(s.sock)
	}
}

// reappear makes the socket anew where something has removed it, so that the
// server is found again. It says whether the server listens.
func (s *server) reappear() (listening bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.listening || s.sock.owns(s.sock.path) {
		return s.listening, nil
	}
	old := s.sock.UnixListener
	if err := s.sock.bind(); err != nil {
		return true, hpcexec.Errorf(hpcexec.ErrUnavailable, "socket %s: %w", s.sock.path, err)
	}
	old.Close()
	ln := s.sock.UnixListener
	s.master.tasks.Go(func() { s.accept(ln) })
	return true, nil
}

// acceptWaiting serves those who have connected and were not accepted yet.
func (s *server) acceptWaiting() {
	for _, c := range s.sock.waiting() {
		s.begin(c)
	}
}

// close stops the socket and its connection.
func (s *server) close() {
	s.stopListening()
	s.closeForwards()
	if s.link != nil && !s.sharedLink {
		s.link.close()
	}
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
