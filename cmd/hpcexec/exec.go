package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/session"
)

func (in *invocation) execCommand() *cli.Command {
	const run = "Command"
	return &cli.Command{
		Name:      "exec",
		Usage:     "run one command",
		UsageText: "hpcexec exec [-s NAME] [--on PLACE] [--image IMAGE] [flags] -- CMD [ARG…]",
		Description: `Runs CMD in a session, which is made and started where need be, or, without
-s, in a place of its own that is gone after. What follows -- is the argv of
the command, verbatim; write sh -c '…' for a shell line. stdin is empty
without -i or -t. The exit status is the command's.

A session remembers its options: a later exec -s NAME needs none.

EXAMPLES:
   hpcexec exec -- hostname
   hpcexec exec -s train --on slurm --gpus a100:1 --image base.sif -- nvidia-smi
   hpcexec exec -s train -- python3 train.py
   hpcexec exec -s train -i -- tar x < data.tar
   hpcexec exec -s train -t -- vim /notes
   hpcexec exec -s train --json --timeout 10m -- make test`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Category: run, Name: "session", Aliases: []string{"s"}, Usage: "run in the session `NAME`"},
			&cli.StringSliceFlag{Category: run, Name: "env", Aliases: []string{"e"}, Usage: "set `K=V`, or K to its value here; may be repeated"},
			&cli.StringSliceFlag{Category: run, Name: "secret", Usage: "set `NAME` to its value here, or NAME=@FILE to what a 0600 file has, and keep it out of argv and logs; may be repeated"},
			&cli.StringFlag{Category: run, Name: "dir", Aliases: []string{"C"}, Usage: "run in `DIR`"},
			&cli.StringFlag{Category: run, Name: "timeout", Usage: "end the command after `D`, such as 90s or 1h, and exit with 124"},
			&cli.BoolFlag{DisableDefaultText: true, Category: run, Name: "interactive", Aliases: []string{"i"}, Usage: "give the command this stdin"},
			&cli.BoolFlag{DisableDefaultText: true, Category: run, Name: "tty", Aliases: []string{"t"}, Usage: "give the command a terminal, and this stdin"},
			&cli.StringFlag{Category: run, Name: "wait", Usage: "wait at most `D` for a start, queueing included, and exit with 75"},
		}, sessionFlags()...),
		Action: in.exec,
	}
}

func (in *invocation) exec(c *cli.Context) error {
	if !in.dash || len(in.names) > 0 {
		e := usageError("no `--` before the command")
		if in.dash {
			e = usageError("%q stands before `--`", in.names[0])
		}
		return e.WithHint("write `hpcexec exec [flags] -- %s`", strings.Join(append(in.names, in.rest...), " "))
	}
	if len(in.rest) == 0 {
		return usageError("no command after `--`").WithHint("write `hpcexec exec [flags] -- CMD [ARG…]`")
	}
	r := execRun{in: in, tty: c.Bool("tty"), stdin: c.Bool("interactive") || c.Bool("tty")}
	var err error
	if r.want, err = in.want(c, c.String("session")); err != nil {
		return err
	}
	if r.req, err = in.request(c); err != nil {
		return err
	}
	r.req.Args = in.rest
	return r.run(c.Context)
}

// want reads which session is wanted.
func (in *invocation) want(c *cli.Context, name string) (session.Want, error) {
	w := session.Want{Name: name}
	if name != "" || c.IsSet("session") {
		if err := session.CheckName(name); err != nil {
			return w, err
		}
	}
	var err error
	if w.Options, err = sessionOptions(c); err != nil {
		return w, err
	}
	w.Wait, err = durationFlag("wait", c.String("wait"))
	return w, err
}

