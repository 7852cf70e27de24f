package sshmux

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

const (
	// hostKeepAlive is how often a host is asked for an answer while its
	// connection is idle: often enough for what forgets idle connections on
	// the way.
	hostKeepAlive = time.Minute

	// defaultIdle is how long a master stays without clients.
	defaultIdle = 10 * time.Minute
)

// Local is the host of a master that has no SSH connection: its endpoints are
// on its own machine.
const Local = "local"

// MasterOptions say what a master serves.
type MasterOptions struct {
	// Host is [USER@]HOST[:PORT], or Local.
	Host string

	// Socket is where the master listens; its directory must exist and belong
	// to the user alone.
	Socket string

	// Login is the control socket of a master of OpenSSH's to go through, if
	// there is one; see HostOptions.
	Login string

	// Idle is how long the master stays without clients. 0 stands for ten
	// minutes.
	Idle time.Duration

	// Dial makes the connection. nil stands for Dial with Host and the
	// user's settings.
	Dial func(ctx context.Context) (*Host, error)

	// Ready is called, if it isn't nil, once the master answers on Socket.
	Ready func()

	// Log is where a master tells what goes wrong; nil is nowhere.
	Log *slog.Logger
}

// A master is the process that holds a connection.
type master struct {
	opts   MasterOptions
	log    *slog.Logger
	ctx    context.Context // ends when the master does
	stop   context.CancelFunc
	poller *poller
	main   *server
	tasks  sync.WaitGroup // clients and accept loops

	own atomic.Bool // a peer with this user's id was accepted

	changes sync.Mutex // one change of the endpoints at a time; before mu

	mu        sync.Mutex
	endpoints map[string]*server // by socket
	active    int                // clients, forwardings and their connections
	leaving   bool
	idle      *time.Timer
	terminals map[*sessionTask]bool
}

// ServeMaster connects to a host and serves it on a socket until ctx ends, a
// client ends it, or nobody has used it for the idle time. It returns nil
// then, with its sockets removed and all that ran through it ended.
//
// Errors are those of Dial, ErrInvalid for a bad socket path, ErrDenied for a
// directory that others can enter, and one that matches ErrMasterExists.
func ServeMaster(ctx context.Context, opts MasterOptions) error {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Idle <= 0 {
		opts.Idle = defaultIdle
	}
	sock, err := listenSocket(opts.Socket)
	if errors.Is(err, errLocked) {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "socket %s: %w", opts.Socket, ErrMasterExists)
	}
	if err != nil {
		return err
	}
	p, err := newPoller()
	if err != nil {
		sock.release()
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "master: %w", err)
	}
	defer p.close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m := &master{
		opts: opts, log: opts.Log, ctx: ctx, stop: stop, poller: p,
		endpoints: map[string]*server{}, terminals: map[*sessionTask]bool{},
	}
	m.main = &server{master: m, sock: sock, place: "ssh:" + opts.Host, listening: true}
	if opts.Host == Local {
		m.main.place = Local
	} else {
		m.main.link = &link{dial: opts.Dial, budget: true}
		if opts.Dial == nil {
			m.main.link.dial = func(ctx context.Context) (*Host, error) {
				return Dial(ctx, opts.Host, HostOptions{Place: m.main.place, Peer: PeerSSHD, KeepAlive: hostKeepAlive, Login: opts.Login})
			}
		}
		// Clients that connect meanwhile wait in the socket's backlog.
		if _, err := m.main.link.get(ctx); err != nil {
			m.main.close()
			return err
		}
	}
	return m.run()
}

var errEnding error = hpcexec.Errorf(hpcexec.ErrUnavailable, "the master is ending")

// ErrMasterExists says that a socket is served by another process.
var ErrMasterExists = errors.New("another master serves it")

func (m *master) run() error {
	winch := make(chan os.Signal, 1)
	signal.Notify(winch, unix.SIGWINCH)
	defer signal.Stop(winch)

	m.mu.Lock()
	m.idle = time.AfterFunc(m.opts.Idle, m.leaveWhenIdle)
	m.mu.Unlock()
	defer m.idle.Stop()
	ln := m.main.sock.UnixListener
	m.tasks.Go(func() { m.main.accept(ln) })
	if m.opts.Ready != nil {
		m.opts.Ready()
	}
	for {
		select {
		case <-winch:
			m.terminalsChanged()
		case <-m.ctx.Done():
			m.close()
			return nil
		}
	}
}

// close ends everything: clients see their commands' ends first.
func (m *master) close() {
	m.changes.Lock()
	defer m.changes.Unlock()
	m.mu.Lock()
	m.leaving = true
	all := []*server{m.main}
	for _, s := range m.endpoints {
		all = append(all, s)
	}
	m.endpoints = map[string]*server{}
	m.mu.Unlock()
	for _, s := range all {
		s.stopListening()
		s.closeForwards()
	}
	m.tasks.Wait() // m.ctx has ended, and so does all that hangs on it
	for i := range all {
		all[len(all)-1-i].close() // endpoints before the connection they use
	}
}

