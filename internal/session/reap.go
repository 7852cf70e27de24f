package session

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/apptainer"
	"github.com/hpcexec/hpcexec/internal/hostid"
	"github.com/hpcexec/hpcexec/overlay"
)

// reap ends what a killed supervisor left on its node where its guard was
// killed with it: the instance, and the processes that have the start's token.
// While the supervisor lives, or where its node can't be asked, it does
// nothing and returns an error; with end it ends the supervisor as well, which
// is for one that can't be talked to.
func (m *Manager) reap(ctx context.Context, rec *Record, state *State, end bool) error {
	if self, err := selfID(); err == nil && self.Same(state.Node) {
		return reap(ctx, m.Dirs, rec.Name, state.Token, end, slog.New(slog.DiscardHandler))
	}
	client, err := m.openPlain(ctx, dest(rec, state))
	if err != nil {
		return err
	}
	var out strings.Builder
	args := []string{
		rec.Start.Exe, "reap", "--home", m.Dirs.Home, "--scratch", m.Dirs.Scratch, "--session", rec.Name, "--token", state.Token,
	}
	if end {
		args = append(args, "--end")
	}
	resp, err := client.Run(ctx, hpcexec.Request{
		Args: args, Stdout: &out, Stderr: &out, Timeout: time.Minute,
	})
	if err == nil && resp.ExitCode == exitAlive {
		err = errAlive
	} else if err == nil && resp.ExitCode != 0 {
		err = hpcexec.Errorf(hpcexec.ErrUnavailable, "what session %s left on %s could not be ended: %s", rec.Name, state.Addr, strings.TrimSpace(out.String()))
	}
	return err
}

// errAlive says that there is nothing to reap: the supervisor lives.
var errAlive = hpcexec.Errorf(hpcexec.ErrUnavailable, "the session's supervisor is alive")

// exitAlive is the exit code of `hpcexec reap` for errAlive.
const exitAlive = 75

// reap is Manager.reap on the node itself. While the supervisor of the start
// lives and end is false it does nothing and returns errAlive.
func reap(ctx context.Context, dirs Dirs, name, token string, end bool, log *slog.Logger) error {
	state, err := dirs.loadState(name)
	if err != nil || state == nil || state.Token != token {
		return err
	}
	self, err := selfID()
	if err != nil {
		return err
	}
	if !self.Same(state.Node) {
		return nil // the node was rebooted: nothing of that time runs
	}
	if state.Proc.Alive() {
		if !end {
			return errAlive
		}
		endSupervisor(state.Proc)
	}
	if state.Runtime != nil {
		if err := stopNamed(ctx, state.Runtime, state.Instance, log); err != nil {
			return err
		}
	}
	endShim(state.Shim)
	killMarked(ctx, token, log)
	return freeLease(ctx, dirs, name, state.Runtime, state.Instance, log)
}

// endSupervisor has a supervisor end its session, and kills it where it doesn't.
func endSupervisor(p hostid.Proc) {
	syscall.Kill(p.PID, syscall.SIGTERM)
	for began := time.Now(); p.Alive(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > stopGrace+5*time.Second {
			syscall.Kill(p.PID, syscall.SIGKILL)
		}
	}
}

// freeLease gives back the lease of a dead supervisor of this node. Only here
// is its death plain to see: other nodes would have to wait for proof.
func freeLease(ctx context.Context, dirs Dirs, name string, rt *apptainer.Runtime, instance string, log *slog.Logger) error {
	rec, err := dirs.Load(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && rec.OverlayPath == "" {
		return nil
	}
	if err != nil {
		return err
	}
	o, err := overlay.Open(rec.OverlayPath)
	if err != nil {
		return err
	}
	lease, err := acquire(ctx, o, leaseOptions(rec), rt, instance, log)
	if err != nil {
		return err
	}
	return lease.Release()
}

// stopNamed stops the instance of a name, if it runs on this node.
func stopNamed(ctx context.Context, rt *apptainer.Runtime, name string, log *slog.Logger) error {
	found, err := rt.Adopt(ctx)
	if err != nil {
		return err
	}
	for _, f := range found {
		if f.Name != name {
			continue
		}
		end, err := f.Stop(ctx, initGrace)
		if err != nil {
			return err
		}
		log.Info("left-over instance stopped", "by", end.Path, "took", end.Took, "leftover", end.Helpers)
	}
	return nil
}

// ReapMain is `hpcexec reap`; args are those after the word.
func ReapMain(args []string) int {
	fs := flag.NewFlagSet("reap", flag.ContinueOnError)
	var dirs Dirs
	fs.StringVar(&dirs.Home, "home", "", "state directory")
	fs.StringVar(&dirs.Scratch, "scratch", "", "scratch directory")
	name := fs.String("session", "", "name of the session")
	token := fs.String("token", "", "the start that has died")
	end := fs.Bool("end", false, "end its supervisor where that lives")
	if err := fs.Parse(args); err != nil || CheckName(*name) != nil {
		return 125
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := reap(ctx, dirs, *name, *token, *end, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err == error(errAlive) {
		return exitAlive
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hpcexec reap:", err)
		return 125
	}
	return 0
}
