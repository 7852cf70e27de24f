package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCapture(t *testing.T) {
	type write struct {
		stderr bool
		text   string
	}
	secrets := []string{"TOKEN=sesame"}
	tests := []struct {
		name                string
		writes              []write
		stdout, stderr, log string
		truncated           bool
	}{
		{name: "nothing"},
		{name: "fits", writes: []write{{false, "out sesame"}, {true, "err"}}, stdout: "out sesame", stderr: "err"},
		{name: "exactly fits", writes: []write{{false, "0123456789abcdef"}}, stdout: "0123456789abcdef"},
		{name: "one stream is cut", writes: []write{{false, "0123456789"}, {false, "abcdefghij"}},
			stdout: "01234567\n[… 4 bytes left out …]\ncdefghij", log: "0123456789abcdefghij", truncated: true},
		{name: "both together don't fit", writes: []write{{false, "0123456789"}, {true, "abcdefghij"}},
			stdout: "0123456789", stderr: "abcdefghij", log: "0123456789abcdefghij", truncated: true},
		{name: "a secret across writes", writes: []write{{false, "01234 ses"}, {true, "[err]"}, {false, "ame 56789"}},
			stdout: "01234 se\n[… 2 bytes left out …]\nme 56789", stderr: "[err]", log: "01234 [err][redacted] 56789", truncated: true},
		{name: "a secret at the end", writes: []write{{false, "0123456789abcdef"}, {true, "sesame"}, {false, "ses"}},
			stdout: "01234567\n[… 3 bytes left out …]\nbcdefses", stderr: "sesame", log: "0123456789abcdef[redacted]ses", truncated: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			c := newCapture(16, secrets, func() (*os.File, error) { return os.Create(path) })
			for _, w := range tt.writes {
				to := c.stdout()
				if w.stderr {
					to = c.stderr()
				}
				if n, err := to.Write([]byte(w.text)); n != len(w.text) || err != nil {
					t.Fatalf("Write: got %d, %v, want %d, nil", n, err, len(w.text))
				}
			}
			log, err := c.finish()
			if err != nil {
				t.Fatal(err)
			}
			if got := c.out.text(); got != tt.stdout {
				t.Errorf("stdout: got %q, want %q", got, tt.stdout)
			}
			if got := c.err.text(); got != tt.stderr {
				t.Errorf("stderr: got %q, want %q", got, tt.stderr)
			}
			if c.truncated() != tt.truncated {
				t.Errorf("truncated: got %v, want %v", c.truncated(), tt.truncated)
			}
			if (log != "") != tt.truncated {
				t.Fatalf("log: got %q, want one: %v", log, tt.truncated)
			}
			if tt.truncated {
				if got, _ := os.ReadFile(log); string(got) != tt.log {
					t.Errorf("log: got %q, want %q", got, tt.log)
				}
			}
		})
	}
}

// A log that can't be made doesn't end the command, and is told.
func TestCaptureNoLog(t *testing.T) {
	full := errors.New("no space")
	c := newCapture(4, nil, func() (*os.File, error) { return nil, full })
	for range 100 {
		if n, err := c.stdout().Write([]byte("abcdef")); n != 6 || err != nil {
			t.Fatalf("Write: got %d, %v, want 6, nil", n, err)
		}
	}
	if _, err := c.finish(); !errors.Is(err, full) {
		t.Errorf("finish: got %v, want %v", err, full)
	}
	if got, want := c.out.text(), "ab\n[… 596 bytes left out …]\nef"; got != want {
		t.Errorf("stdout: got %q, want %q", got, want)
	}
	if len(c.out.tail) > 3*c.limit {
		t.Errorf("tail: got %d bytes kept, want few", len(c.out.tail))
	}
}

func FuzzRedactor(f *testing.F) {
	f.Add("abc sesame abc", "sesame", "same", 3)
	f.Add("aaab", "aab", "a", 1)
	f.Add("", "", "", 1)
	f.Fuzz(func(t *testing.T, text, one, two string, size int) {
		var out bytes.Buffer
		r := newRedactor(&out, []string{"A=" + one, "B=" + two})
		size = max(1, size%7)
		for b := []byte(text); len(b) > 0; {
			n := min(size, len(b))
			r.Write(b[:n])
			b = b[n:]
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		// What it writes doesn't depend on how it was cut into pieces.
		var whole bytes.Buffer
		w := newRedactor(&whole, []string{"A=" + one, "B=" + two})
		w.Write([]byte(text))
		w.Close()
		if out.String() != whole.String() {
			t.Errorf("in pieces of %d: got %q, want %q", size, &out, &whole)
		}
		for _, secret := range []string{one, two} {
			if secret == "" {
				continue
			}
			if rest := strings.ReplaceAll(whole.String(), redacted, "\x00"); strings.Contains(rest, secret) && !strings.Contains(secret, "\x00") {
				t.Errorf("%q is in %q", secret, rest)
			}
		}
	})
}

func TestSafeText(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"plain", "a\tb\r\n", "a\tb\r\n"},
		{"UTF-8", "größe 温度", "größe 温度"},
		{"not UTF-8", "a\xffb\xc3", "a\ufffdb\ufffd"},
		{"escape sequence", "\x1b]0;title\x07x", "\ufffd]0;title\ufffdx"},
		{"C1", "\u009b31m", "\ufffd31m"},
		{"NUL and DEL", "\x00\x7f", "\ufffd\ufffd"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := safeText([]byte(tt.in)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func FuzzSafeText(f *testing.F) {
	f.Add([]byte("a\xff\x1b[31m\u009b"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := safeText(b)
		if !utf8.ValidString(s) {
			t.Errorf("safeText(%q): got %q, want UTF-8", b, s)
		}
		for _, r := range s {
			if unsafeRune(r) {
				t.Errorf("safeText(%q): got %q with %U", b, s, r)
			}
		}
		var back string
		if j, err := json.Marshal(s); err != nil || json.Unmarshal(j, &back) != nil || back != s {
			t.Errorf("safeText(%q) as JSON: got %q, want %q", b, back, s)
		}
	})
}

func Example_redactor() {
	var out bytes.Buffer
	r := newRedactor(&out, []string{"TOKEN=sesame"})
	fmt.Fprint(r, "open ses")
	fmt.Fprint(r, "ame")
	r.Close()
	fmt.Println(out.String())
	// Output: open [redacted]
}
