package slurm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hpcexec/hpcexec"
)

// A step is one command in an Allocation.
type step struct {
	a    *Allocation
	req  hpcexec.Request // as it was asked for
	base hpcexec.Request // what the base gets
	word string          // of the marks, and the value of stepVar
	id   string

	stdout, stderr marked

	started  chan struct{} // closed when the command begins
	complete chan struct{} // closed when it has ended and its output is whole
	over     chan struct{} // closed when run returns
	pipe     chan struct{} // has something when the command is to get SIGPIPE

	mu      sync.Mutex
	process hpcexec.Process // of the base, where there is a terminal
	begun   time.Time
	ended   time.Time
	node    string
	end     bool // the command's end was reported
	out     bool // its stdout is whole
	code    int
	timeout bool
	dir     string // "missing" or "denied": it didn't run
	srun    int    // srun's exit code; -1: not known
	killed  error  // the cause of ctx, where that ended the command
}

func (a *Allocation) newStep(ctx context.Context, req hpcexec.Request) (*step, error) {
	if err := req.Check(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if req.TTY != nil && !a.Properties().Terminal {
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "%s: no terminal here", a.place())
	}
	site, err := a.c.Site(ctx)
	if err != nil {
		return nil, err
	}
	if site.Programs["srun"] == "" {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: no srun in PATH, nor in %s", site.Host, strings.Join(a.c.opt.Dirs, ", "))
	}
	s := &step{
		a: a, req: req, word: hpcexec.NewID(), id: req.ID, srun: -1,
		started: make(chan struct{}), complete: make(chan struct{}), over: make(chan struct{}), pipe: make(chan struct{}, 1),
	}
	if s.id == "" {
		s.id = hpcexec.NewID()
	}
	if err := s.build(ctx, site); err != nil {
		return nil, err
	}
	return s, nil
}

// build makes the request to the base.
func (s *step) build(ctx context.Context, site Site) error {
	req := s.req
	env := append(s.a.legacyGPUs(ctx, site), req.Env...)
	if req.TTY != nil && req.TTY.Term != "" {
		env = append([]string{"TERM=" + req.TTY.Term}, env...)
	}
	lines, carried, secret, argv, err := restore(env, req.Secrets)
	if err != nil {
		return err
	}
	form := ""
	if len(argv) > 0 || strings.HasPrefix(req.Args[0], "-") {
		// exec would take a name that begins with - for an option, in bash.
		if strings.Contains(req.Args[0], "=") {
			return hpcexec.Errorf(hpcexec.ErrInvalid, "a command with = in its name can't have the variables %q in a Slurm step", argv)
		}
		form = "e"
	}
	argv = append(argv, req.Args...)
	if slices.Contains(argv, ":") {
		form = "x" + form
		for i, arg := range argv {
			argv[i] = "x" + arg
		}
	}

	merge := ""
	if req.TTY != nil || sameWriter(req.Stdout, req.Stderr) {
		merge = "merge"
	}
	var opts []string
	tty := ""
	switch {
	case req.TTY != nil:
		opts, tty = append(opts, "--pty"), "tty"
	default:
		opts = append(opts, "--error=/dev/fd/3")
		if req.Stdin == nil {
			opts = append(opts, "--input=none")
		}
	}
	naps := strconv.Itoa(int(max(0, s.a.opt.Grace) / (50 * time.Millisecond)))
	stdin := req.Stdin
	if req.TTY != nil {
		// What is typed before srun has set its terminal to raw would be
		// edited and echoed there, and an end of file would never get far.
		stdin = &laterReader{s: s, r: req.Stdin}
	}
	opts = append(opts, "/bin/sh", "-c", buildStepScript(lines), "hpcexec", s.word, req.Dir, seconds(req.Timeout), naps, merge, s.id, form)

	args := []string{"/bin/sh", "-c", launchStepScript, "hpcexec", s.a.c.keepList(), s.word, tty}
	args = append(args, s.a.srunArgs(site, s.a.opt.Node, opts...)...)
	s.base = hpcexec.Request{
		Args: append(args, argv...), Env: carried, Secrets: secret,
		Stdin: stdin, Stdout: &s.stdout, Stderr: &s.stderr, TTY: req.TTY, ID: s.id,
	}
	s.stdout = marked{mark: []byte(markBytes + s.word), told: s.told, out: req.Stdout, fail: s.broken}
	s.stderr = marked{mark: []byte(markBytes + s.word), told: s.told, out: req.Stderr, fail: s.broken}
	if merge != "" {
		s.stderr.out = nil
	}
	if req.Stdout != nil && req.Stderr != nil && merge == "" && !comparable(req.Stdout, req.Stderr) {
		s.stdout.lock = new(sync.Mutex) // nobody can tell whether they are one
		s.stderr.lock = s.stdout.lock
	}
	return nil
}

