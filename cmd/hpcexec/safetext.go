package main

import (
	"strings"
	"unicode/utf8"
)

// safeText makes text of what a command wrote: bytes that are no UTF-8, and
// control characters other than tab, newline and carriage return, become
// U+FFFD. So it can be printed on a terminal and stored as JSON.
func safeText(b []byte) string {
	clean := true
	for i := 0; i < len(b) && clean; i++ {
		clean = b[i] < utf8.RuneSelf && !unsafeRune(rune(b[i]))
	}
	if clean {
		return string(b)
	}
	var out strings.Builder
	out.Grow(len(b))
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if unsafeRune(r) {
			r = utf8.RuneError
		}
		out.WriteRune(r)
		b = b[n:]
	}
	return out.String()
}

// unsafeRune: C0 controls but for white space, DEL, and the C1 controls, which
// some terminals obey as they do escape sequences.
func unsafeRune(r rune) bool {
	switch r {
	case '\t', '\n', '\r':
		return false
	}
	return r < ' ' || 0x7f <= r && r <= 0x9f
}
