package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
)

// redacted stands where a secret stood.
const redacted = "[redacted]"

// A redactor passes on what is written to it without the secrets in it. It
// holds back what may be the beginning of one until more comes or it is
// closed.
type redactor struct {
	w       io.Writer
	secrets [][]byte // the longest first, so that none is cut by a part of it
	held    []byte
}

// newRedactor takes the secrets as NAME=VALUE.
func newRedactor(w io.Writer, secrets []string) *redactor {
	r := &redactor{w: w}
	for _, s := range secrets {
		if _, value, _ := strings.Cut(s, "="); value != "" {
			r.secrets = append(r.secrets, []byte(value))
		}
	}
	slices.SortFunc(r.secrets, func(a, b []byte) int { return len(b) - len(a) })
	return r
}

func (r *redactor) Write(p []byte) (int, error) {
	if len(r.secrets) == 0 {
		return r.w.Write(p)
	}
	r.held = append(r.held, p...)
	return len(p), r.pass(false)
}

// Close passes on what is held back. It doesn't close the writer.
func (r *redactor) Close() error { return r.pass(true) }

// pass writes all of held that can't be part of a secret that is not whole
// yet.
func (r *redactor) pass(last bool) error {
	var out []byte
	b := r.held
scan:
	for len(b) > 0 {
		for _, s := range r.secrets {
			if bytes.HasPrefix(b, s) {
				out = append(out, redacted...)
				b = b[len(s):]
				continue scan
			}
			if !last && len(b) < len(s) && bytes.HasPrefix(s, b) {
				break scan // it may become this one
			}
		}
		out = append(out, b[0])
		b = b[1:]
	}
	r.held = append(r.held[:0], b...)
	_, err := r.w.Write(out)
	return err
}
