package exectest

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

func requestClauses() []Clause {
	return []Clause{
		{"ArgsVerbatim", "Args arrive verbatim in every place: spaces, empty ones, $, quotes, newlines, --, any bytes but NUL.", argsVerbatim},
		{"ArgsHuge", "Args of 300 KiB in all arrive whole.", argsHuge},
		{"ArgTooBig", "A single argument of more than 128 KiB, which no system takes, is ErrInvalid and nothing runs.", argTooBig},
		{"ProgramLookup", "Args[0] is looked up in the PATH of the command's own environment; with a slash it is a path, relative to Dir.", programLookup},
		{"NotFound", "A program that isn't found is a Response with exit code 127 and a line on Stderr that names it.", notFound},
		{"NotExecutable", "A program that can't be executed, a directory too, is a Response with exit code 126 and a line on Stderr that names it.", notExecutable},
		{"Invalid", "A malformed request is ErrInvalid before anything is contacted, and the error tells no value of Secrets.", invalid},
		{"RequestUntouched", "The Request is neither changed nor kept.", requestUntouched},
		{"ID", "Response.ID is Request.ID, or one made for the run; the command has it in HPCEXEC_ID.", runID},
		{"Place", "Response.Place is the place that Properties name, and Properties are what is known of the place.", place},
		{"SharesFilesystem", "Where Properties say SharesFilesystem, a file here is there by the same path.", sharesFilesystem},
	}
}

// printArgs is a script that prints each argument and a NUL.
const printArgs = `for a; do printf '%s\000' "$a"; done`

