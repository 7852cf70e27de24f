package sshmux

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

// A Peer is what answers at the other end of a connection.
type Peer int

const (
	// PeerShim is a shim of hpcexec. It keeps every clause of the contract
	// itself.
	PeerShim Peer = iota

	// PeerSSHD is any other SSH server with a POSIX shell behind it.
	PeerSSHD
)

const (
	// pingWait is how long a peer may take to answer.
	pingWait = 10 * time.Second

	// pingEvery is how often it is asked while commands run.
	pingEvery = 15 * time.Second
)

// HostOptions describe the place behind a connection.
type HostOptions struct {
	Place            string // for Response.Place, such as "ssh:gpu1"
	Peer             Peer
	SharesFilesystem bool // see hpcexec.Properties

	// Grace is the time between TERM and KILL for a command that a PeerSSHD
	// has to end. 0 stands for 2 s. A PeerShim has its own.
	Grace time.Duration

	// KeepAlive is how often the peer is asked for an answer while nothing
	// runs, so that a dead connection is found. 0 stands for never.
	KeepAlive time.Duration

	// Login is the control socket of a master of OpenSSH's that Dial joins
	// where the user's ControlPath has none.
	Login string

	pulse *pulse // of the stream under the connection; nil: answers count

	// ping, if it isn't nil, asks the peer for an answer without a global
	// request.
	ping func(ctx context.Context) error
}

// A Host runs commands over one SSH connection. It is safe for concurrent use.
type Host struct {
	conn ssh.Conn
	opts HostOptions
	peer peer
	done chan struct{}
	beat *heart

	sessions sessions
	pulse    *pulse

	mu        sync.Mutex
	forwarded map[string]func(io.ReadWriteCloser) // by remoteForward.key
}

var (
	_ hpcexec.Starter   = (*Host)(nil)
	_ hpcexec.Describer = (*Host)(nil)
)

// A peer starts commands in the way that its kind of server understands.
type peer interface {
	// start starts a command. The error leaves no doubt that nothing ran.
	start(ctx context.Context, e *wire.Exec, s stdio) (proc, error)
	close()
}

// A proc is a command that runs.
type proc interface {
	// wait returns how it ended, or an error: context.Cause of start's
	// context, or one of the kinds of hpcexec. Nobody uses the command's
	// stdio any more then, but for a Read in progress.
	wait() (wire.Exit, error)
	signal(name string) error
	resize(cols, rows int) error
}

// stdio is what a command is connected to. Each may be nil.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// NewHost makes a Host from a connection and its incoming channels and
// requests, which it serves. The caller must call Close.
func NewHost(conn ssh.Conn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request, opts HostOptions) *Host {
	h := &Host{conn: conn, opts: opts, done: make(chan struct{}), pulse: opts.pulse}
	if h.pulse == nil {
		h.pulse = &pulse{}
	}
	h.pulse.beat()
	h.beat = &heart{host: h}
	switch opts.Peer {
	case PeerSSHD:
		h.peer = newSSHDPeer(h)
	default:
		h.peer = &shimPeer{host: h}
	}
	if opts.KeepAlive > 0 {
		h.beat.idle()
	}
	go h.serve(chans, reqs)
	return h
}

// DialShim connects to the socket of a shim on this machine. The caller must
// call Close. Errors are of kind hpcexec.ErrUnavailable.
func DialShim(ctx context.Context, path string, opts HostOptions) (*Host, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "shim: %w", err)
	}
	return shimHost(ctx, c, opts)
}

// shimHost makes a Host of a byte stream to a shim, which it owns.
func shimHost(ctx context.Context, c io.ReadWriteCloser, opts HostOptions) (*Host, error) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	opts.pulse = &pulse{}
	conn, chans, reqs, err := wire.Client(pulseStream{c, opts.pulse})
	if !stop() {
		if err == nil {
			conn.Close()
		}
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "shim: %w", context.Cause(ctx))
	}
	if err != nil {
		return nil, err
	}
	opts.Peer = PeerShim
	return NewHost(conn, chans, reqs, opts), nil
}

// serve refuses what the peer asks for: a contained place is hostile, and a
// plain host has nothing to ask, but for connections to ports that it was told
// to listen on.
func (h *Host) serve(chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
	defer close(h.done)
	for chans != nil || reqs != nil {
		select {
		case nc, ok := <-chans:
			if !ok {
				chans = nil
				continue
			}
			h.accept(nc)
		case r, ok := <-reqs:
			if !ok {
				reqs = nil
				continue
			}
			r.Reply(false, nil)
		}
	}
	h.beat.stop()
	h.peer.close()
}

