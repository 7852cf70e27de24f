package sshmux

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

// startWait is how long a new master may take until it answers.
const startWait = 90 * time.Second

// maxLog is the size at which a master's log is begun anew.
const maxLog = 1 << 20

// EnsureOptions say which master is needed and how to start it.
type EnsureOptions struct {
	Host   string // as in MasterOptions
	Socket string // as in MasterOptions

	// Argv runs [MasterMain] for Host and Socket.
	Argv []string

	// Wait bounds the start of a new master. 0 stands for 90 s.
	Wait time.Duration
}

// EnsureMaster connects to the master of a host, and starts one first where
// there is none. However many do so at once, one master is started; those who
// wait for a start that fails get its error, and don't try again themselves.
//
// A master runs in a session of its own, with an environment that has only what
// finding and logging in to hosts needs. What it has to say goes to
// SOCKET.log, why it couldn't start to SOCKET.err.
//
// Errors are those of Dial, and hpcexec.ErrUnavailable.
func EnsureMaster(ctx context.Context, opts EnsureOptions) (*Client, error) {
	asked := time.Now()
	c, err := openMaster(ctx, opts.Socket)
	if err == nil || !errors.Is(err, ErrNoMaster) {
		return c, err
	}
	if err := checkSocketPath(opts.Socket); err != nil {
		return nil, err
	}
	if err := checkSocketDir(opts.Socket); err != nil {
		return nil, err
	}
	if opts.Wait <= 0 {
		opts.Wait = startWait
	}
	ctx, cancel := context.WithTimeoutCause(ctx, opts.Wait,
		hpcexec.Errorf(hpcexec.ErrUnavailable, "the master of %s did not start in %v", opts.Host, opts.Wait).
			WithHint("see %s.log", opts.Socket))
	defer cancel()
	lock, err := waitLock(ctx, opts.Socket+".start")
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	for {
		if c, err := waitGone(ctx, opts.Socket); c != nil || err != nil {
			return c, err
		}
		if err := lastFailure(opts.Socket, asked); err != nil {
			return nil, err
		}
		c, err := startMaster(ctx, opts)
		if !errors.Is(err, ErrNoMaster) {
			return c, err
		}
		// It answered, and has left already: its idle time is very short.
	}
}

// waitGone waits until no process has a socket's lock any more: a master that
// is ending takes a moment. It gives the client of one that answers after all.
func waitGone(ctx context.Context, socket string) (*Client, error) {
	for {
		c, err := openMaster(ctx, socket)
		if err == nil || !errors.Is(err, ErrNoMaster) {
			return c, err
		}
		f, err := tryLock(socket + ".lock")
		if err == nil {
			return nil, f.Close()
		}
		if !errors.Is(err, errLocked) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// openMaster connects to a master and sees that it lives.
func openMaster(ctx context.Context, socket string) (*Client, error) {
	c, err := Open(socket)
	if err != nil {
		return nil, err
	}
	if _, err := c.Alive(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// startMaster starts a master and waits until it answers or has failed. The
// caller holds the lock of starting.
func startMaster(ctx context.Context, opts EnsureOptions) (*Client, error) {
	began := time.Now()
	logPath := opts.Socket + ".log"
	if st, err := os.Stat(logPath); err == nil && st.Size() > maxLog {
		os.Remove(logPath)
	}
	log, err := os.OpenFile(logPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "log of the master: %w", err)
	}
	defer log.Close()
	// The pipe ends when the master answers, or is dead.
	ready, theirs, err := os.Pipe()
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "master: %w", err)
	}
	defer ready.Close()
	cmd := exec.Command(opts.Argv[0], opts.Argv[1:]...)
	cmd.Env = append(masterEnv(os.Environ()), readyVar+"=3")
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "master: %w", err)
	}
	go cmd.Wait() // where this process lives longer than the master

	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var b [1]byte
	n, _ := ready.Read(b[:])
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if n == 0 {
		if err := lastFailure(opts.Socket, began); err != nil {
			return nil, err
		}
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "the master of %s ended at its start", opts.Host).
			WithHint("see %s", logPath)
	}
	return Open(opts.Socket)
}

// masterEnv is what a master keeps of an environment: it is a daemon that
// outlives its user's shell, so nothing else may hang on it.
func masterEnv(env []string) []string {
	keep := map[string]bool{
		"HOME": true, "PATH": true, "USER": true, "LOGNAME": true, "SHELL": true, "LANG": true, "TMPDIR": true,
		"SSH_AUTH_SOCK": true, "KRB5CCNAME": true, "SLURM_CONF": true,
		"HPCEXEC_HOME": true, "HPCEXEC_SCRATCH": true,
	}
	var out []string
	for _, e := range env {
		for i := 0; i < len(e); i++ {
			if e[i] == '=' {
				if keep[e[:i]] {
					out = append(out, e)
				}
				break
			}
		}
	}
	return out
}

// A failure is why a master couldn't start, in the file SOCKET.err.
type failure struct {
	Time  time.Time `json:"time"`
	Count int       `json:"count"` // failures in a row, none longer ago than failMemory
	Exit  wire.Exit `json:"error"`
}

const (
	// failMemory is how long a failure counts for the next ones.
	failMemory = 10 * time.Minute

	// freeFailures is how many there may be before starts are spaced out, so
	// that no site bans a user whose script calls hpcexec in a loop. A person
	// who mends something and tries again isn't held up.
	freeFailures = 3
)

// pause is how long after the failure no start is tried.
func (f *failure) pause() time.Duration {
	if f.Count <= freeFailures {
		return 0
	}
	return min(time.Second<<min(f.Count-freeFailures, 6), time.Minute)
}

func readFailure(socket string) (f failure, ok bool) {
	b, err := os.ReadFile(socket + ".err")
	if err != nil || json.Unmarshal(b, &f) != nil {
		return failure{}, false
	}
	return f, true
}

// lastFailure is the error of a master that failed after a time, or so often
// that it is too early to try again.
func lastFailure(socket string, after time.Time) error {
	f, ok := readFailure(socket)
	if !ok {
		return nil
	}
	_, err := f.Exit.Response()
	if f.Time.After(after) {
		return err
	}
	if wait := f.pause() - time.Since(f.Time); wait > 0 && err != nil {
		kind := hpcexec.KindByName(f.Exit.ErrKind)
		if kind == nil {
			kind = hpcexec.ErrUnavailable
		}
		return hpcexec.Errorf(kind, "%w (failed %d times, not tried again for %d s)", err, f.Count, int(wait/time.Second)+1)
	}
	return nil
}

// noteFailure writes the file that lastFailure reads.
func noteFailure(socket string, err error) {
	next := failure{Time: time.Now(), Count: 1, Exit: wire.ExitOf(hpcexec.Response{}, err)}
	if f, ok := readFailure(socket); ok && time.Since(f.Time) < failMemory {
		next.Count += f.Count
	}
	b, jerr := json.Marshal(next)
	if jerr != nil {
		return
	}
	f, ferr := os.CreateTemp(filepath.Dir(socket), ".err-")
	if ferr != nil {
		return
	}
	defer os.Remove(f.Name())
	_, werr := f.Write(b)
	if cerr := f.Close(); werr == nil && cerr == nil {
		os.Rename(f.Name(), socket+".err")
	}
}