// A laterReader is a Stdin that begins when the command has begun. At its end
// the terminal on the way types the end-of-file key once, for it is raw; the
// one on the node wants it twice in the middle of a line.
type laterReader struct {
	s    *step
	r    io.Reader // nil: nothing more
	last byte      // of what was read
	key  bool      // the key was added
}

func (l *laterReader) Read(p []byte) (int, error) {
	select {
	case <-l.s.started:
	case <-l.s.over:
	}
	if l.r == nil {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := l.r.Read(p)
	if n > 0 {
		l.last = p[n-1]
	}
	if err == nil {
		return n, nil
	}
	if l.last == 0 || l.last == '\n' || l.key {
		l.r = nil
		return n, nil
	}
	l.key, l.r = true, strings.NewReader("\x04") // Ctrl-D, with the next Read
	return n, nil
}

// sameWriter says whether both outputs go to one writer, which then gets them
// in their order.
func sameWriter(a, b io.Writer) bool {
	return a != nil && b != nil && comparable(a, b) && a == b
}

func comparable(a, b io.Writer) bool {
	return reflect.TypeOf(a).Comparable() && reflect.TypeOf(b).Comparable()
}

// seconds is a time-out as sleep takes it: whole seconds where they are, else
// with a fraction, which sleeps that don't know one make a second longer.
func seconds(d time.Duration) string {
	if d <= 0 {
		return "0"
	}
	if d >= time.Minute || d%time.Second == 0 {
		return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
	}
	return strconv.FormatFloat(max(d.Seconds(), 0.001), 'f', 3, 64)
}

// broken asks for SIGPIPE. It is called by a writer, so it doesn't wait.
func (s *step) broken() {
	select {
	case s.pipe <- struct{}{}:
	default:
	}
}

// told takes a mark. Both outputs have marks, so it is called by two.
func (s *step) told(line string) {
	words := strings.Fields(line)
	s.mu.Lock()
	defer s.mu.Unlock()
	wasDone := s.end && s.out
	switch {
	case len(words) == 0:
	case words[0] == "start" && s.begun.IsZero():
		s.begun = time.Now()
		if len(words) > 2 {
			s.node = words[2]
		}
		close(s.started)
	case words[0] == "end" && len(words) > 1 && !s.end:
		code, err := strconv.Atoi(words[1])
		if err != nil {
			return // as good as none
		}
		s.end, s.code, s.ended = true, code, time.Now()
		s.timeout = len(words) > 2 && words[2] == "timeout"
	case words[0] == "out":
		s.out = true
	case words[0] == "dir" && len(words) > 1:
		s.dir = words[1]
	case words[0] == "srun" && len(words) > 1:
		if code, err := strconv.Atoi(words[1]); err == nil {
			s.srun = code
		}
	}
	if s.end && s.out && !wasDone {
		close(s.complete)
	}
}

func (s *step) hasStarted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.begun.IsZero()
}

// linger is how long srun may take to end after the command's output is
// complete. It takes longer where a background process holds the output.
const linger = 300 * time.Millisecond

var (
	errLinger  = errors.New("the command has ended")
	errNoStart = errors.New("the step didn't begin in time")
	errOverdue = errors.New("the command's time was over long ago")
)

