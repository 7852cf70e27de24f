package session

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/hpcexec/hpcexec/apptainer"
	"github.com/hpcexec/hpcexec/internal/hostid"
)

// A supervisor can be killed with SIGKILL, and an instance outlives it: it has
// left the job's process tree, and would hold the overlay for ever. The guard
// is a process that waits for that. It holds one end of a pipe; when the
// supervisor's end closes without a word, it ends what the supervisor told it
// of.

// A charge is what the guard ends: each line of the pipe replaces the one
// before. The instance is named before it is there, since its start goes on
// when the supervisor is killed meanwhile.
type charge struct {
	Done     bool               `json:"done,omitempty"` // all is well: go
	Runtime  *apptainer.Runtime `json:"runtime,omitempty"`
	Instance string             `json:"instance,omitempty"`
	Up       bool               `json:"up,omitempty"`  // the instance has started
	Shim     hostid.Proc        `json:"shim,omitzero"` // of a bare session
}

// end ends what the charge names, and every process of the start. The next
// start's instance has the same name: superseded says that there is one, which
// has seen to it that nothing of this one was in its way.
func (c charge) end(ctx context.Context, token string, superseded func() bool, log *slog.Logger) {
	if c.Runtime != nil {
		// One that is being started shows up a moment later.
		for range 4 {
			if superseded() {
				break
			}
			if err := stopNamed(ctx, c.Runtime, c.Instance, log); err != nil {
				log.Error("instance not stopped", "err", err)
			}
			if c.Up {
				break
			}
			time.Sleep(500 * time.Millisecond)
		}
	}
	endShim(c.Shim)
	killMarked(ctx, token, log)
}

// endShim ends a bare shim that has lost its supervisor. Its environment, where
// the token is, can't be read by others.
func endShim(shim hostid.Proc) {
	if shim.PID <= 0 || !shim.Alive() {
		return
	}
	syscall.Kill(shim.PID, syscall.SIGTERM)
	for range 100 {
		if !shim.Alive() {
			return
		}
		time.Sleep(commandGrace / 100)
	}
	if shim.Alive() {
		syscall.Kill(shim.PID, syscall.SIGKILL)
	}
}

// guard is the supervisor's end.
type guard struct {
	pipe *os.File
	cmd  *exec.Cmd
}

func startGuard(dirs Dirs, name, token string) (*guard, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command(exe, "guard", "--home", dirs.Home, "--scratch", dirs.Scratch, "--session", name, "--token", token)
	cmd.Dir = "/"
	cmd.Env = scrub(os.Environ())
	cmd.Stdin = r
	cmd.Stderr = os.Stderr
	// A session of its own: what ends the supervisor's group must not end it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("guard: %w", err)
	}
	return &guard{pipe: w, cmd: cmd}, nil
}

// tell gives the guard its charge.
func (g *guard) tell(c charge) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = g.pipe.Write(append(b, '\n'))
	return err
}

// done sends the guard home and waits for it.
func (g *guard) done() {
	g.tell(charge{Done: true})
	g.pipe.Close()
	g.cmd.Wait()
}

// GuardMain is `hpcexec guard`; args are those after the word.
func GuardMain(args []string) int {
	fs := flag.NewFlagSet("guard", flag.ContinueOnError)
	var dirs Dirs
	fs.StringVar(&dirs.Home, "home", "", "state directory")
	fs.StringVar(&dirs.Scratch, "scratch", "", "scratch directory")
	name := fs.String("session", "", "name of the session")
	token := fs.String("token", "", "the start that is guarded")
	if err := fs.Parse(args); err != nil || CheckName(*name) != nil {
		return 125
	}
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("session", *name, "guard", os.Getpid())

	var last charge
	lines := json.NewDecoder(os.Stdin)
	for {
		var c charge
		if lines.Decode(&c) != nil {
			break
		}
		if c.Done {
			return 0
		}
		last = c
	}
	log.Warn("the supervisor was killed; ending what it left")
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	last.end(ctx, *token, func() bool {
		state, err := dirs.loadState(*name)
		return err == nil && state != nil && state.Token != *token
	}, log)
	if err := freeLease(ctx, dirs, *name, last.Runtime, last.Instance, log); err != nil {
		log.Warn("lease not given back", "err", err)
	}

	// The state file is the supervisor's, and the guard stands in for it.
	state, err := dirs.loadState(*name)
	if err == nil && state != nil && state.Token == *token && !state.Proc.Alive() {
		state.Phase, state.Reason = Stopped, "the supervisor was killed"
		if err := dirs.saveState(*name, state); err != nil {
			log.Error("state not written", "err", err)
		}
	}
	if rec, err := dirs.Load(*name); err == nil && rec.Ephemeral && rec.Start != nil && rec.Start.Token == *token {
		if err := dirs.purge(rec); err != nil {
			log.Error("ephemeral session not removed", "err", err)
		}
	}
	return 0
}
