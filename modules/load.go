package modules

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

// What a caller may match with errors.Is, beside the kinds of package hpcexec.
var (
	// ErrNoModules: the place has no module command.
	ErrNoModules = errors.New("no module command")
	// ErrUnknownModule: there is no module of this name.
	ErrUnknownModule = errors.New("unknown module")
)

// Options change how modules are looked for. The zero value is good.
type Options struct {
	// Shell is the login shell to run; empty is "bash".
	Shell string
	// Init are files that define the module command, tried in order where
	// the profile doesn't define it. They come before the usual ones.
	Init []string
	// Timeout bounds each call; 0 is 10 s. A profile can hang.
	Timeout time.Duration
	// MaxOutput bounds what is read of one call; 0 is 8 MiB.
	MaxOutput int
}

// A Client loads modules in the place of an Executor. It is safe for
// concurrent use.
type Client struct {
	base hpcexec.Executor
	o    Options
}

// New makes a Client that runs its shell through base.
func New(base hpcexec.Executor, o Options) *Client {
	o.Shell = cmp.Or(o.Shell, "bash")
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.MaxOutput = cmp.Or(o.MaxOutput, 8<<20)
	o.Init = append(slices.Clone(o.Init), usualInit...)
	return &Client{base, o}
}

// usualInit are where packages of Lmod and Environment Modules put their
// set-up for bash. A batch or ssh shell often hasn't read the profile.
var usualInit = []string{
	"/etc/profile.d/z00_lmod.sh",
	"/etc/profile.d/lmod.sh",
	"/etc/profile.d/modules.sh",
	"/usr/share/lmod/lmod/init/bash",
	"/opt/apps/lmod/lmod/init/bash",
	"/opt/ohpc/admin/lmod/lmod/init/bash",
	"/usr/share/modules/init/bash",
	"/usr/share/Modules/init/bash",
	"/opt/modules/init/bash",
	"/opt/cray/pe/modules/default/init/bash",
	"/opt/cray/pe/lmod/lmod/init/bash",
}

// A Delta is what loading modules changes in the environment of a login shell.
type Delta struct {
	// Set has NAME=VALUE with the whole new value: for PATH that is what was
	// there with the modules' directories before it.
	Set []string
	// Unset are names that are gone.
	Unset []string
	// Loaded are all modules that are loaded then, with versions and in the
	// order of loading, for records.
	Loaded []string
	// Messages is what the modules said.
	Messages string
}

// loadScript is run by a login shell: SHELL -l -c loadScript hpcexec MARK
// NINIT INIT… MODULE…
//
// Descriptor 9 is the caller's standard output; what else is printed, by the
// profile before and the modules now, goes elsewhere. env is looked up before
// a module can change PATH.
const loadScript = setupScript + `
hx_show() {
  printf "%s %s\n" "$hx_mark" "$1" >&9
  if [ -n "$hx_env" ]; then "$hx_env" -0 >&9 || cat /proc/self/environ >&9; else cat /proc/self/environ >&9; fi
}
hx_show before
module load "$@" </dev/null 9>&-
hx_rc=$?
hx_show "after $hx_rc"
printf "%s end\n" "$hx_mark" >&9
`

// setupScript makes sure that there is a module command.
const setupScript = `exec 9>&1 1>&2
hx_mark=$1 hx_n=$2
shift 2
hx_env=$(PATH=/usr/bin:/bin command -v env)
while [ "$hx_n" -gt 0 ]; do
  if ! type module >/dev/null 2>&1 && [ -r "$1" ]; then . "$1" </dev/null 9>&- || :; fi
  shift
  hx_n=$((hx_n - 1))
done
if ! type module >/dev/null 2>&1; then
  printf "%s none\n" "$hx_mark" >&9
  exit 0
fi
`

