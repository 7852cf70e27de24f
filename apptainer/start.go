package apptainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hpcexec/hpcexec"
)

// StartOptions say which container to start.
type StartOptions struct {
	Name  string // begins with Prefix, see InstanceName
	Image string // SIF file or sandbox directory, absolute

	// Overlay is the writable layer: a directory, in which upper and work
	// are made, or an ext3 image. Empty: the container is read-only. Its
	// lease is the caller's business.
	Overlay string
	// Layers are read-only layers between image and overlay, low to high:
	// squashfs files or directories with an upper in them.
	Layers []string
	Mounts []Mount

	// Home is HOME in the container, such as "/session". It is made in the
	// overlay where that is a directory.
	Home string
	// WorkDir is a directory of the node that serves /tmp and /var/tmp of
	// the container; it is made. Empty: they are 64 MiB of memory.
	WorkDir string

	Fakeroot bool
	GPU      GPU
	NetNone  bool // no network but lo

	// Payload is run by the container's init as soon as it is up.
	Payload *Payload

	// DeferVerify saves the exec of a command (60 ms) that proves that the
	// container works: the caller proves it with its own first command, see
	// VerifyScript. What can be seen from outside is checked in any case.
	DeferVerify bool
}

// A Payload is a program of the node that an instance runs instead of its
// image's start script. It is the quickest way into a container: it needs no
// exec, and it is a child of the container's init, which reaps it.
//
// It is bound over the start script, so its argv[0] isn't its own path, and
// neither image nor overlay keep a trace of it. Its stdin is empty, its output
// goes to the instance's log. When the instance is stopped it gets SIGTERM;
// when it ends the instance stays.
type Payload struct {
	Program string     // absolute path on the node, statically linked
	Args    []string   // after argv[0]
	Env     []string   // NAME=VALUE, for it alone: later execs don't see them
	Files   []*os.File // its descriptors 3, 4, …; the caller closes its own
}

const payloadPath = "/.singularity.d/startscript"

// Start starts an instance and returns when it works. Where it fails, or ctx
// ends, nothing of it is left.
//
// Errors: ErrInvalid (image, overlay, mounts, options: the text says which),
// ErrUnavailable (the node can't), beside them ErrExists, ErrOverlayInUse,
// ErrOverlayDropped and ErrNoUserNamespace of this package.
func (r *Runtime) Start(ctx context.Context, o StartOptions) (*Instance, error) {
	if r.RunDir == "" {
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "start instance: the runtime has no RunDir")
	}
	if err := checkName(o.Name); err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if err := CheckImage(o.Image); err != nil {
		return nil, err
	}
	isDir, err := r.prepare(o)
	if err != nil {
		return nil, err
	}
	fakeroot := ""
	if o.Fakeroot {
		if fakeroot, err = r.fakeroot(ctx); err != nil {
			return nil, err
		}
	}
	if o.Payload != nil {
		o.Mounts = append(o.Mounts[:len(o.Mounts):len(o.Mounts)], Mount{Src: o.Payload.Program, Dst: payloadPath, RO: true})
	}
	pidFile := filepath.Join(r.RunDir, o.Name+".pid")
	argv, err := r.startArgv(o, isDir, pidFile, exists)
	if err != nil {
		return nil, err
	}

	nameLock, err := r.lockName(ctx, o.Name)
	if err != nil {
		return nil, err
	}
	defer nameLock.release()
	slot, err := r.startSlot(ctx)
	if err != nil {
		return nil, err
	}
	defer slot.release()

	if o.Overlay != "" {
		if err := r.freeOverlay(ctx, o.Overlay); err != nil {
			return nil, err
		}
	}

	inst := &Instance{rt: r, Info: Info{Name: o.Name, Image: o.Image, Overlay: o.Overlay, Started: time.Now(), Fakeroot: fakeroot}}
	if err := r.startRetry(ctx, argv, o.Payload, o.Name); err != nil {
		// Half an instance may be there where ctx ended in between.
		if !errors.Is(err, ErrExists) {
			r.killNamed(o.Name)
		}
		return nil, err
	}
	if err := inst.started(ctx, pidFile); err == nil {
		err = inst.verifyStart(ctx, o, isDir)
		if err == nil {
			return inst, nil
		}
		return nil, inst.undo(err)
	} else {
		r.killNamed(o.Name)
		return nil, err
	}
}

// verifyStart proves that a started instance is what was asked for.
func (i *Instance) verifyStart(ctx context.Context, o StartOptions, dir bool) error {
	if o.Overlay != "" {
		// From outside: a matter of microseconds. Some kernels don't let us.
		mounts, err := os.ReadFile("/proc/" + strconv.Itoa(i.Init.PID) + "/mounts")
		if err == nil {
			if err := checkRoot(string(mounts)); err != nil {
				return err
			}
		}
	}
	if o.DeferVerify {
		return nil
	}
	return i.Verify(ctx)
}

// undo stops an instance that is no good and returns the reason.
func (i *Instance) undo(reason error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := i.stopLocked(ctx, 100*time.Millisecond); err != nil {
		return fmt.Errorf("%w (and it can't be stopped: %v)", reason, err)
	}
	return reason
}

