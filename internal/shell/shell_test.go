package shell

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var hostile = []string{
	"", " ", "a b", "tab\there", "line\nbreak", "trailing\n", "'", "''", `"`, `\`, `\'`, "it's", `a"b'c\d`,
	"$HOME", "${HOME}", "$(id)", "`id`", "*", "?", "[a-z]", "~", "~root", "{a,b}", "a=b", "=ls", "if", "time", "!", "!!",
	"#", "a#b", ";", "&", "|", "<", ">", "(", ")", "--", "-n", "%1", "\x01", "\x7f", "\x80\x81\xff", "ümlaut", "日本語", "\u2028",
}

func TestQuote(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"empty", "", "''"},
		{"path", "/usr/bin/env", "/usr/bin/env"},
		{"option", "-la", "-la"},
		{"word", "echo", "'echo'"},
		{"assignment", "A=b", "'A=b'"},
		{"reserved", "while", "'while'"},
		{"space", "a b", "'a b'"},
		{"quote", "it's", `'it'"'"'s'`},
		{"variable", "$HOME", "'$HOME'"},
		{"newline", "a\nb", "'a\nb'"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Quote(tt.in); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// shells are those of this machine; sh is always there.
func shells(tb testing.TB) [][]string {
	var found [][]string
	for _, argv := range [][]string{{"sh"}, {"bash"}, {"dash"}, {"zsh"}, {"ksh"}, {"busybox", "sh"}} {
		if _, err := exec.LookPath(argv[0]); err == nil {
			found = append(found, argv)
		}
	}
	if len(found) == 0 {
		tb.Fatal("this machine has no sh")
	}
	return found
}

// through runs a line that prints its arguments, each with a NUL, and returns
// them.
func through(tb testing.TB, sh []string, argv []string) []string {
	line := Join(append([]string{"printf", `%s\000`}, argv...))
	var out, errOut bytes.Buffer
	cmd := exec.Command(sh[0], append(sh[1:], "-c", line)...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		tb.Fatalf("%v -c %q: %v\n%s", sh, line, err, errOut.String())
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\x00"), "\x00")
}

func TestJoinThroughShells(t *testing.T) {
	for _, sh := range shells(t) {
		t.Run(strings.Join(sh, " "), func(t *testing.T) {
			if got := through(t, sh, hostile); !slices.Equal(got, hostile) {
				t.Errorf("got %q, want %q", got, hostile)
			}
		})
	}
}

// The first word names a program whatever it looks like.
func TestJoinFirstWord(t *testing.T) {
	for _, name := range []string{"if", "time", "A=b", "x y", "for"} {
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/"+name, []byte("#!/bin/sh\necho \"ran $1\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, sh := range shells(t) {
			path, err := exec.LookPath(sh[0])
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(path, append(sh[1:], "-c", Join([]string{name, "it's"}))...)
			cmd.Env = []string{"PATH=" + dir}
			out, err := cmd.CombinedOutput()
			if string(out) != "ran it's\n" || err != nil {
				t.Errorf("%v, program %q: got %q, %v, want it run", sh, name, out, err)
			}
		}
	}
}

func FuzzJoin(f *testing.F) {
	for i, a := range hostile {
		f.Add(a, hostile[(i+7)%len(hostile)])
	}
	sh := shells(f)
	f.Fuzz(func(t *testing.T, a, b string) {
		want := []string{strings.ReplaceAll(a, "\x00", ""), strings.ReplaceAll(b, "\x00", ""), "end"}
		for _, s := range sh {
			if got := through(t, s, want); !slices.Equal(got, want) {
				t.Errorf("%v: got %q, want %q", s, got, want)
			}
		}
	})
}
