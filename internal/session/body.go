package session

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/apptainer"
	"github.com/hpcexec/hpcexec/internal/hostid"
	"github.com/hpcexec/hpcexec/internal/proctree"
	"github.com/hpcexec/hpcexec/sshmux"
)

// sessionVar marks every process of a session's start, in a container or not,
// by its token.
const sessionVar = "HPCEXEC_SESSION_TOKEN"

// A body is what a supervisor keeps alive: the shim, as the payload of an
// instance where the session has an image, else as a child of the supervisor.
type body struct {
	inst *apptainer.Instance // nil for a bare session
	shim *exec.Cmd           // nil in an instance
	host *sshmux.Host        // the supervisor's own connection to the shim

	token string
	log   *slog.Logger
	once  sync.Once
}

// startBody starts the instance and the shim, and returns when a command has
// been answered.
func (s *supervisor) startBody(ctx context.Context) (_ *body, err error) {
	b := &body{log: s.log, token: s.token}
	defer func() {
		if err != nil {
			stopCtx, done := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
			b.stop(stopCtx)
			done()
		}
	}()
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	sock, err := s.shims.File() // a duplicate: the socket outlives this shim
	if err != nil {
		return nil, err
	}
	defer sock.Close()
	args := []string{"shim", "--fd", "3"}
	env := []string{"HPCEXEC_SESSION=" + s.name, sessionVar + "=" + s.token}
	if s.rec.Options.Image != "" {
		env = append(env, visible(os.Environ())...)
		b.inst, err = s.startInstance(ctx, &apptainer.Payload{Program: exe, Args: args, Env: env, Files: []*os.File{sock}})
	} else {
		b.shim, err = startShim(exe, args, append(loginEnv(ctx, scrub(os.Environ())), env...), sock)
	}
	if err != nil {
		return nil, err
	}
	if err := s.entrust(b); err != nil {
		return nil, err
	}
	connectCtx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if b.host, err = sshmux.DialShim(connectCtx, s.shims.Addr().String(), sshmux.HostOptions{Place: s.rec.Options.Place}); err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "the shim does not answer: %w", err)
	}
	return b, b.verify(ctx)
}

// startShim starts a bare shim.
func startShim(exe string, args, env []string, sock *os.File) (*exec.Cmd, error) {
	cmd := exec.Command(exe, args...)
	cmd.Env = env
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{sock}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := startUnblocked(cmd); err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "shim: %w", err)
	}
	return cmd, nil
}

// startUnblocked starts a program with no signal blocked. slurmstepd starts its
// tasks with TSTP, TTIN and TTOU blocked, and the mask is inherited all the way
// down to the commands.
func startUnblocked(cmd *exec.Cmd) error {
	runtime.LockOSThread() // the mask is the thread's; a fork takes it along
	defer runtime.UnlockOSThread()
	var none, old unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, &old); err != nil {
		return err
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	return cmd.Start()
}

// startInstance starts the session's container with the shim in it.
func (s *supervisor) startInstance(ctx context.Context, shim *apptainer.Payload) (*apptainer.Instance, error) {
	o := s.rec.Options
	if err := apptainer.CheckImage(o.Image); err != nil {
		return nil, err
	}
	layers, err := s.layers()
	if err != nil {
		return nil, err
	}
	var mounts []apptainer.Mount
	for _, b := range o.Binds {
		if _, err := os.Stat(b.Src); err != nil {
			return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "bind: %w", err).WithHint("it is looked for on %s", s.node.Host)
		}
		mounts = append(mounts, apptainer.Mount{Src: b.Src, Dst: b.Dst, RO: b.RO})
	}
	if err := s.clearInstance(ctx); err != nil {
		return nil, err
	}
	return s.rt.Start(ctx, apptainer.StartOptions{
		Name: s.state.Instance, Image: o.Image, Overlay: s.layer.Layer(), Layers: layers, Mounts: mounts,
		Home: "/session", WorkDir: s.layer.Tmp(), Fakeroot: o.Fakeroot, GPU: apptainer.GPU(o.GPUMode), NetNone: o.Net == "none",
		Payload: shim, DeferVerify: true,
	})
}

