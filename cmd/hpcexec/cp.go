package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/docker/go-units"
	"github.com/urfave/cli/v2"

	"github.com/hpcexec/hpcexec/internal/files"
	"github.com/hpcexec/hpcexec/internal/place"
	"github.com/hpcexec/hpcexec/internal/session"
)

const whereHelp = `NAME:PATH is in the session NAME, which is started where need be, and
ssh:HOST:PATH on a bare host. Such a PATH is relative to the home directory
there. Everything else is a local path; write ./a:b for one with a colon before
any slash.`

func (in *invocation) cpCommand() *cli.Command {
	return &cli.Command{
		Name:      "cp",
		Usage:     "copy files and directories to or from a session",
		UsageText: "hpcexec cp [--verify] SRC… DST",
		Description: `Copies SRC, with all that is in it where it is a directory. ` + whereHelp + `

Where DST is a directory, the copy goes into it under SRC's name, else DST is
the copy's name, as with cp -r. SRC/. stands for what is in SRC.

Modes, times, holes and symbolic links are kept; links are never followed.
Files appear under their names when they are whole. A large file that was cut
is kept in part, as .NAME.….hpcexec-part beside its name, and the same command
goes on with it, after a look at its checksum. What can't be read or written is
listed at the end, with exit code 125; all else is copied.

EXAMPLES:
   hpcexec cp data train:                      # ~/data in the session
   hpcexec cp data/. train:in                  # what is in data, into in
   hpcexec cp train:out/model.pt .
   hpcexec cp train:out results                # results/out if results is there
   hpcexec cp big.tar ssh:gpu1:/scratch/ada/ --verify
   hpcexec cp train:out/model.pt eval:in/`,
		Flags:  []cli.Flag{verifyFlag()},
		Action: in.cp,
	}
}

func verifyFlag() cli.Flag {
	return &cli.BoolFlag{DisableDefaultText: true, Name: "verify", Usage: "read what was written again and compare its SHA-256 with the source's; always done for what was cut"}
}

func (in *invocation) cp(c *cli.Context) error {
	names, err := in.args(2, 10000, "SRC… and DST")
	if err != nil {
		return err
	}
	return in.copyAll(c.Context, names[:len(names)-1], names[len(names)-1], files.Options{Verify: c.Bool("verify")})
}

// A where is one end of a copy, as it stands on the command line.
type where struct {
	arg  string
	want *session.Want // nil: here
	path string
}

// parseWhere reads NAME:PATH, ssh:[USER@]HOST[:PORT]:PATH or a local path.
func parseWhere(arg string) (where, error) {
	colon := strings.IndexByte(arg, ':')
	if arg == "" {
		return where{}, usageError("a path is empty")
	}
	if slash := strings.IndexByte(arg, '/'); colon < 0 || slash >= 0 && slash < colon {
		return where{arg: arg, path: arg}, nil
	}
	name, path := arg[:colon], arg[colon+1:]
	w := session.Want{Name: name}
	if name == "ssh" {
		host, rest, ok := cutHost(path)
		if !ok {
			return where{}, usageError("%q has no path", arg).WithHint("write ssh:HOST:PATH; the home directory there is ssh:HOST:")
		}
		w, path = session.Want{Options: session.Options{Place: "ssh:" + host}}, rest
		if _, err := place.Parse(w.Options.Place); err != nil {
			return where{}, err
		}
	} else if err := session.CheckName(name); err != nil {
		return where{}, usageError("%q: %w", arg, err).WithHint("write NAME:PATH with the name of a session, or ./%s for a local path", arg)
	}
	if path == "~" {
		path = ""
	}
	path = strings.TrimPrefix(path, "~/")
	if path == "" {
		path = "."
	}
	return where{arg, &w, path}, nil
}

// cutHost takes [USER@]HOST[:PORT] from the front of what follows "ssh:".
func cutHost(s string) (host, path string, ok bool) {
	from := 0
	if i := strings.IndexByte(s, ']'); strings.Contains(s[:max(i, 0)], "[") {
		from = i // an IPv6 address
	}
	i := strings.IndexByte(s[from:], ':')
	if i < 0 {
		return "", "", false
	}
	host, path = s[:from+i], s[from+i+1:]
	if port, rest, ok := strings.Cut(path, ":"); ok {
		if _, err := strconv.ParseUint(port, 10, 16); err == nil {
			return host + ":" + port, rest, true
		}
	}
	return host, path, true
}

// end makes the end of a copy.
func (in *invocation) end(m *session.Manager, w where) (files.End, error) {
	e := files.End{Name: w.arg, Path: w.path}
	if w.want == nil {
		return e, nil
	}
	want := *w.want
	if want.Name != "" {
		if _, err := m.Dirs.Load(want.Name); err != nil {
			return e, err
		}
	}
	var err error
	if want.Options, err = in.options(m, want.Name, want.Options); err != nil {
		return e, err
	}
	if want.Name == "" {
		want.Options = session.Options{Place: want.Options.Place} // the config's defaults are for sessions
	}
	e.Open = func(ctx context.Context) (io.ReadWriteCloser, error) {
		rw, err := m.OpenFiles(ctx, want)
		in.progress.clear()
		return rw, err
	}
	return e, nil
}

// copyResult is what cp and sync print with --json, one for each source.
type copyResult struct {
	Source      string        `json:"source"`
	Destination string        `json:"destination"`
	Files       int64         `json:"files"`
	Directories int64         `json:"directories"`
	Links       int64         `json:"links"`
	Bytes       int64         `json:"bytes"`
	Resumed     int64         `json:"resumed_bytes"`
	Skipped     int64         `json:"skipped"`
	Deleted     int64         `json:"deleted"`
	Seconds     float64       `json:"seconds"`
	DryRun      bool          `json:"dry_run"`
	Failed      []pathProblem `json:"failed"`
	FailedCount int64         `json:"failed_count"`
	Special     []pathProblem `json:"special"`
	Partial     *string       `json:"partial"`
	Actions     []copyAction  `json:"actions"`
	Error       *errorJSON    `json:"error"`
}

