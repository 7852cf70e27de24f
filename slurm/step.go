package slurm

import (
	"context"
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
	// srun's run has an id of its own: where the node is this machine, the end
	// of srun would else be taken for that of all that the command left.
	s.base = hpcexec.Request{
		Args: append(args, argv...), Env: carried, Secrets: secret,
		Stdin: stdin, Stdout: &s.stdout, Stderr: &s.stderr, TTY: req.TTY, ID: s.id + "-srun",
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
