package shim

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/proctree"
	"github.com/hpcexec/hpcexec/internal/wire"
)

const (
	defaultGrace    = 1500 * time.Millisecond
	defaultChannels = 4096
	maxConnections  = 256

	// lossGrace is the time between SIGTERM and SIGKILL for the commands of
	// a connection that was lost: nobody waits for what they might still say.
	lossGrace = 500 * time.Millisecond

	// killLimit is how long processes that were killed are waited for, which
	// takes milliseconds where none hangs in the kernel, and closeLimit how
	// long clients may take to read the last of it when the shim ends.
	killLimit  = 5 * time.Second
	closeLimit = 300 * time.Millisecond
)

// Why a command was ended. Their kind is what the client makes of it: the
// command ran, and whoever repeats it should look first.
var (
	errStopped  = hpcexec.Errorf(hpcexec.ErrUnknownEnd, "the command was ended: its session is stopped")
	errStopping = hpcexec.Errorf(hpcexec.ErrUnavailable, "the session is stopping: the command was not started")
	errLost     = hpcexec.Errorf(hpcexec.ErrUnknownEnd, "the command was ended: its client's connection was lost")
	errSilent   = hpcexec.Errorf(hpcexec.ErrUnknownEnd, "the command was ended: its client was silent for too long")
	errClosed   = errors.New("the client closed the channel")
	errCancel   = errors.New("the client cancelled the command")
)

// Options say what a shim serves. One of Listener and Stdio is set.
type Options struct {
	// Listener is where clients connect. Serve closes it. Peers on unix
	// sockets must be of this process's user.
	Listener net.Listener

	// Stdio is one connection; Serve ends with it and closes it.
	Stdio io.ReadWriteCloser

	// Env is the environment of this process, of which commands get all but
	// the shim's own variables. Nil stands for os.Environ().
	Env []string

	// Grace is the time between SIGTERM and SIGKILL for a command that is
	// cancelled or times out; 0 is 1.5 s.
	Grace time.Duration

	// MaxChannels bounds the channels of all connections; 0 is 4096.
	MaxChannels int

	// Orphans: this process is a subreaper, and the shim reaps what it
	// inherits, and ends it at its own end. Nobody else may start processes
	// in this process.
	Orphans bool

	// Build is the release that hello@hpcexec reports.
	Build string

	// Logger gets what an operator may want to know; nil discards it.
	Logger *slog.Logger

	// For tests; else wire.BeatTimeout and wire.CheckPeer.
	beatTimeout time.Duration
	checkPeer   func(*net.UnixConn) error
}

// A server is a shim that serves.
type server struct {
	opts    Options
	log     *slog.Logger
	local   *hpcexec.Local
	home    string // where commands start, if it is there
	started time.Time

	ctx    context.Context // ends with the shim
	cancel context.CancelCauseFunc

	conns sync.WaitGroup // connections being served

	connected atomic.Int64
	channels  atomic.Int64
	active    atomic.Int64 // time of the last activity, in ns since 1970

	walker proctree.Walker

	mu       sync.Mutex
	stopping bool // nothing begins any more
	commands map[*command]bool
	work     sync.WaitGroup     // has each command until its client was told of the end
	open     map[io.Closer]bool // what shutdown has to close
	over     bool               // shutdown has closed it
	stops    []*ssh.Request     // stop@hpcexec, to be answered
}

// Serve runs a shim until ctx ends or a client asks it to stop, which ends all
// its processes and gives nil, or until its Listener fails. With Stdio it
// returns when the connection has ended and with it all commands but those in
// the background; for these it stays.
func Serve(ctx context.Context, opts Options) error {
	if (opts.Listener == nil) == (opts.Stdio == nil) {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "a shim serves a listener or one connection")
	}
	s := newServer(ctx, opts)
	defer s.cancel(nil)
	reaping := make(chan struct{})
	reapCtx, stopReaping := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(reaping)
		if opts.Orphans {
			s.local.ReapOrphans(reapCtx)
		}
	}()
	defer func() {
		stopReaping()
		<-reaping
	}()
	if opts.Stdio != nil {
		return s.serveStdio()
	}
	return s.serveListener()
}