// request reads what is to run, without argv and streams.
func (in *invocation) request(c *cli.Context) (req hpcexec.Request, err error) {
	req.ID, req.Dir = hpcexec.NewID(), c.String("dir")
	if req.Timeout, err = durationFlag("timeout", c.String("timeout")); err != nil {
		return req, err
	}
	for _, e := range c.StringSlice("env") {
		if !strings.Contains(e, "=") {
			value, ok := os.LookupEnv(e)
			if !ok {
				return req, usageError("-e %s: there is no such variable here", e).WithHint("write -e %s=VALUE", e)
			}
			e += "=" + value
		}
		req.Env = append(req.Env, e)
	}
	for _, s := range c.StringSlice("secret") {
		e, err := readSecret(s)
		if err != nil {
			return req, err
		}
		req.Secrets = append(req.Secrets, e)
	}
	return req, nil
}

// readSecret reads NAME, from the environment, or NAME=@FILE. No error text
// has a value.
func readSecret(arg string) (string, error) {
	name, file, hasFile := strings.Cut(arg, "=")
	if !hpcexec.ValidEnvName(name) {
		return "", usageError("--secret takes NAME or NAME=@FILE").WithHint("a name is letters, digits and _")
	}
	if !hasFile {
		value, ok := os.LookupEnv(name)
		if !ok {
			return "", usageError("--secret %s: there is no such variable here", name).
				WithHint("export %s first, or write --secret %s=@FILE", name, name)
		}
		return name + "=" + value, nil
	}
	if file == "" || file[0] != '@' {
		return "", usageError("--secret %s has a value on the command line, where everybody on this machine can read it", name).
			WithHint("put it into a file that only you can read and write --secret %s=@FILE, or export it", name)
	}
	fi, err := os.Stat(file[1:])
	if err != nil {
		return "", hpcexec.Errorf(hpcexec.ErrInvalid, "--secret %s: %w", name, err)
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return "", usageError("--secret %s: others may read %s", name, file[1:]).WithHint("chmod 600 %s", file[1:])
	}
	b, err := os.ReadFile(file[1:])
	if err != nil {
		return "", hpcexec.Errorf(hpcexec.ErrInvalid, "--secret %s: %w", name, err)
	}
	return name + "=" + strings.TrimSuffix(string(b), "\n"), nil
}

// An execRun is one command on its way.
type execRun struct {
	in         *invocation
	want       session.Want
	req        hpcexec.Request
	stdin, tty bool
}

// run runs the command and ends with its exit code.
func (r *execRun) run(parent context.Context) error {
	in := r.in
	m, err := in.manager()
	if err != nil {
		return err
	}
	if r.want.Options, err = in.options(m, r.want.Name, r.want.Options); err != nil {
		return err
	}
	if err := r.findDir(); err != nil {
		return err
	}
	var capt *capture
	r.req.Stdout, r.req.Stderr = io.Writer(in.out), io.Writer(in.err)
	if in.json {
		capt = newCapture(captureLimit, r.req.Secrets, func() (*os.File, error) { return openLog(m.Dirs.Logs(), r.req.ID) })
		r.req.Stdout, r.req.Stderr = capt.stdout(), capt.stderr()
	}
	var size func() (int, int, bool)
	if r.stdin {
		r.req.Stdin = in.in
		switch terminal := term.IsTerminal(int(in.in.Fd())); {
		case terminal && !r.tty:
			// Not as a descriptor: a command in a process group of its own
			// would be stopped when it reads from the terminal.
			r.req.Stdin = struct{ io.Reader }{in.in}
		case terminal:
			size = func() (int, int, bool) {
				cols, rows, err := term.GetSize(int(in.in.Fd()))
				return cols, rows, err == nil
			}
		}
	}
	if r.tty {
		r.req.TTY = &hpcexec.TTY{Term: os.Getenv("TERM")}
		if size != nil {
			r.req.TTY.Cols, r.req.TTY.Rows, _ = size()
		}
	}
	ctx, relay := startRelay(parent, size)
	resp, err := r.startAndWait(ctx, m, relay)
	relay.stop()
	in.progress.clear()
	return r.finish(m.Dirs, resp, err, capt)
}