type pathProblem struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

type copyAction struct {
	Op   string `json:"op"` // "copy" or "delete"
	Path string `json:"path"`
}

// copyAll copies each source to dst.
func (in *invocation) copyAll(parent context.Context, srcs []string, dst string, opts files.Options) error {
	m, err := in.manager()
	if err != nil {
		return err
	}
	to, err := parseWhere(dst)
	if err != nil {
		return err
	}
	if len(srcs) > 1 && !strings.HasSuffix(to.path, "/") {
		to.path += "/" // all of them can't have one name
	}
	toEnd, err := in.end(m, to)
	if err != nil {
		return err
	}
	var ends []files.End
	for _, src := range srcs {
		from, err := parseWhere(src)
		if err == nil && from.want == nil && to.want == nil {
			err = usageError("%s and %s are both here", src, dst).WithHint("one of them has to be NAME:PATH or ssh:HOST:PATH")
		}
		if err != nil {
			return err
		}
		e, err := in.end(m, from)
		if err != nil {
			return err
		}
		ends = append(ends, e)
	}
	return in.interruptible(parent, func(ctx context.Context) error {
		var last error
		for _, from := range ends {
			err := in.copyOne(ctx, from, toEnd, opts)
			if err != nil && (ctx.Err() != nil || !isExit(err)) {
				return err
			}
			if err != nil {
				last = err
			}
		}
		return last
	})
}

func isExit(err error) bool {
	var exit exitError
	return errors.As(err, &exit)
}

// copyOne copies one source and prints what there is to say.
func (in *invocation) copyOne(ctx context.Context, from, to files.End, opts files.Options) error {
	res := copyResult{Source: from.Name, Destination: to.Name, DryRun: opts.DryRun, Actions: []copyAction{}}
	opts.Action = func(op, path string) {
		switch {
		case in.json && len(res.Actions) < maxActions:
			res.Actions = append(res.Actions, copyAction{op, safeText([]byte(path))})
		case !in.json && (opts.DryRun || in.verbose):
			fmt.Fprintf(in.out, "%s %s\n", op, showPath(path))
		}
	}
	bar := newCopyBar(in.err, in.quiet || in.json || opts.DryRun)
	opts.Progress = bar.show
	sum, err := files.Copy(ctx, from, to, opts)
	bar.end()
	var partial *files.PartialError
	if in.json {
		res.fill(sum)
		if err != nil {
			res.Error = describe(err)
		}
		if e := printJSON(in.out, res); e != nil {
			return e
		}
		if err != nil {
			return exitError(exitCode(err))
		}
		return nil
	}
	for _, p := range sum.Special {
		fmt.Fprintf(in.err, "hpcexec: %s: left out: %s\n", showPath(p.Path), safeText([]byte(p.Reason)))
	}
	for _, p := range sum.Failed {
		fmt.Fprintf(in.err, "hpcexec: %s: %s\n", showPath(p.Path), safeText([]byte(p.Reason)))
	}
	if sum.Partial != "" {
		fmt.Fprintf(in.err, "hpcexec: what is there of %s is kept: the same command goes on with it\n", showPath(sum.Partial))
	}
	if err == nil || errors.As(err, &partial) {
		if in.verbose || opts.DryRun {
			fmt.Fprintf(in.err, "hpcexec: %s\n", summaryText(sum, opts.DryRun))
		}
	}
	if partial != nil {
		printError(in.err, &errorJSON{Message: fmt.Sprintf("%d paths of %s are not copied", partial.Count, from.Name)})
		return exitError(exitCode(err))
	}
	return err
}

// showPath is a path for a line of text: names from a container may be anything.
func showPath(path string) string {
	for _, r := range path {
		if !strconv.IsPrint(r) || r == utf8.RuneError {
			return strconv.Quote(path)
		}
	}
	return path
}

// maxActions bounds what --json tells of a dry run.
const maxActions = 100000

func (r *copyResult) fill(s files.Summary) {
	r.Files, r.Directories, r.Links, r.Bytes, r.Resumed = s.Files, s.Dirs, s.Links, s.Bytes, s.Resumed
	r.Skipped, r.Deleted, r.Seconds, r.FailedCount = s.Skipped, s.Deleted, s.Took.Seconds(), s.FailedCount
	r.Failed, r.Special = pathProblems(s.Failed), pathProblems(s.Special)
	r.Partial = orNull(safeText([]byte(s.Partial)))
}

func pathProblems(list []files.Problem) []pathProblem {
	out := []pathProblem{}
	for _, p := range list {
		out = append(out, pathProblem{safeText([]byte(p.Path)), safeText([]byte(p.Reason))})
	}
	return out
}

// summaryText is the summary in one line.
func summaryText(s files.Summary, dry bool) string {
	verb := "copied"
	if dry {
		verb = "would copy"
	}
	text := fmt.Sprintf("%s %d files, %s", verb, s.Files, units.BytesSize(float64(s.Bytes)))
	if s.Skipped > 0 {
		text += fmt.Sprintf("; %d are the same", s.Skipped)
	}
	if s.Deleted > 0 {
		text += fmt.Sprintf("; %d deleted", s.Deleted)
	}
	if s.Resumed > 0 {
		text += fmt.Sprintf("; %s were there", units.BytesSize(float64(s.Resumed)))
	}
	if !dry {
		text += fmt.Sprintf("; %.1f s", s.Took.Seconds())
	}
	return text
}
