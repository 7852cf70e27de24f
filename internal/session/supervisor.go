package session

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/apptainer"
	"github.com/hpcexec/hpcexec/internal/hostid"
	"github.com/hpcexec/hpcexec/internal/rundir"
	"github.com/hpcexec/hpcexec/overlay"
)

const (
	tick        = 5 * time.Second // between two looks at the shim
	fileTick    = time.Minute     // between two looks at the session's record
	socketTouch = time.Hour       // after which a socket's time is renewed
	maxRestarts = 5               // of the body in restartSpan; more is a failure that a restart doesn't mend
	restartSpan = 5 * time.Minute
	stopGrace   = 10 * time.Second // for a clean stop, all steps together
	holdWait    = 30 * time.Second // for the client of an ephemeral session
)

// SuperviseMain is `hpcexec supervise`: the process on the node of a session
// that owns its lease, instance and shim. It runs as the payload of a Slurm
// job, or detached (--detach) on a node without one. args are those after the
// word supervise; the result is the exit code.
func SuperviseMain(args []string) int {
	fs := flag.NewFlagSet("supervise", flag.ContinueOnError)
	var (
		dirs   Dirs
		name   = fs.String("session", "", "name of the session")
		token  = fs.String("token", "", "the start to serve")
		detach = fs.Bool("detach", false, "go on in the background")
	)
	fs.StringVar(&dirs.Home, "home", "", "state directory")
	fs.StringVar(&dirs.Scratch, "scratch", "", "scratch directory")
	if err := fs.Parse(args); err != nil {
		return 125
	}
	if err := CheckName(*name); err != nil || *token == "" || dirs.Home == "" || dirs.Scratch == "" {
		fmt.Fprintln(os.Stderr, "hpcexec supervise: --home, --scratch, --session and --token are needed; `hpcexec session start` gives them")
		return 125
	}
	if *detach {
		if err := detachSelf(dirs, *name, args); err != nil {
			fmt.Fprintln(os.Stderr, "hpcexec supervise:", err)
			return 125
		}
		return 0
	}
	survive()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("session", *name)
	s := &supervisor{dirs: dirs, name: *name, token: *token, log: log}
	if err := s.serve(ctx); err != nil {
		log.Error("session ended", "err", err)
		return 125
	}
	return 0
}

// survive keeps this process from ending with its terminal or its log. The
// signals are received and dropped rather than ignored: what is ignored here
// would be ignored by every command of the session.
func survive() {
	dropped := make(chan os.Signal, 1)
	signal.Notify(dropped, syscall.SIGHUP, syscall.SIGPIPE)
	go func() {
		for range dropped {
		}
	}()
}

// detachSelf starts the same command without --detach.
func detachSelf(dirs Dirs, name string, args []string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	rest := []string{"supervise"}
	for _, a := range args {
		if a != "--detach" {
			rest = append(rest, a)
		}
	}
	return detach(dirs, name, exe, rest)
}