// run sees the step to its end.
func (s *step) run(ctx context.Context) (hpcexec.Response, error) {
	defer close(s.over)
	inner, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	var signals sync.WaitGroup
	defer signals.Wait()
	defer stop(nil)
	done := make(chan error, 1)
	go func() { done <- s.runBase(inner) }()

	noStart := time.NewTimer(s.a.opt.StartTimeout)
	defer noStart.Stop()
	var lingering, overdue <-chan time.Time
	started, complete, cancelled, pipe := s.started, s.complete, ctx.Done(), s.pipe
	for {
		select {
		case err := <-done:
			return s.judge(ctx, err)
		case <-started:
			started = nil
			noStart.Stop()
			if s.req.Timeout > 0 {
				// The node keeps the time; this is for a node that is stuck.
				t := time.NewTimer(s.req.Timeout + max(0, s.a.opt.Grace) + 30*time.Second)
				defer t.Stop()
				overdue = t.C
			}
		case <-complete:
			complete = nil
			t := time.NewTimer(linger)
			defer t.Stop()
			lingering = t.C
		case <-lingering:
			stop(errLinger)
			lingering = nil
		case <-noStart.C:
			if !s.hasStarted() {
				stop(errNoStart)
			}
		case <-overdue:
			stop(errOverdue)
			overdue = nil
		case <-pipe:
			pipe = nil
			signals.Go(func() { s.a.signal(inner, s.word, s.nodeName(), "PIPE") })
		case <-cancelled:
			cancelled = nil
			if s.kill(ctx) {
				s.cancel(ctx, stop, done)
			}
		}
	}
}

func (s *step) nodeName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node != "" {
		return s.node
	}
	return s.a.opt.Node
}

// runBase runs srun. With a terminal it is started, so that it can be resized.
func (s *step) runBase(ctx context.Context) error {
	starter, ok := s.a.base.(hpcexec.Starter)
	if s.req.TTY == nil || !ok {
		_, err := s.a.base.Run(ctx, s.base)
		return err
	}
	p, err := starter.Start(ctx, s.base)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()
	_, err = p.Wait()
	return err
}

// kill says whether ctx ends the command: one that has ended has ended.
func (s *step) kill(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end {
		return false
	}
	s.killed = context.Cause(ctx)
	return true
}

// cancel ends the command and then srun. A step is made for it, since srun
// kills its own at once, without SIGTERM, without those that left the process
// tree, and without the last line of output.
func (s *step) cancel(ctx context.Context, stop context.CancelCauseFunc, done chan error) {
	inner, release := context.WithTimeout(context.WithoutCancel(ctx), max(0, s.a.opt.Grace)+20*time.Second)
	defer release()
	select {
	case <-s.started:
	case err := <-done:
		done <- err
		return
	case <-time.After(2 * time.Second):
		// It hangs on its way. An srun that is ended just when it launches
		// leaves the command running, so it is looked for afterwards.
		stop(context.Cause(ctx))
		err := <-done
		done <- err
		s.a.signal(inner, s.word, s.nodeName(), "END")
		return
	}
	if err := s.a.signal(inner, s.word, s.nodeName(), "END"); err != nil {
		s.a.c.log.Warn("the command couldn't be ended gently, so its step is killed", "job", s.a.id.String(), "err", err)
		stop(context.Cause(ctx))
		return
	}
	select {
	case err := <-done:
		done <- err
	case <-s.complete:
	case <-inner.Done():
		stop(context.Cause(ctx))
	case <-time.After(3 * time.Second):
		stop(context.Cause(ctx))
	}
}

