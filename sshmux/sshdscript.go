package sshmux

import (
	"strconv"
	"strings"

	"github.com/hpcexec/hpcexec"
)

// A plain SSH server takes one line and gives it to the user's login shell,
// whichever that is. The line must mean the same to all of them, and everybody
// on the host can read it. So it only reads another line from stdin and
// evaluates that: environment, secrets and argv are never in an argv before
// they are the command's own.
//
// A POSIX shell reads a line from a pipe byte by byte, so that what follows is
// the command's stdin.
const (
	bootLine = `exec /bin/sh -c 'IFS= read -r hpcexec_x && eval "$hpcexec_x"'`

	// On a terminal, the line must not be echoed: it is sent once %s has
	// been seen.
	bootTTYLine = `exec /bin/sh -c 'hpcexec_t=$(stty -g) && stty raw -echo && printf %s && IFS= read -r hpcexec_x && stty "$hpcexec_t" && eval "$hpcexec_x"'`
)

// What a script says before the command takes over, after its token: its pid,
// which is that of the command and of its process group, or why there will be
// no command.
const (
	tokenPrefix = "hpcexec-"

	saysPID   = "pid"
	saysNoDir = "dir"
)

// maxArg is the length of a single argument or variable that Linux takes
// (MAX_ARG_STRLEN), the final NUL included.
const maxArg = 128 << 10

// A script is the line that runs a command.
type script struct {
	token string // begins what it says, on stdout and on stderr
	mark  string // NAME=VALUE that marks the command's processes
	args  []string
	env   []string // no name twice
	dir   string

	merged bool // stderr goes where stdout goes
}

// shellOnly are variables that shells make something else of than what they
// are given, or can't change. env(1) sets these.
func shellOnly(name string) bool {
	switch name {
	case "UID", "EUID", "GID", "EGID", "PPID", "GROUPS", "SHELLOPTS", "SHLVL", "_", "OPTIND", "LINENO",
		"RANDOM", "SRANDOM", "SECONDS", "HISTCMD", "HISTSIZE", "HISTFILESIZE", "EPOCHSECONDS", "EPOCHREALTIME",
		"FUNCNAME", "FUNCNEST", "DIRSTACK", "PIPESTATUS":
		return true
	}
	return strings.HasPrefix(name, "BASH")
}

// line is the script as one line, its end included. Errors are of kind
// hpcexec.ErrInvalid.
func (s *script) line() (string, error) {
	var b lineWriter
	b.WriteString("unset hpcexec_x hpcexec_t; ")
	if s.dir != "" {
		b.set("hpcexec_v", s.dir)
		b.WriteString(`; cd -- "$hpcexec_v" 2>/dev/null || { printf '` + s.token + " " + saysNoDir + `\n'; exit 0; }; `)
		b.set("PWD", s.dir)
		b.WriteString("; export PWD; ")
	}
	var special []string
	for _, e := range append(s.env, s.mark) {
		name, value, _ := strings.Cut(e, "=")
		if len(e) >= maxArg {
			return "", hpcexec.Errorf(hpcexec.ErrInvalid, "environment variable %s is %d bytes long, more than %d", name, len(value), maxArg-1)
		}
		if shellOnly(name) {
			special = append(special, e)
			continue
		}
		b.set(name, value)
		b.WriteString("; export " + name + "; ")
	}
	words := s.args
	if len(special) > 0 {
		if strings.Contains(s.args[0], "=") || strings.HasPrefix(s.args[0], "-") {
			return "", hpcexec.Errorf(hpcexec.ErrInvalid, "program %q can't be run with the variable %s by a plain SSH server", s.args[0], special[0])
		}
		words = append(append([]string{"env"}, special...), s.args...)
	}
	b.WriteString("set --; ")
	for i, a := range words {
		if len(a) >= maxArg {
			return "", hpcexec.Errorf(hpcexec.ErrInvalid, "argument %d is %d bytes long, more than %d", i, len(a), maxArg-1)
		}
		if plainText(a) {
			b.WriteString(`set -- "$@" ` + quotePlain(a) + "; ")
		} else {
			b.set("hpcexec_v", a)
			b.WriteString(`; set -- "$@" "$hpcexec_v"; `)
		}
	}
	b.WriteString("unset hpcexec_v; printf '" + s.token + "\\n' >&2; printf '" + s.token + " " + saysPID + ` %s\n' "$$"; `)
	if s.merged {
		b.WriteString("exec 2>&1; ")
	}
	b.WriteString(`exec "$@"` + "\n")
	return b.String(), nil
}

// checkSecrets refuses secrets that would have to be in an argv for a moment.
func checkSecrets(secrets []string) error {
	for _, e := range secrets {
		if name, _, _ := strings.Cut(e, "="); shellOnly(name) {
			return hpcexec.Errorf(hpcexec.ErrInvalid, "a plain SSH server can't be given the secret %s without showing it: shells have a variable of this name", name)
		}
	}
	return nil
}

// A lineWriter writes shell text that has no newline, whatever the values.
type lineWriter struct{ strings.Builder }

// set assigns any value but NUL to a variable.
func (b *lineWriter) set(name, value string) {
	if plainText(value) {
		b.WriteString(name + "=" + quotePlain(value))
		return
	}
	// A command substitution drops newlines at the end: hence the dot.
	b.WriteString(name + "=$(printf '%b.' '" + octal(value) + "'); " + name + "=${" + name + "%.}")
}

// plainText says whether a text is printable ASCII. Others trip one shell or
// another over their multibyte characters or their own control codes.
func plainText(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// quotePlain is plainText as one word.
func quotePlain(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// octal is a text for %b of printf, in single quotes.
func octal(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c > '~' || c == '\\' || c == '\'' {
			b.WriteString(`\0`)
			o := strconv.FormatUint(uint64(c), 8)
			b.WriteString("000"[len(o):] + o)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// evalLine is a script of several lines as one.
func evalLine(script string) string { return `eval "$(printf '%b' '` + octal(script) + "')\"\n" }