// hostileArgs is what goes wrong where an argv becomes a line.
func hostileArgs() []string {
	return []string{
		"", " ", "a b", " lead", "trail ", "tab\t", "line\nbreak", "\n", "'", `"`, `\`, `\\n`, "it's", `"x"`, "$HOME", "${PATH}", "$(id)", "`id`",
		"*", "?", "[a]", "~", "{a,b}", "a=b", "#", "a;b", "&&", "|", "<x", ">x", "(", "!", "--", "-n", "-c", "%s", "%d", "a,b", "a:b",
		"ümlaut", "日本語", "\xff\xfe", "\x01\x1b[0m", "\r", "",
	}
}

func argsVerbatim(t *T) {
	want := hostileArgs()
	r := t.ok(t.sh(printArgs, want...))
	got := strings.Split(strings.TrimSuffix(r.stdout, "\x00"), "\x00")
	if !slices.Equal(got, want) {
		t.Errorf("through sh: got %q, want %q", got, want)
	}
	// A program instead of a shell, and a first word that shells know.
	r = t.ok(hpcexec.Request{Args: []string{"printf", `%s|`, "a b", "", "$x", "it's"}})
	t.wantOutput(r.stdout, "a b||$x|it's|")
	r = t.ok(hpcexec.Request{Args: []string{"env", "A=b c", "sh", "-c", `printf %s "$A"`}})
	t.wantOutput(r.stdout, "b c")
	r = t.run(t.ctx, hpcexec.Request{Args: []string{"A=b", "true"}})
	t.wantCode(r, 127) // no assignment, and no such program
}

func argsHuge(t *T) {
	var args []string
	for i := range 5 {
		args = append(args, strings.Repeat(string(rune('a'+i)), 60<<10))
	}
	r := t.ok(t.sh(printArgs, args...))
	t.wantOutput(r.stdout, strings.Join(args, "\x00")+"\x00")
}

func argTooBig(t *T) {
	path := t.temp()
	r := t.run(t.ctx, t.sh(`: >"$1"`, path, strings.Repeat("x", 200<<10)))
	t.wantErr(r.err, hpcexec.ErrInvalid)
	if t.exists(path) {
		t.Error("the command ran")
	}
}

func programLookup(t *T) {
	dir := t.temp()
	t.ok(t.sh(`mkdir -p "$1/bin" && printf '#!/bin/sh\necho "mine $1"\n' >"$1/bin/exectest-prog" && chmod 755 "$1/bin/exectest-prog"`, dir))
	tests := []struct {
		name string
		req  hpcexec.Request
		code int
	}{
		{"in PATH of Env", hpcexec.Request{Args: []string{"exectest-prog", "x"}, Env: []string{"PATH=" + dir + "/bin:/usr/bin:/bin"}}, 0},
		{"absolute", hpcexec.Request{Args: []string{dir + "/bin/exectest-prog", "x"}}, 0},
		{"relative to Dir", hpcexec.Request{Args: []string{"bin/exectest-prog", "x"}, Dir: dir}, 0},
		{"not in PATH", hpcexec.Request{Args: []string{"exectest-prog", "x"}, Dir: dir + "/bin"}, 127},
	}
	for _, tt := range tests {
		r := t.run(t.ctx, tt.req)
		want := map[int]string{0: "mine x\n"}[tt.code]
		if r.err != nil || r.ExitCode != tt.code || r.stdout != want {
			t.Errorf("%s: got exit code %d, error %v, stdout %q, want %d, nil, %q", tt.name, r.ExitCode, r.err, r.stdout, tt.code, want)
		}
	}
}

func notFound(t *T) {
	for _, name := range []string{"exectest-no-such-program", "/exectest/no such/program"} {
		r := t.run(t.ctx, hpcexec.Request{Args: []string{name, "arg"}})
		t.wantCode(r, 127)
		if !strings.Contains(r.stderr, name) || r.stdout != "" || r.Signal != "" {
			t.Errorf("got stderr %q, stdout %q, signal %q, want a line that has %q, nothing, none", r.stderr, r.stdout, r.Signal, name)
		}
	}
}

func notExecutable(t *T) {
	dir := t.temp()
	t.ok(t.sh(`mkdir -p "$1" && printf '#!/bin/sh\necho ran\n' >"$1/exectest-plain" && chmod 644 "$1/exectest-plain"`, dir))
	tests := []struct {
		name string
		req  hpcexec.Request
	}{
		{"a file without permission", hpcexec.Request{Args: []string{dir + "/exectest-plain"}}},
		{"a directory", hpcexec.Request{Args: []string{dir}}},
		{"found in PATH", hpcexec.Request{Args: []string{"exectest-plain"}, Env: []string{"PATH=" + dir}}},
	}
	for _, tt := range tests {
		r := t.run(t.ctx, tt.req)
		if r.err != nil || r.ExitCode != 126 || r.stdout != "" {
			t.Errorf("%s: got exit code %d, error %v, stdout %q, want 126, nil, nothing", tt.name, r.ExitCode, r.err, r.stdout)
		}
		if !strings.Contains(r.stderr, tt.req.Args[0]) {
			t.Errorf("%s: got stderr %q, want a line that has %q", tt.name, r.stderr, tt.req.Args[0])
		}
	}
}

func invalid(t *T) {
	const secret = "exectest-secret-value"
	tests := []struct {
		name string
		req  hpcexec.Request
	}{
		{"no args", hpcexec.Request{}},
		{"empty program", hpcexec.Request{Args: []string{""}}},
		{"NUL in an argument", hpcexec.Request{Args: []string{"true", "a\x00b"}}},
		{"no = in Env", hpcexec.Request{Args: []string{"true"}, Env: []string{"A"}}},
		{"no = in Secrets", hpcexec.Request{Args: []string{"true"}, Secrets: []string{secret}}},
		{"bad name in Secrets", hpcexec.Request{Args: []string{"true"}, Secrets: []string{"a-b=" + secret}}},
		{"NUL in Secrets", hpcexec.Request{Args: []string{"true"}, Secrets: []string{"A=" + secret + "\x00"}}},
		{"relative Dir", hpcexec.Request{Args: []string{"true"}, Dir: "tmp"}},
		{"NUL in Dir", hpcexec.Request{Args: []string{"true"}, Dir: "/tmp\x00"}},
		{"negative Timeout", hpcexec.Request{Args: []string{"true"}, Timeout: -time.Second}},
		{"negative size", hpcexec.Request{Args: []string{"true"}, TTY: &hpcexec.TTY{Cols: -1}}},
		{"huge size", hpcexec.Request{Args: []string{"true"}, TTY: &hpcexec.TTY{Rows: 70000}}},
	}
	for _, tt := range tests {
		r := t.run(t.ctx, tt.req)
		if hpcexec.KindName(r.err) != "invalid" {
			t.Errorf("%s: got error %v, want ErrInvalid", tt.name, r.err)
			continue
		}
		if strings.Contains(r.err.Error()+hpcexec.Hint(r.err), secret) {
			t.Errorf("%s: the error tells the secret: %v", tt.name, r.err)
		}
	}
}

func requestUntouched(t *T) {
	// Spare capacity, into which an append in the wrong place would write.
	list := func(entries ...string) []string {
		return append(make([]string, 0, len(entries)+4), entries...)
	}
	make1 := func() hpcexec.Request {
		return hpcexec.Request{
			Args:    list("sh", "-c", "cat; pwd"),
			Env:     list("A=1", markVar+"="+t.mark),
			Secrets: list("S=1"),
			Dir:     "/",
			Timeout: time.Minute,
			ID:      "exectest-untouched",
		}
	}
	req, want := make1(), make1()
	req.Stdin = strings.NewReader("in")
	r := t.run(t.ctx, req)
	t.wantCode(r, 0)
	t.wantOutput(r.stdout, "in/\n")
	for _, l := range []struct {
		name      string
		got, want []string
	}{{"Args", req.Args, want.Args}, {"Env", req.Env, want.Env}, {"Secrets", req.Secrets, want.Secrets}} {
		if !slices.Equal(l.got[:cap(l.got)], l.want[:cap(l.want)]) {
			t.Errorf("%s: got %q, want %q", l.name, l.got[:cap(l.got)], l.want[:cap(l.want)])
		}
	}
	// Not kept: what the caller does with it after the return doesn't matter.
	tty := hpcexec.TTY{Cols: 80}
	for i := range req.Args {
		req.Args[i] = "changed"
	}
	if t.facts.Terminal {
		t.run(t.ctx, hpcexec.Request{Args: []string{"true"}, TTY: &tty})
		if tty != (hpcexec.TTY{Cols: 80}) {
			t.Errorf("TTY: got %+v, want it as it was", tty)
		}
	}
}

func runID(t *T) {
	req := t.sh(`printf %s "$HPCEXEC_ID"`)
	req.ID = "exectest-id.1"
	r := t.ok(req)
	if r.ID != req.ID || r.stdout != req.ID {
		t.Errorf("got ID %q, HPCEXEC_ID %q, want %q in both", r.ID, r.stdout, req.ID)
	}
	req.ID = ""
	r, r2 := t.ok(req), t.ok(req)
	if r.ID == "" || r.ID != r.stdout || r.ID == r2.ID {
		t.Errorf("without one: got ID %q, HPCEXEC_ID %q, then %q, want one made each time", r.ID, r.stdout, r2.ID)
	}
}

func place(t *T) {
	r := t.ok(t.sh(`:`))
	if d, ok := t.ex.(hpcexec.Describer); ok {
		if got := d.Properties(); got != t.facts {
			t.Errorf("got properties %+v, want %+v", got, t.facts)
		}
	}
	if r.Place == "" || t.facts.Place != "" && r.Place != t.facts.Place {
		t.Errorf("got Response.Place %q, want %q", r.Place, t.facts.Place)
	}
}

func sharesFilesystem(t *T) {
	if !t.facts.SharesFilesystem {
		t.Log("not declared: nothing is promised")
		return
	}
	path := t.T.TempDir() + "/shared"
	if err := os.WriteFile(path, []byte("from here"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := t.ok(t.sh(`cat "$1" && printf %s "from there" >"$1"`, path))
	t.wantOutput(r.stdout, "from here")
	if got, err := os.ReadFile(path); !bytes.Equal(got, []byte("from there")) {
		t.Errorf("here: got %q, %v, want %q", got, err, "from there")
	}
}