// Load loads modules in a new login shell and tells what changed. Nothing is
// left loaded.
//
// Errors: ErrInvalid with ErrUnknownModule (the text has close names),
// ErrInvalid where a module refuses to load, with its words; ErrUnavailable
// with ErrNoModules, and where the shell takes too long or fails.
func (c *Client) Load(ctx context.Context, names ...string) (Delta, error) {
	if err := checkNames(names); err != nil {
		return Delta{}, err
	}
	out, err := c.run(ctx, "load modules "+strings.Join(names, " "), loadScript, names)
	if err != nil {
		return Delta{}, err
	}
	a, err := parseLoad(out.stdout, out.mark)
	if err != nil {
		return Delta{}, c.noAnswer(out, err)
	}
	d := diff(a.before, a.after)
	d.Messages = out.stderr
	var missing []string
	for _, n := range names {
		if !isLoaded(d.Loaded, n) {
			missing = append(missing, n)
		}
	}
	// Old releases of Environment Modules exit with 0 in any case. A module
	// can be loaded by an alias, so a missing name alone is no failure.
	if a.rc != 0 || len(missing) > 0 && len(d.Set) == 0 {
		return Delta{}, c.loadError(ctx, names, missing, out.stderr)
	}
	return d, nil
}

// Environ is Load for who wants only the variables.
func (c *Client) Environ(ctx context.Context, names ...string) ([]string, error) {
	d, err := c.Load(ctx, names...)
	return d.Set, err
}

// loadError says why modules couldn't be loaded.
func (c *Client) loadError(ctx context.Context, names, missing []string, stderr string) error {
	text := clip(stderr, 400)
	if len(missing) == 0 {
		missing = names
	}
	if !looksUnknown(stderr) {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "load modules %s: %s", strings.Join(names, " "), cmp.Or(text, "they refuse")).
			WithHint("try it on a login shell: module load %s", strings.Join(names, " "))
	}
	e := hpcexec.Errorf(hpcexec.ErrInvalid, "unknown module %s: %s", strings.Join(missing, ", "), text)
	e.Err = ErrUnknownModule
	// Which names there are is a help; that it can't be told is no error.
	avail, err := c.Avail(ctx)
	if err != nil {
		return e.WithHint("module avail and module spider list what there is")
	}
	near := closeNames(missing[0], avail, 5)
	if len(near) == 0 {
		return e.WithHint("there are %d modules, none of a like name; module spider %s may know what must be loaded before", len(avail), missing[0])
	}
	return e.WithHint("is it one of: %s", strings.Join(near, ", "))
}

// looksUnknown says whether a message is about a module that isn't there, in
// the words of Lmod and of Environment Modules 3 to 5.
func looksUnknown(text string) bool {
	for _, s := range []string{"are unknown", "is unknown", "Unable to locate a modulefile", "cannot be loaded as requested", "No module", "not found"} {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// Which finds a program through modules: the first of the given modules which,
// when loaded, brings the program. Modules that don't exist are passed over. A
// program that a login shell has without any comes with an empty module. The
// error is of kind ErrUnavailable where none has it.
func (c *Client) Which(ctx context.Context, program string, names ...string) (path, module string, err error) {
	if err := checkNames(append([]string{program}, names...)); err != nil {
		return "", "", err
	}
	what := "find " + program + " by modules"
	out, err := c.run(ctx, what, whichScript, append([]string{program}, names...))
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(out.stdout) {
		rest, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), out.mark+" found ")
		if !ok {
			continue
		}
		if module, path, ok = strings.Cut(rest, " "); ok && strings.HasPrefix(path, "/") {
			return path, module, nil
		}
	}
	if !strings.Contains(out.stdout, out.mark+" end") {
		return "", "", c.noAnswer(out, errors.New("the answer isn't complete"))
	}
	return "", "", hpcexec.Errorf(hpcexec.ErrUnavailable, "no module of %s brings %s", strings.Join(names, ", "), program)
}

// whichScript loads each module in a subshell of its own.
const whichScript = setupScript + `
hx_prog=$1
shift
hx_p=$(type -P "$hx_prog")
case $hx_p in
/*) printf "%s found  %s\n" "$hx_mark" "$hx_p" >&9; set -- ;;
esac
for hx_m; do
  hx_p=$(exec 9>&-; module load "$hx_m" >/dev/null 2>&1 </dev/null; hash -r; type -P "$hx_prog")
  case $hx_p in
  /*) printf "%s found %s %s\n" "$hx_mark" "$hx_m" "$hx_p" >&9; break ;;
  esac
done
printf "%s end\n" "$hx_mark" >&9
`