// checkPeer says whether a client belongs to this user. What wire.CheckPeer
// looks up beside the client's id is looked up once.
func (m *master) checkPeer(c *net.UnixConn) error {
	if m.own.Load() {
		if uid, err := wire.PeerUID(c); err == nil && uid == uint32(os.Geteuid()) {
			return nil
		}
	}
	err := wire.CheckPeer(c)
	if err == nil {
		m.own.Store(true)
	}
	return err
}

// enter notes a client. It is refused once the master is leaving.
func (m *master) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leaving {
		return false
	}
	m.active++
	m.tasks.Add(1)
	return true
}

// leave notes the end of a client.
func (m *master) leave() {
	defer m.tasks.Done()
	m.hold(-1)
}

// hold changes the number of those who keep the master from leaving.
func (m *master) hold(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.active += n
	if m.active == 0 {
		m.idle.Reset(m.opts.Idle)
	}
}

// leaveWhenIdle ends the master if nobody uses it. Whoever connects at this
// very moment is served: the sockets are taken away first, and only if nobody
// waits in front of them the master goes.
func (m *master) leaveWhenIdle() {
	m.changes.Lock()
	defer m.changes.Unlock()
	m.mu.Lock()
	all := []*server{m.main}
	for _, s := range m.endpoints {
		all = append(all, s)
	}
	active := m.active
	m.mu.Unlock()
	if active > 0 {
		return // leave starts the timer anew
	}
	for _, s := range all {
		s.hide()
	}
	for _, s := range all {
		s.acceptWaiting()
	}
	m.mu.Lock()
	m.leaving = m.active == 0
	if m.leaving {
		m.stop()
	}
	m.mu.Unlock()
	if !m.leaving {
		for _, s := range all {
			s.show()
		}
	}
}

// attach serves an endpoint. One that is served already stays as it is; one
// that has changed takes its place.
func (m *master) attach(e Endpoint) error {
	if err := e.check(); err != nil {
		return err
	}
	if e.Socket == m.opts.Socket {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "endpoint %s has the socket of its master", e.Socket)
	}
	if e.Kind == SSH && m.main.link == nil {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "endpoint %s: the master of %q has no SSH connection", e.Socket, m.opts.Host)
	}
	m.changes.Lock()
	defer m.changes.Unlock()
	m.mu.Lock()
	old, leaving := m.endpoints[e.Socket], m.leaving
	m.mu.Unlock()
	if leaving {
		return errEnding
	}
	if old != nil {
		if old.forEP.same(&e) {
			listening, err := old.reappear()
			if err != nil || listening {
				return err
			}
		}
		m.forget(e.Socket)
		old.close()
	}
	sock, err := listenSocket(e.Socket)
	if errors.Is(err, errLocked) {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "socket %s: %w", e.Socket, ErrMasterExists)
	}
	if err != nil {
		return err
	}
	s := &server{master: m, sock: sock, place: e.Place, forEP: &e, listening: true}
	switch {
	case e.Kind == SSH:
		s.link, s.sharedLink = m.main.link, true
	case m.main.link == nil:
		s.link = shimLink(e, nearCarrier{})
	default:
		s.link = shimLink(e, farCarrier{m.main.link})
	}
	m.mu.Lock()
	m.endpoints[e.Socket] = s
	m.mu.Unlock()
	ln := sock.UnixListener
	m.tasks.Go(func() { s.accept(ln) })
	if e.Kind != SSH {
		// The first command finds the connection made, or being made.
		m.tasks.Go(func() { s.link.get(m.ctx) })
	}
	return nil
}

func (m *master) forget(path string) *server {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.endpoints[path]
	delete(m.endpoints, path)
	return s
}

// detach ends an endpoint, its connection, and what runs on it.
func (m *master) detach(path string) error {
	m.changes.Lock()
	defer m.changes.Unlock()
	s := m.forget(path)
	if s == nil {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "no endpoint has the socket %s", path)
	}
	s.close()
	return nil
}

// watchTerminal has a session follow the size of its client's terminal.
// Nothing tells a master of a change but the client, by SIGWINCH.
func (m *master) watchTerminal(t *sessionTask) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.terminals[t] = true
}

func (m *master) forgetTerminal(t *sessionTask) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.terminals, t)
}

func (m *master) terminalsChanged() {
	type size struct{ cols, rows int }
	sizes := map[*sessionTask]size{}
	m.mu.Lock()
	for t := range m.terminals {
		// A session is taken out of the list before its terminal is closed.
		if cols, rows, err := t.fds[0].terminalSize(); err == nil {
			sizes[t] = size{cols, rows}
		}
	}
	m.mu.Unlock()
	for t, s := range sizes {
		t.resize(s.cols, s.rows)
	}
}
