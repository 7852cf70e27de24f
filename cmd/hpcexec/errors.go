package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/session"
)

// errorJSON is how an error stands in the output of --json.
type errorJSON struct {
	Type    string `json:"type"` // as hpcexec.KindName, or "interrupted"
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// describe takes an error apart for people and programs.
func describe(err error) *errorJSON {
	e := &errorJSON{Type: hpcexec.KindName(err), Message: err.Error(), Hint: hpcexec.Hint(err)}
	var (
		pending   *session.PendingError
		interrupt *interruptError
	)
	if errors.As(err, &pending) && e.Hint == "" {
		e.Hint = "the job stays in the queue: run the same command again, or `hpcexec session stop " + pending.Session + "`"
	}
	if errors.As(err, &interrupt) {
		e.Type = "interrupted"
	}
	return e
}

// printError says what went wrong. The terminal's rules: everything to stderr
// with the program's name in front, lower case, no period, and then what to
// do about it.
func printError(w io.Writer, e *errorJSON) {
	fmt.Fprintf(w, "hpcexec: %s\n", safeText([]byte(e.Message)))
	if e.Hint != "" {
		fmt.Fprintf(w, "hpcexec: hint: %s\n", safeText([]byte(e.Hint)))
	}
}

// printJSON writes one object on one line.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// usageError is a command line that can't be understood.
func usageError(format string, args ...any) *hpcexec.Error {
	return hpcexec.Errorf(hpcexec.ErrInvalid, format, args...)
}

// closest is the one of names that a misspelt word probably stands for, or
// empty.
func closest(word string, names []string) string {
	best, at := 3, ""
	if len(word) < 4 {
		best = 2
	}
	for _, n := range names {
		if strings.HasPrefix(n, word) && word != "" {
			return n
		}
		if d := distance(word, n); d < best {
			best, at = d, n
		}
	}
	return at
}

// distance is the number of edits between two words, a swap of neighbours
// counted as one.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}

// orList joins names for a sentence: "a, b or c".
func orList(names []string) string {
	names = slices.Clone(names)
	if len(names) > 1 {
		names[len(names)-2] += " or " + names[len(names)-1]
		names = names[:len(names)-1]
	}
	return strings.Join(names, ", ")
}