// Avail lists the modules that can be loaded, as NAME/VERSION, in the order
// of `module avail`.
func (c *Client) Avail(ctx context.Context) ([]string, error) {
	out, err := c.run(ctx, "list modules", availScript, nil)
	if err != nil {
		return nil, err
	}
	_, rest, ok := strings.Cut(out.stdout, out.mark+" list\n")
	list, _, ok2 := strings.Cut(rest, out.mark+" end\n")
	if !ok || !ok2 {
		return nil, c.noAnswer(out, errors.New("the answer isn't complete"))
	}
	return parseAvail(list), nil
}

// Both implementations list on standard error unless told otherwise.
const availScript = setupScript + `
printf "%s list\n" "$hx_mark" >&9
module -t avail </dev/null >&9 2>&9
printf "%s end\n" "$hx_mark" >&9
`

type answer struct {
	stdout, stderr, mark string
}

// run runs a script in a login shell and returns its answer.
func (c *Client) run(ctx context.Context, what, script string, args []string) (answer, error) {
	mark := "hpcexec-" + hpcexec.NewID()
	stdout, stderr := &limited{max: c.o.MaxOutput}, &limited{max: 64 << 10}
	argv := []string{c.o.Shell, "-l", "-c", script, "hpcexec", mark, fmt.Sprint(len(c.o.Init))}
	argv = append(append(argv, c.o.Init...), args...)
	resp, err := c.base.Run(ctx, hpcexec.Request{
		Args:    argv,
		Stdout:  stdout,
		Stderr:  stderr,
		Timeout: c.o.Timeout,
	})
	a := answer{stdout.String(), stderr.String(), mark}
	switch {
	case err != nil:
		return a, fmt.Errorf("%s: %w", what, err)
	case resp.TimedOut:
		return a, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: a login shell took longer than %v", what, c.o.Timeout).
			WithHint("something in the profile hangs (/etc/profile, ~/.bash_profile): try `%s -lc true` on that machine", c.o.Shell)
	case resp.ExitCode == 127 && !strings.Contains(a.stdout, mark):
		e := hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: there is no %s", what, c.o.Shell)
		e.Err = ErrNoModules
		return a, e
	case strings.Contains(a.stdout, mark+" none\n"):
		e := hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: there is no module command", what)
		e.Err = ErrNoModules
		return a, e.WithHint("a login shell doesn't define it; if the site has modules, put the file that does in the configuration (modules init)")
	case stdout.cut:
		return a, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: the answer is longer than %d bytes", what, c.o.MaxOutput)
	}
	return a, nil
}

// noAnswer is the error of a shell that didn't come to the end of a script.
func (c *Client) noAnswer(a answer, err error) error {
	return hpcexec.Errorf(hpcexec.ErrUnavailable, "modules: the login shell gave no answer: %w: %s", err, clip(a.stderr, 300)).
		WithHint("the profile may end the shell or start another: try `%s -lc 'echo ok'` on that machine", c.o.Shell)
}

// limited is a buffer that takes no more than max bytes.
type limited struct {
	bytes.Buffer
	max int
	cut bool
}

func (l *limited) Write(p []byte) (int, error) {
	if room := l.max - l.Len(); len(p) > room {
		l.cut = true
		l.Buffer.Write(p[:max(room, 0)])
		return len(p), nil // go on: the shell must not die of SIGPIPE
	}
	return l.Buffer.Write(p)
}

// checkNames refuses what isn't the name of a module or program: an option,
// say, or a pattern. They are arguments, never part of the script.
func checkNames(names []string) error {
	if len(names) == 0 {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "no module given")
	}
	for _, n := range names {
		bad := func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._+-/@:=~", r))
		}
		if n == "" || n[0] == '-' || strings.ContainsFunc(n, bad) {
			return hpcexec.Errorf(hpcexec.ErrInvalid, "%q is not the name of a module", n)
		}
	}
	return nil
}

func clip(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "") + "…"
	}
	return s
}
