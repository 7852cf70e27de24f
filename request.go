package hpcexec

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"strings"
)

// NewID makes an id for a run: 26 letters and digits, unique everywhere.
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails, by its documentation
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}

// Check says whether a request is well formed. Its error is of kind
// ErrInvalid and names what is wrong, never a value of Secrets. Every
// Executor calls it before anything is contacted.
func (r *Request) Check() error {
	if len(r.Args) == 0 || r.Args[0] == "" {
		return Errorf(ErrInvalid, "no command given")
	}
	for i, a := range r.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return Errorf(ErrInvalid, "argument %d has a NUL byte", i)
		}
		if len(a) >= maxString {
			return tooLong(fmt.Sprintf("argument %d", i), len(a))
		}
	}
	for _, list := range [][]string{r.Env, r.Secrets} {
		for _, e := range list {
			name, value, ok := strings.Cut(e, "=")
			if !ok {
				return Errorf(ErrInvalid, "environment entry %d characters long has no '='", len(e))
			}
			if !ValidEnvName(name) {
				return Errorf(ErrInvalid, "environment name %q is not a letter or _ and then letters, digits and _", name)
			}
			if strings.IndexByte(value, 0) >= 0 {
				return Errorf(ErrInvalid, "value of environment variable %s has a NUL byte", name)
			}
			if len(e) >= maxString {
				return tooLong("environment variable "+name, len(e))
			}
		}
	}
	if strings.IndexByte(r.Dir, 0) >= 0 {
		return Errorf(ErrInvalid, "directory has a NUL byte")
	}
	if r.Dir != "" && r.Dir[0] != '/' {
		return Errorf(ErrInvalid, "directory %q is not absolute", r.Dir)
	}
	if r.Timeout < 0 {
		return Errorf(ErrInvalid, "time-out %v is negative", r.Timeout)
	}
	if r.TTY != nil && (r.TTY.Cols < 0 || r.TTY.Rows < 0 || r.TTY.Cols > 65535 || r.TTY.Rows > 65535) {
		return Errorf(ErrInvalid, "terminal size %d x %d is out of range", r.TTY.Cols, r.TTY.Rows)
	}
	return nil
}

// maxString is the length at which Linux refuses one argument or variable
// (MAX_ARG_STRLEN in execve(2)), however much it takes of them together.
const maxString = 128 << 10

func tooLong(what string, n int) error {
	return Errorf(ErrInvalid, "%s has %d bytes", what, n).
		WithHint("Linux takes %d in one argument or variable; pass it on stdin or in a file", maxString-1)
}

// ValidEnvName says whether a name of an environment variable is accepted in
// every place: [A-Za-z_][A-Za-z0-9_]*. Container runtimes drop the whole
// environment of a call for others.
func ValidEnvName(name string) bool {
	for i := 0; i < len(name); i++ {
		c := name[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// MergeEnv lays entries of the form NAME=VALUE over a base, later lists over
// earlier ones, and returns a new list in which every name occurs once.
func MergeEnv(lists ...[]string) []string {
	at := map[string]int{}
	var out []string
	for _, list := range lists {
		for _, e := range list {
			name, _, _ := strings.Cut(e, "=")
			if i, ok := at[name]; ok {
				out[i] = e
				continue
			}
			at[name] = len(out)
			out = append(out, e)
		}
	}
	return out
}
