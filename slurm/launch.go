package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

// kept are the variables of the place's environment that Slurm's programs get.
// All others are dropped: SLURM_* and SBATCH_* of an outer job change what the
// programs do (SLURM_CPU_BIND, SLURM_EXPORT_ENV, SBATCH_PARTITION), format
// variables change what they print, and the rest would travel into the job.
// SLURM_CONF says which cluster it is.
var kept = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SLURM_CONF", "SLURM_CONF_SERVER"}

// scrub is the beginning of every launch script: $1 are the names of the
// variables to keep, with spaces around each. Names are taken from env's
// lines: a value with a newline may give a name that isn't one, and unsetting
// that does no harm. The loop's own names are such as nobody exports.
const scrub = `hpcexec_keep=$1
for hpcexec_name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
  case $hpcexec_keep in *" $hpcexec_name "*) continue ;; esac
  case $hpcexec_name in ` + envPrefix + `*) continue ;; esac
  command unset "$hpcexec_name" 2>/dev/null || :
done
`

// launchScript runs a program with the environment scrubbed. $2 is "utc" for
// programs that print times: local times can't be read where the client is in
// another time zone, or where the clock is set back in autumn.
const launchScript = scrub + `if [ "$2" = utc ]; then TZ=UTC0; LC_ALL=C; export TZ LC_ALL; fi
shift 2
exec "$@"
`

func (c *Client) keepList(more ...string) string {
	return " " + strings.Join(append(append(append([]string(nil), kept...), c.opt.Keep...), more...), " ") + " "
}

// A call is one run of one of Slurm's programs.
type call struct {
	prog  string
	args  []string
	stdin io.Reader
	local bool // keep the place's time zone and locale: they go into the job
}

// An output is what a program printed and how it ended.
type output struct {
	stdout, stderr string
	resp           hpcexec.Response
}

// Bounds on what is kept of a program's output. A squeue line is some 200
// bytes; nobody has 300,000 jobs.
const (
	maxStdout = 64 << 20
	maxStderr = 64 << 10
)

// run runs a program and gives what it printed. A program that fails is an
// error with its kind (errors.go).
func (c *Client) run(ctx context.Context, k call) (string, error) {
	out, err := c.exec(ctx, k)
	if err != nil {
		return out.stdout, err
	}
	return out.stdout, nil
}

func (c *Client) exec(ctx context.Context, k call) (output, error) {
	site, err := c.Site(ctx)
	if err != nil {
		return output{}, err
	}
	path := site.Programs[k.prog]
	if path == "" {
		return output{}, &hpcexec.Error{Kind: hpcexec.ErrUnavailable,
			Text: fmt.Sprintf("%s: no %s in PATH, nor in %s", site.Host, k.prog, strings.Join(c.opt.Dirs, ", ")),
			Err:  &Failure{Program: k.prog, Stderr: "not found", cause: ErrNoProgram}}
	}
	utc := "utc"
	if k.local {
		utc = ""
	}
	args := append([]string{"/bin/sh", "-c", launchScript, "hpcexec", c.keepList(), utc, path}, k.args...)
	out, err := c.runRaw(ctx, hpcexec.Request{Args: args, Stdin: k.stdin, Timeout: c.opt.CallTimeout})
	if err != nil {
		return out, err
	}
	if out.resp.TimedOut {
		return out, timedOut(k.prog, c.opt.CallTimeout)
	}
	if out.resp.ExitCode != 0 {
		return out, classify(k.prog, out.resp.ExitCode, out.stderr, out.stdout)
	}
	return out, nil
}

// runRaw runs a request on the base and collects its output. The deadline is
// kept twice: by the base's Timeout, and here in case the base is stuck.
func (c *Client) runRaw(ctx context.Context, req hpcexec.Request) (output, error) {
	return c.runRawOn(ctx, c.base, req)
}

func (c *Client) runRawOn(ctx context.Context, base hpcexec.Executor, req hpcexec.Request) (output, error) {
	var stdout, stderr capped
	stdout.max, stderr.max = maxStdout, maxStderr
	req.Stdout, req.Stderr = &stdout, &stderr
	inner := ctx
	if req.Timeout > 0 {
		var cancel context.CancelFunc
		inner, cancel = context.WithTimeoutCause(ctx, req.Timeout+10*time.Second, errStuck)
		defer cancel()
	}
	resp, err := base.Run(inner, req)
	if err != nil && ctx.Err() == nil && errors.Is(err, errStuck) {
		err = hpcexec.Errorf(hpcexec.ErrUnknownEnd, "%s gave no answer in %v", req.Args[0], req.Timeout+10*time.Second)
	}
	if err == nil && stdout.over {
		err = hpcexec.Errorf(hpcexec.ErrUnavailable, "more than %d MiB of output", maxStdout>>20)
	}
	return output{stdout.buf.String(), stderr.buf.String(), resp}, err
}

var errStuck = errors.New("no answer in time")

// A capped writer keeps the first max bytes and drops the rest.
type capped struct {
	buf  bytes.Buffer
	max  int
	over bool
}

func (w *capped) Write(p []byte) (int, error) {
	if room := w.max - w.buf.Len(); room < len(p) {
		w.over = true
		w.buf.Write(p[:room])
	} else {
		w.buf.Write(p)
	}
	return len(p), nil
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s
}