// judge says how the step ended. err is the base's.
func (s *step) judge(ctx context.Context, err error) (hpcexec.Response, error) {
	s.stdout.flush()
	s.stderr.flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := hpcexec.Response{
		Place: s.a.place(), ID: s.id, Started: s.begun, Ended: s.ended,
		ExitCode: s.code, TimedOut: s.timeout,
	}
	if resp.Ended.IsZero() {
		resp.Ended = time.Now()
	}
	log := string(s.stderr.log) + string(s.stdout.log) // with a terminal all is one
	switch {
	case s.killed != nil:
		return resp, s.killed
	case s.end && (s.out || err == nil):
		return resp, nil
	case s.dir == "denied":
		return resp, hpcexec.Errorf(hpcexec.ErrInvalid, "%s: directory %s: permission denied", s.a.place(), s.req.Dir)
	case s.dir != "":
		return resp, hpcexec.Errorf(hpcexec.ErrInvalid, "%s: directory %s: no such directory on the node", s.a.place(), s.req.Dir)
	case errors.Is(err, errNoStart):
		return resp, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: no step could be made in %v", s.a.place(), s.a.opt.StartTimeout).
			WithHint("another step may hold what the command needs: `squeue -s -j %s` lists them", s.a.id.local())
	case errors.Is(err, errOverdue):
		return resp, hpcexec.Errorf(hpcexec.ErrUnknownEnd, "%s: the node didn't end the command when its time was over", s.a.place())
	case err != nil && s.begun.IsZero():
		return resp, err
	case err != nil:
		return resp, hpcexec.Errorf(hpcexec.ErrUnknownEnd, "%s: srun was lost: %w", s.a.place(), errors.New(err.Error()))
	case s.begun.IsZero():
		return resp, s.notStarted(ctx, log)
	}
	return resp, s.lost(ctx, log)
}

// notStarted is the error of a step that never began.
func (s *step) notStarted(ctx context.Context, log string) error {
	err := classify("srun", s.srun, log, "")
	var f *Failure
	if errors.As(err, &f) && f.cause != nil {
		return err
	}
	if strings.Contains(log, "Application launch failed") || strings.Contains(log, "Unable to create step") {
		return err
	}
	// Killed or lost before the first word: the command may have begun.
	return s.lost(ctx, log)
}

// lost is the error of a step that began and didn't tell its end.
func (s *step) lost(ctx context.Context, log string) error {
	all := log + "\n" + string(s.stderr.tail)
	why := "the step was lost"
	for _, sign := range []struct{ text, why string }{
		{"DUE TO TIME LIMIT", "the job reached its time limit"},
		{"DUE TO PREEMPTION", "the job was ended in favour of one of higher priority"},
		{"DUE TO JOB REQUEUE", "the job was put back in the queue"},
		{"DUE TO NODE FAILURE", "the node failed"},
		{"Node failure on", "the node failed"},
		{"oom-kill", "the job used more memory than it had asked for"},
		{"exceeded memory limit", "the job used more memory than it had asked for"},
		{"CANCELLED AT", "the job or the step was cancelled"},
	} {
		if strings.Contains(all, sign.text) {
			why = sign.why
			break
		}
	}
	look, stop := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer stop()
	state := ""
	if st, err := s.a.c.Job(look, s.a.id); err == nil {
		state = fmt.Sprintf("; the job %s", st.State.Words())
	}
	e := hpcexec.Errorf(hpcexec.ErrUnknownEnd, "%s: %s under the command, whose end is not known%s", s.a.place(), why, state)
	if line := firstLine(log); line != "" {
		return e.WithHint("srun said: %s", plain(line))
	}
	return e
}

// A stepProcess is a command that Start started.
type stepProcess struct {
	step *step
	done chan struct{}
	resp hpcexec.Response
	err  error
}

// Wait waits for the end.
func (p *stepProcess) Wait() (hpcexec.Response, error) {
	<-p.done
	return p.resp, p.err
}

// Signal sends a signal to all processes of the command, by a step of its own.
func (p *stepProcess) Signal(name string) error {
	if _, ok := hpcexec.SignalNumber(name); !ok {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "signal %q is not like TERM", name)
	}
	select {
	case <-p.done:
		return hpcexec.Errorf(hpcexec.ErrInvalid, "the command has ended")
	case <-p.step.complete:
		return hpcexec.Errorf(hpcexec.ErrInvalid, "the command has ended")
	default:
	}
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	return p.step.a.signal(ctx, p.step.word, p.step.nodeName(), name)
}

// Resize sets the size of the terminal.
func (p *stepProcess) Resize(cols, rows int) error {
	p.step.mu.Lock()
	process := p.step.process
	p.step.mu.Unlock()
	if process == nil {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "the command has no terminal")
	}
	return process.Resize(cols, rows)
}