// findDir makes the directory of a bare local command absolute, which is the
// caller's where none is given.
func (r *execRun) findDir() error {
	o := r.want.Options
	here := r.want.Name == "" && (o.Place == "" || o.Place == "local") && o.Image == ""
	if !here || filepath.IsAbs(r.req.Dir) {
		return nil
	}
	cwd, err := os.Getwd()
	if err != nil {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "working directory: %w", err)
	}
	r.req.Dir = filepath.Join(cwd, r.req.Dir)
	return nil
}

func (r *execRun) startAndWait(ctx context.Context, m *session.Manager, relay *relay) (hpcexec.Response, error) {
	p, release, err := m.Start(ctx, r.want, r.req)
	if err != nil {
		return hpcexec.Response{}, err
	}
	defer release()
	r.in.progress.clear()
	if relay.size != nil {
		// Only now: while a session starts Ctrl-C must be a signal.
		if restore, err := rawTerminal(r.in.in); err == nil {
			defer restore()
		}
	}
	relay.running(p)
	return p.Wait()
}

// execResult is what exec --json prints, once, at the end.
type execResult struct {
	ID        string     `json:"id"`
	Session   *string    `json:"session"` // null without -s
	Place     string     `json:"place"`
	ExitCode  int        `json:"exit_code"` // that of the process hpcexec, too
	Signal    *string    `json:"signal"`    // "TERM", or null
	TimedOut  bool       `json:"timed_out"`
	Started   *time.Time `json:"started"` // null where it didn't start
	Ended     *time.Time `json:"ended"`
	Stdout    string     `json:"stdout"`
	Stderr    string     `json:"stderr"`
	Output    string     `json:"output"` // both, in order
	Truncated bool       `json:"truncated"`
	Log       *string    `json:"log"` // everything, where it was truncated
	Cwd       *string    `json:"cwd"` // null where it isn't known
	Error     *errorJSON `json:"error"`
}

func (r *execRun) finish(d session.Dirs, resp hpcexec.Response, err error, capt *capture) error {
	code := responseCode(resp)
	if err != nil {
		code = exitCode(err)
	}
	if capt == nil {
		if err != nil {
			return err
		}
		if resp.TimedOut && !r.in.quiet {
			fmt.Fprintf(r.in.err, "hpcexec: the command was ended: it ran longer than --timeout %v\n", r.req.Timeout)
		}
		if r.in.verbose {
			fmt.Fprintf(r.in.err, "hpcexec: %s ended with %d after %v in %s\n", resp.ID, code, resp.Ended.Sub(resp.Started), resp.Place)
		}
		return exitError(code)
	}
	res := execResult{
		ID: r.req.ID, Session: orNull(r.want.Name), Place: resp.Place, ExitCode: code,
		Signal: orNull(resp.Signal), TimedOut: resp.TimedOut, Started: timeOrNull(resp.Started), Ended: timeOrNull(resp.Ended),
		Cwd: orNull(r.cwd(d)),
	}
	if err != nil {
		res.Error = describe(err)
	}
	log, logErr := capt.finish()
	res.Stdout, res.Stderr, res.Output = capt.out.text(), capt.err.text(), capt.both.text()
	res.Truncated, res.Log = capt.truncated(), orNull(log)
	if logErr != nil {
		res.Log = nil
		printError(r.in.err, &errorJSON{Message: "the whole output is not kept: " + logErr.Error()})
	}
	if err := printJSON(r.in.out, res); err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "writing the result: %w", err)
	}
	return exitError(code)
}

// cwd is where the command ran, as far as it is known here.
func (r *execRun) cwd(d session.Dirs) string {
	if r.req.Dir != "" {
		return r.req.Dir
	}
	image := r.want.Options.Image
	if r.want.Name != "" {
		if rec, err := d.Load(r.want.Name); err == nil {
			image = rec.Options.Image
		}
	}
	if image != "" {
		return "/session" // the home inside a container
	}
	return ""
}

// openLog makes the file that has the whole output of a run.
func openLog(dir, id string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(dir, "exec-"+id+".log"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func timeOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