func newServer(ctx context.Context, opts Options) *server {
	if opts.Env == nil {
		opts.Env = os.Environ()
	}
	if opts.Grace == 0 {
		opts.Grace = defaultGrace
	}
	if opts.MaxChannels == 0 {
		opts.MaxChannels = defaultChannels
	}
	if opts.beatTimeout == 0 {
		opts.beatTimeout = wire.BeatTimeout
	}
	if opts.checkPeer == nil {
		opts.checkPeer = wire.CheckPeer
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := &server{
		opts: opts, log: opts.Logger, started: time.Now(),
		local:    &hpcexec.Local{Env: commandEnv(opts.Env), Grace: opts.Grace, PlaceName: "shim"},
		home:     getenv(opts.Env, "HOME"),
		commands: map[*command]bool{}, open: map[io.Closer]bool{},
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.touch()
	return s
}

func (s *server) serveStdio() error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serveConn(s.opts.Stdio)
	}()
	select {
	case <-done:
	case <-s.ctx.Done():
		s.shutdown()
		s.await(done, closeLimit, "connection")
		return nil
	}
	// Commands in the background still write to pipes that end here.
	select {
	case <-waited(&s.work):
	case <-s.ctx.Done():
		s.shutdown()
	}
	return nil
}

func (s *server) serveListener() error {
	unlisten := context.AfterFunc(s.ctx, func() { s.opts.Listener.Close() })
	defer unlisten()
	err := s.accept()
	if s.ctx.Err() != nil {
		err = nil
	}
	s.opts.Listener.Close()
	s.cancel(errStopped)
	s.shutdown()
	s.await(waited(&s.conns), closeLimit, "connections")
	return err
}

// waited is closed when a group has ended.
func waited(wg *sync.WaitGroup) <-chan struct{} {
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	return ended
}

// await waits for what is about to end, but not for ever: a process or a file
// transfer may hang in the kernel, and a client may not read.
func (s *server) await(ended <-chan struct{}, limit time.Duration, what string) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		s.log.Warn("left behind", "what", what)
	}
}

// accept serves connections until the listener is closed.
func (s *server) accept() error {
	pause := time.Millisecond
	for {
		c, err := s.opts.Listener.Accept()
		if errors.Is(err, net.ErrClosed) || s.ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return err
		}
		if err != nil {
			// Too many open files, say: it passes.
			s.log.Warn("accept", "err", err)
			select {
			case <-time.After(pause):
			case <-s.ctx.Done():
			}
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		if uc, ok := c.(*net.UnixConn); ok {
			if err := s.opts.checkPeer(uc); err != nil {
				s.log.Warn("connection refused", "err", err)
				c.Close()
				continue
			}
		}
		if s.connected.Load() >= maxConnections {
			s.log.Warn("connection refused", "err", "too many of them", "limit", maxConnections)
			c.Close()
			continue
		}
		s.conns.Add(1)
		s.connected.Add(1)
		go func() {
			defer s.conns.Done()
			defer s.connected.Add(-1)
			s.serveConn(c)
		}()
	}
}

// shutdown ends all processes and then the connections, so that clients hear
// of each end. s.ctx has ended.
func (s *server) shutdown() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	if s.opts.Orphans {
		s.endLeftovers()
	} else {
		s.await(waited(&s.work), s.opts.Grace+killLimit, "commands")
	}
	s.mu.Lock()
	stops, open := s.stops, slices.Collect(maps.Keys(s.open))
	s.stops, s.over = nil, true
	s.mu.Unlock()
	for _, req := range stops {
		req.Reply(true, nil)
	}
	var closing sync.WaitGroup // each may take time to flush
	for _, c := range open {
		closing.Go(func() { c.Close() })
	}
	s.await(waited(&closing), closeLimit, "clients")
}

// track has shutdown close now instead of before; nil stands for nothing.
func (s *server) track(before, now io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, before)
	switch {
	case now == nil:
	case s.over:
		now.Close()
	default:
		s.open[now] = true
	}
}

// begin says whether a command may begin, and has the shim's end wait for the
// end of it.
func (s *server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.work.Add(1)
	return true
}

// end is for a command that began, after its client was told of its end.
func (s *server) end() { s.work.Done() }

// add notes a command that is about to start.
func (s *server) add(cmd *command) {
	s.touch()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commands[cmd] = true
}

// remove notes that a command has ended.
func (s *server) remove(cmd *command) {
	s.touch()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.commands, cmd)
}

// touch notes that the shim is in use.
func (s *server) touch() { s.active.Store(time.Now().UnixNano()) }