// Done is closed when the connection has ended.
func (h *Host) Done() <-chan struct{} { return h.done }

// ended says whether the connection has ended.
func (h *Host) ended() bool {
	select {
	case <-h.done:
		return true
	default:
		return false
	}
}

// Close ends the connection and with it every command that runs on it.
func (h *Host) Close() error {
	err := h.conn.Close()
	<-h.done
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Properties are the facts of the place.
func (h *Host) Properties() hpcexec.Properties {
	p := peerProperties(h.opts.Peer)
	p.Place = h.opts.Place
	p.SharesFilesystem = h.opts.SharesFilesystem
	return p
}

// peerProperties are the facts of all places behind a kind of peer.
func peerProperties(p Peer) hpcexec.Properties {
	if p == PeerSSHD {
		return hpcexec.Properties{
			ReportsSignal: true, TreeByGroup: true, TreeWhole: true,
			OutlivesClient: true, Terminal: true, Signals: true,
		}
	}
	return hpcexec.Properties{
		ReportsSignal: true, TreeByGroup: true, TreeWhole: true,
		OutlivesClient: true, Terminal: true, Signals: true,
	}
}

// Run runs one command, as the contract of hpcexec.Executor says.
func (h *Host) Run(ctx context.Context, req hpcexec.Request) (hpcexec.Response, error) {
	p, err := h.Start(ctx, req)
	if err != nil {
		return hpcexec.Response{}, err
	}
	return p.Wait()
}

// Start starts one command, as the contract of hpcexec.Starter says.
func (h *Host) Start(ctx context.Context, req hpcexec.Request) (hpcexec.Process, error) {
	if err := req.Check(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if req.ID == "" {
		req.ID = hpcexec.NewID()
	}
	e := wire.ExecOf(&req)
	if oneStream(&req) {
		e.Merged, req.Stderr = true, nil
	}
	p, err := h.start(ctx, &e, gated(req.Stdin, req.Stdout, req.Stderr))
	if err != nil {
		return nil, err
	}
	return &hostProcess{p: p, place: h.opts.Place, id: req.ID, tty: req.TTY != nil}, nil
}

// start starts a command and sees to it that the peer is watched meanwhile.
func (h *Host) start(ctx context.Context, e *wire.Exec, s stdio) (proc, error) {
	h.beat.begin()
	p, err := h.peer.start(ctx, e, s)
	if err != nil {
		h.beat.end()
		return nil, err
	}
	return beating{p, h.beat}, nil
}

// beating ends the beat for a command that has ended.
type beating struct {
	proc
	heart *heart
}

func (b beating) wait() (wire.Exit, error) {
	x, err := b.proc.wait()
	b.heart.end()
	return x, err
}

// hostProcess is an hpcexec.Process.
type hostProcess struct {
	p         proc
	place, id string
	tty       bool
	once      sync.Once
}

func (p *hostProcess) Wait() (hpcexec.Response, error) {
	waited := true
	p.once.Do(func() { waited = false })
	if waited {
		return hpcexec.Response{}, hpcexec.Errorf(hpcexec.ErrInvalid, "Wait was called before")
	}
	x, err := p.p.wait()
	resp, xerr := x.Response()
	if err == nil {
		err = xerr
	}
	resp.Place, resp.ID = p.place, p.id
	return resp, err
}

func (p *hostProcess) Signal(name string) error {
	if err := checkSignal(name); err != nil {
		return err
	}
	return p.p.signal(name)
}

func (p *hostProcess) Resize(cols, rows int) error {
	if err := checkResize(p.tty, cols, rows); err != nil {
		return err
	}
	return p.p.resize(cols, rows)
}

func checkSignal(name string) error {
	if _, ok := hpcexec.SignalNumber(name); !ok {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "no signal is called %q", name)
	}
	return nil
}

func checkResize(tty bool, cols, rows int) error {
	if !tty {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "the command has no terminal")
	}
	if cols < 0 || rows < 0 || cols > 65535 || rows > 65535 {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "terminal size %d x %d is out of range", cols, rows)
	}
	return nil
}