// detach starts a supervisor in a session of its own, with a scrubbed
// environment and its output in the session's log.
func detach(dirs Dirs, name, exe string, args []string) error {
	log, err := openLog(dirs, name)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(exe, args...)
	cmd.Dir = "/"
	cmd.Env = scrub(os.Environ())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// openLog opens the log of a session's supervisor, a new one when the old has
// grown large.
func openLog(dirs Dirs, name string) (*os.File, error) {
	if err := os.MkdirAll(dirs.Logs(), 0o700); err != nil {
		return nil, err
	}
	path := dirs.logPath(name)
	if fi, err := os.Stat(path); err == nil && fi.Size() > 1<<20 {
		os.Rename(path, path+".old")
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

func (d Dirs) logPath(name string) string { return filepath.Join(d.Logs(), name+".log") }

// A supervisor serves one start of one session.
type supervisor struct {
	dirs  Dirs
	name  string
	token string
	log   *slog.Logger

	rec   *Record
	node  hostid.ID
	run   string             // the node's runtime directory
	rt    *apptainer.Runtime // nil for a bare session
	layer *overlay.Overlay
	lease *overlay.Lease
	guard *guard
	shims *net.UnixListener // the shim's socket; it outlives each shim

	mu    sync.Mutex
	state State

	held      atomic.Bool // an ephemeral session's client has come
	stopAsked chan string // the reason
	snapshots chan func() // work that must not meet a stop or a restart
}

// serve runs the session to its end. What went wrong before it was ready is in
// the state file as well as in the result.
func (s *supervisor) serve(ctx context.Context) error {
	s.stopAsked = make(chan string, 1)
	s.snapshots = make(chan func())
	var err error
	if s.node, err = hostid.Self(); err != nil {
		return err
	}
	proc, err := hostid.SelfProc()
	if err != nil {
		return err
	}
	s.state = State{Token: s.token, Node: s.node, Addr: s.node.Host, Proc: proc, JobID: os.Getenv("SLURM_JOB_ID")}
	if name := os.Getenv("SLURMD_NODENAME"); name != "" {
		s.state.Addr = name // the host name may be one that only the node knows
	}
	if s.rec, err = s.dirs.Load(s.name); err != nil {
		return err
	}
	if s.rec.Start == nil || s.rec.Start.Token != s.token {
		return fmt.Errorf("start %s is not wanted any more", s.token)
	}
	s.publish(Starting, nil)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cleanup, err := s.prepare(ctx, cancel)
	defer cleanup()
	var b *body
	if err == nil {
		b, err = s.startBody(ctx)
	}
	if err != nil {
		if ctx.Err() != nil && s.lost() == nil {
			s.publish(Stopped, nil, "it was stopped while it started")
			return nil
		}
		s.publish(Failed, err)
		return err
	}
	s.publish(Ready, nil)
	reason, err := s.watch(ctx, &b)
	s.publish(Stopping, nil, reason)
	if b != nil {
		stopCtx, done := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
		b.stop(stopCtx)
		done()
	}
	cleanup()
	if err != nil {
		s.publish(Failed, err)
		return err
	}
	s.publish(Stopped, nil, reason)
	if s.rec.Ephemeral {
		return s.dirs.purge(s.rec)
	}
	return nil
}

// prepare takes what a session has once per start: the lease, the sockets, the
// guard. cleanup gives it back, once.
func (s *supervisor) prepare(ctx context.Context, cancel context.CancelCauseFunc) (cleanup func(), err error) {
	var undo []func()
	cleanup = sync.OnceFunc(func() {
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
	})
	if s.run, err = rundir.Get(s.dirs.Home); err != nil {
		return cleanup, err
	}
	if s.guard, err = startGuard(s.dirs, s.name, s.token); err != nil {
		return cleanup, err
	}
	undo = append(undo, s.guard.done)
	if s.rec.OverlayPath != "" {
		if s.rt, err = findRuntime(ctx, s.run); err != nil {
			return cleanup, err
		}
		s.mu.Lock()
		s.state.Runtime, s.state.Instance = s.rt, apptainer.InstanceName(s.name)
		s.mu.Unlock()
		if s.layer, err = overlay.Open(s.rec.OverlayPath); err != nil {
			return cleanup, err
		}
		if s.lease, err = s.acquire(ctx); err != nil {
			return cleanup, err
		}
		undo = append(undo, func() { s.lease.Release() })
		if err := s.clearInstance(ctx); err != nil {
			return cleanup, err
		}
		go func() {
			select {
			case <-s.lease.Lost():
				cancel(errLeaseLost)
			case <-ctx.Done():
			}
		}()
	}
	if s.shims, err = listen(rundir.SocketPath(s.run, s.name+".shim")); err != nil {
		return cleanup, err
	}
	undo = append(undo, func() { s.shims.Close() })
	control, err := listen(rundir.SocketPath(s.run, s.name+".sup"))
	if err != nil {
		return cleanup, err
	}
	undo = append(undo, func() { control.Close() })
	go serveControl(control, func(q question, gone <-chan struct{}, say func(answer)) (answer, error) {
		return s.answer(ctx, q, gone, say)
	})
	s.mu.Lock()
	s.state.ShimSocket, s.state.ControlSocket = s.shims.Addr().String(), control.Addr().String()
	s.mu.Unlock()
	return cleanup, nil
}

var errLeaseLost = hpcexec.Errorf(hpcexec.ErrUnavailable, "the overlay's lease was taken by another session").
	WithHint("only one session at a time can write an overlay")

func (s *supervisor) lost() error {
	if s.lease == nil {
		return nil
	}
	select {
	case <-s.lease.Lost():
		return errLeaseLost
	default:
		return nil
	}
}

// watch waits for a reason to end, and keeps the body alive until then. The
// body is nil after a failure that left none.
func (s *supervisor) watch(ctx context.Context, b **body) (reason string, err error) {
	idle := time.Duration(s.rec.Options.Idle)
	if idle == 0 {
		idle = DefaultIdle
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	ready := time.Now()
	wanted := ready // when the record was looked at last
	var restarts []time.Time
	for {
		select {
		case <-ctx.Done():
			return s.told()
		case reason := <-s.stopAsked:
			return reason, nil
		case work := <-s.snapshots:
			work()
		case <-(*b).host.Done():
			s.log.Warn("the shim ended")
			s.publish(Restarting, nil, "the shim or its instance died")
			fresh, err := s.restart(ctx, *b, &restarts)
			if err != nil || fresh == nil {
				*b = nil
				if ctx.Err() != nil {
					return s.told()
				}
				return "", err
			}
			*b = fresh
			s.publish(Ready, nil)
		case <-ticker.C:
			if s.rec.Ephemeral && !s.held.Load() && time.Since(ready) > holdWait {
				return "its client never came", nil
			}
			if time.Since(wanted) >= fileTick {
				wanted = time.Now()
				if why := s.unwanted(); why != "" {
					return why, nil
				}
			}
			cut := s.cutOff()
			if idle < 0 && !cut {
				continue
			}
			quiet := (*b).quiet(ctx)
			if cut && quiet > 0 {
				return "its sockets were removed, so nobody could reach it", nil
			}
			if idle >= 0 && quiet >= idle {
				return fmt.Sprintf("no command for %v", idle), nil
			}
		}
	}
}

// cutOff says that the session's sockets are gone: something has cleaned /tmp.
// It also renews their time, for what cleans goes by age.
func (s *supervisor) cutOff() bool {
	state := s.current()
	for _, path := range []string{state.ShimSocket, state.ControlSocket} {
		fi, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return true
		}
		if err == nil && time.Since(fi.ModTime()) > socketTouch {
			now := time.Now()
			os.Chtimes(path, now, now)
		}
	}
	return false
}

// unwanted says why nobody can want this start any more: no client finds it,
// and what it holds would be held until the time limit.
func (s *supervisor) unwanted() string {
	rec, err := s.dirs.Load(s.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "the session was removed"
	case err == nil && rec.Start != nil && rec.Start.Token != s.token:
		return "another start has taken its place"
	}
	return ""
}

// told is the reason of an end that came from outside.
func (s *supervisor) told() (reason string, err error) {
	if err := s.lost(); err != nil {
		return "the lease was lost", err
	}
	return "it was told to end (job cancelled, time limit, or a signal)", nil
}

// restart makes the body anew, again and again where it dies at once, but not
// for ever. It is nil where ctx ended.
func (s *supervisor) restart(ctx context.Context, old *body, restarts *[]time.Time) (*body, error) {
	stopCtx, done := context.WithTimeout(ctx, stopGrace)
	old.stop(stopCtx)
	done()
	for {
		now := time.Now()
		*restarts = append(*restarts, now)
		for now.Sub((*restarts)[0]) > restartSpan {
			*restarts = (*restarts)[1:]
		}
		b, err := s.startBody(ctx)
		switch {
		case err == nil:
			return b, nil
		case ctx.Err() != nil:
			return nil, nil
		case !errors.Is(err, hpcexec.ErrUnavailable): // another try ends the same way
			return nil, err
		case len(*restarts) > maxRestarts:
			return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "session %s died %d times in %v: %w", s.name, len(*restarts), restartSpan, err).
				WithHint("see %s", s.dirs.logPath(s.name))
		}
		s.log.Warn("not restarted", "err", err)
	}
}

// publish writes the state down. A state that can't be written is logged: the
// session is worth more than its file.
func (s *supervisor) publish(p Phase, err error, reason ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Phase, s.state.Error, s.state.Reason = p, errorText(err), strings.Join(reason, "; ")
	s.log.Info("state", "phase", p, "reason", s.state.Reason)
	if err := s.dirs.saveState(s.name, &s.state); err != nil {
		s.log.Error("state not written", "err", err)
	}
}

func (s *supervisor) current() *State {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state
	return &c
}

// answer serves the control socket.
func (s *supervisor) answer(ctx context.Context, q question, gone <-chan struct{}, say func(answer)) (answer, error) {
	if q.Token != s.token {
		return answer{}, hpcexec.Errorf(hpcexec.ErrUnavailable, "this is another start of session %s", s.name)
	}
	switch q.Op {
	case "status":
		return answer{State: s.current()}, nil
	case "stop":
		s.askStop("stopped by its user")
		return answer{State: s.current()}, nil
	case "hold":
		s.held.Store(true)
		select {
		case <-gone:
			s.askStop("its client is gone")
		case <-ctx.Done():
		}
		return answer{}, nil
	case "snapshot":
		var a answer
		var err error
		done := make(chan struct{})
		work := func() {
			defer close(done)
			a, err = s.snapshot(ctx, q.Note, say)
		}
		select {
		case s.snapshots <- work:
			<-done
			return a, err
		case <-ctx.Done():
			return a, hpcexec.Errorf(hpcexec.ErrUnavailable, "session %s is stopping", s.name)
		}
	}
	return answer{}, hpcexec.Errorf(hpcexec.ErrInvalid, "unknown question %q", q.Op)
}

func (s *supervisor) askStop(reason string) {
	select {
	case s.stopAsked <- reason:
	default: // it was asked already
	}
}

func (s *supervisor) snapshot(ctx context.Context, note string, say func(answer)) (answer, error) {
	if s.layer == nil {
		return answer{}, errNoOverlay(s.name)
	}
	snap, err := createSnapshot(ctx, s.dirs, s.rec, s.layer, note, func(p Progress) { say(answer{Progress: &p}) })
	if err != nil {
		return answer{}, err
	}
	b, err := json.Marshal(snap)
	return answer{Result: b}, err
}

// listen makes a socket of ours in place of one that a dead supervisor left.
// A live one has the overlay's lease, so that this isn't reached; for a bare
// session the connection says whether somebody answers.
func listen(path string) (*net.UnixListener, error) {
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "another supervisor of this session answers on %s", path).
			WithHint("stop it with `hpcexec session stop`")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "socket: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		ln.Close()
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "socket: %w", err)
	}
	return ln, nil
}

// BridgeMain is `hpcexec bridge SOCKET`: it joins its stdin and stdout to a
// unix socket, for sites where ssh may not forward to one.
func BridgeMain(args []string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "hpcexec bridge: one socket is needed")
		return 125
	}
	conn, err := net.Dial("unix", args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, "hpcexec bridge:", err)
		return 125
	}
	go func() {
		io.Copy(conn, os.Stdin)
		conn.(*net.UnixConn).CloseWrite()
	}()
	io.Copy(os.Stdout, conn)
	return 0
}