// startRetry starts the instance. Failures that come with many starts at once
// are tried again, as is a name that only a dead record holds.
func (r *Runtime) startRetry(ctx context.Context, argv []string, p *Payload, name string) error {
	var bus []string
	cleaned := false
	for attempt := 1; ; attempt++ {
		err := r.startOnce(ctx, argv, p, name, bus)
		switch {
		case err == nil:
			return nil
		case context.Cause(ctx) != nil:
			return err
		case errors.Is(err, errNeedsBus) && bus == nil:
			// Apptainer 1.2.0 to 1.2.3 insist on the variables. Else they
			// stay out: systemd's bus is what fails under load.
			bus = busEnv(os.Getenv)
			if len(bus) == 0 {
				return err
			}
		case errors.Is(err, ErrExists) && !cleaned:
			// What is alive is not ours to end here.
			cleaned = true
			if !r.recordOfDead(ctx, name) {
				return err
			}
		case errors.Is(err, errTransient) && attempt < startAttempts:
			r.killNamed(name)
			if serr := sleep(ctx, jitter(time.Duration(attempt)*200*time.Millisecond)); serr != nil {
				return serr
			}
		default:
			return err
		}
	}
}

const startAttempts = 5

// recordOfDead says whether the record of a name is that of an instance which
// has ended, and waits a little until it is gone: list deletes it, unless the
// instance is about to end and its parent does.
func (r *Runtime) recordOfDead(ctx context.Context, name string) bool {
	for range 40 {
		list, err := r.list(ctx, name)
		if err != nil {
			return false
		}
		if len(list) == 0 {
			return true
		}
		if _, st, err := procOf(list[0].PID); err == nil && st.state != 'Z' {
			return false
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return false
		}
	}
	return false
}

// startOnce calls `instance start` once. Its output goes to files: the
// instance inherits the descriptors, and a reader of a pipe would wait for
// its end as long as it lives.
func (r *Runtime) startOnce(ctx context.Context, argv []string, p *Payload, name string, bus []string) error {
	what := "start instance " + name
	stdout, err := r.scratchFile()
	if err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: %w", what, err)
	}
	defer stdout.Close()
	stderr, err := r.scratchFile()
	if err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: %w", what, err)
	}
	defer stderr.Close()

	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/" // it must not keep a directory of the caller's busy
	cmd.Env = append(r.baseEnv(os.Environ()), bus...)
	if p != nil {
		cmd.Args = append(cmd.Args, p.Args...)
		cmd.Env = append(cmd.Env, r.prefixed(p.Env)...)
		cmd.ExtraFiles = p.Files
	}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: %w", what, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // files only: it waits for the process alone
	select {
	case <-ended:
	case <-ctx.Done():
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	if cmd.ProcessState.Success() {
		return nil
	}
	text := readAll(stderr) + readAll(stdout) // hints of missing namespaces are on stdout
	if strings.TrimSpace(text) == "" {
		text = exitText(cmd.ProcessState.ExitCode(), "")
	}
	return classify(what, text)
}

// busEnv is the address of the user's systemd, where there is one.
func busEnv(getenv func(string) string) []string {
	var out []string
	for _, name := range []string{"XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"} {
		if v := getenv(name); v != "" {
			out = append(out, name+"="+v)
		}
	}
	return out
}

// scratchFile is a file without a name in RunDir.
func (r *Runtime) scratchFile() (*os.File, error) {
	f, err := os.CreateTemp(r.RunDir, ".start-*")
	if err != nil {
		return nil, err
	}
	os.Remove(f.Name())
	return f, nil
}

func readAll(f *os.File) string {
	b, _ := io.ReadAll(io.NewSectionReader(f, 0, 64<<10))
	return string(b)
}

// started learns the processes of an instance whose start succeeded.
func (i *Instance) started(ctx context.Context, pidFile string) error {
	b, err := os.ReadFile(pidFile)
	os.Remove(pidFile)
	var pid int
	if err == nil {
		pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	if err == nil {
		err = i.inspect(pid)
	}
	if err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "instance %s ended as soon as it had started: %w", i.Name, err).
			WithHint("its log may say why: %s", clip(i.rt.instanceLog(i.Name), 500))
	}
	if i.rt.Flavor != Apptainer {
		if list, err := i.rt.list(ctx, i.Name); err == nil && len(list) == 1 {
			i.Helpers = append(i.Helpers, rootfsHelpers(list[0].Image)...)
		}
	}
	return nil
}

// instanceLog is the end of an instance's error log, or where it is.
func (r *Runtime) instanceLog(name string) string {
	for _, pattern := range r.logFiles(name) {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			if t := logTail(f); t != "" {
				return t
			}
		}
	}
	return "(empty)"
}

// logFiles are patterns of the files that an instance's log is in.
func (r *Runtime) logFiles(name string) []string {
	base := r.ConfigDir
	if base == "" || r.Flavor != Apptainer {
		dir := ".singularity"
		if r.Flavor == Apptainer {
			dir = ".apptainer"
		}
		base = filepath.Join(os.Getenv("HOME"), dir)
	}
	return []string{
		filepath.Join(base, "instances", "logs", "*", "*", name+".err"),
		filepath.Join(base, "instances", "logs", "*", "*", name+".out"),
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
