// Package shell turns an argv into a line for a POSIX shell. It is the only
// place where that happens: everywhere else an argv stays one.
//
//	["echo" "a b" "$HOME" ""]  ─▶  'echo' 'a b' '$HOME' ''
//
// The line means the same to sh, bash, dash, ksh, zsh and the shell of busybox.
// It doesn't to csh, where a newline ends a quoted word: who may meet a login
// shell that isn't POSIX's runs "sh" and sends the line on its stdin.
package shell

import (
	"strings"

	"al.essio.dev/pkg/shellescape"
)

// Quote is s as one word of a shell line, any s without NUL, also one that a
// shell would take for something else at the beginning of a command (an
// assignment, a reserved word) or of a word (zsh's =name).
func Quote(s string) string {
	q := shellescape.Quote(s)
	if q != s || plain(s) {
		return q
	}
	return "'" + s + "'"
}

// plain says that a word, which needs no quotes as an argument, needs none at
// the beginning of a command either: a path or an option. This keeps the lines
// that people see in ps readable.
func plain(s string) bool {
	return (s[0] == '/' || s[0] == '-') && !strings.Contains(s, "=")
}

// Join is an argv as a line that runs it. A shell takes the first word for a
// builtin of its own where it has one of that name; put "exec " before the line
// to have the program.
func Join(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = Quote(a)
	}
	return strings.Join(words, " ")
}