// clearInstance ends an instance of the session's name, which nobody but the
// holder of the lease may have, and tells the guard of the one to come.
func (s *supervisor) clearInstance(ctx context.Context) error {
	if err := s.guard.tell(charge{Runtime: s.rt, Instance: s.state.Instance}); err != nil {
		return err
	}
	return stopNamed(ctx, s.rt, s.state.Instance, s.log)
}

// entrust tells the guard, and whoever comes for the lease, what writes to the
// overlay and may outlive the supervisor.
func (s *supervisor) entrust(b *body) error {
	c := charge{}
	if b.inst != nil {
		c.Runtime, c.Instance, c.Up = s.rt, b.inst.Name, true
		procs := []hostid.Proc{}
		for _, p := range append(b.inst.Helpers, b.inst.Init, b.inst.Parent) {
			procs = append(procs, hostid.Proc{PID: p.PID, Start: p.Start})
		}
		if err := s.lease.SetHelpers(procs); err != nil {
			return err
		}
	}
	if b.shim != nil {
		var err error
		if c.Shim, err = hostid.Find(b.shim.Process.Pid); err != nil {
			return err
		}
		s.mu.Lock()
		s.state.Shim = c.Shim
		s.mu.Unlock()
	}
	return s.guard.tell(c)
}

// verify runs the first command: a session is ready when one was answered and,
// in a container, when what it writes goes to the overlay.
func (b *body) verify(ctx context.Context) error {
	script := "echo ready"
	if b.inst != nil {
		script = apptainer.VerifyScript()
	}
	var out, errs strings.Builder
	resp, err := b.host.Run(ctx, hpcexec.Request{
		Args: []string{"/bin/sh", "-c", script}, Dir: "/", Stdout: &out, Stderr: &errs, Timeout: time.Minute,
	})
	switch {
	case err != nil:
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "the first command was not answered: %w", err)
	case b.inst != nil:
		return apptainer.ParseVerify(out.String())
	case resp.ExitCode != 0 || out.String() != "ready\n":
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "the first command failed with %d: %s", resp.ExitCode, errs.String())
	}
	return nil
}

// quiet is how long no command has run.
func (b *body) quiet(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, tick)
	defer cancel()
	st, err := b.host.Status(ctx)
	if err != nil || st.Running > 0 || st.Background > 0 {
		return 0 // a shim that is too busy to answer isn't idle
	}
	return time.Since(st.LastActivity)
}

// stop ends the commands, the shim and the instance. Only the first call does.
func (b *body) stop(ctx context.Context) {
	b.once.Do(func() {
		if b.host != nil {
			// Asked on its own line the shim is known to have ended its
			// commands; the container's init would take its time to tell it.
			graceCtx, done := context.WithTimeout(ctx, commandGrace)
			if err := b.host.StopShim(graceCtx); err != nil {
				b.log.Info("the shim did not confirm its end", "err", err)
			}
			done()
			b.host.Close()
		}
		if b.shim != nil {
			b.shim.Process.Signal(syscall.SIGTERM)
			ended := make(chan struct{})
			go func() {
				b.shim.Wait()
				close(ended)
			}()
			select {
			case <-ended:
			case <-ctx.Done():
				syscall.Kill(-b.shim.Process.Pid, syscall.SIGKILL)
				<-ended
			}
		}
		if b.inst != nil {
			if end, err := b.inst.Stop(ctx, initGrace); err != nil {
				b.log.Error("instance not stopped", "err", err)
			} else {
				b.log.Info("instance stopped", "by", end.Path, "took", end.Took, "leftover", end.Helpers)
			}
		}
		killMarked(ctx, b.token, b.log)
	})
}

// commandGrace is how long commands may take to end at SIGTERM when their
// session ends; the shim waits for less.
const commandGrace = 3 * time.Second

// initGrace is how long a container's init gets once the commands in it have
// ended.
const initGrace = 20 * time.Millisecond

// killMarked ends what is left of a start on this node: the processes that
// have its token in their environment.
func killMarked(ctx context.Context, token string, log *slog.Logger) {
	n, err := (&proctree.Walker{Var: sessionVar}).Kill(ctx, proctree.Tree{Marker: token})
	if err != nil {
		log.Error("processes left", "count", n, "err", err)
	}
}
