package exectest

import (
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

func terminalClauses() []Clause {
	return []Clause{
		{"TTYRefused", "A TTY is ErrInvalid exactly where Properties don't say Terminal.", ttyRefused},
		{"TTY", "A TTY is the terminal on all three streams and the controlling one, with the size and the TERM asked for.", tty},
		{"TTYOutput", "All output of a command with a terminal is on Stdout, complete at its end.", ttyOutput},
		{"TTYInput", "What Stdin has is typed; its end is the end-of-file key, which a terminal has for it.", ttyInput},
		{"TTYInterrupt", "The interrupt key typed on Stdin is SIGINT to the command.", ttyInterrupt},
		{"TTYResize", "Resize sets the size of the terminal, and the command gets SIGWINCH.", ttyResize},
		{"TTYCancel", "Cancel ends a command with a terminal and its jobs.", ttyCancel},
		{"TTYEnds", "The end of a command with a terminal is like another's: codes, signals, not found, a background process.", ttyEnds},
	}
}

// withTTY is a request with a terminal; ok is false where there are none.
func (t *T) withTTY(script string, args ...string) (req hpcexec.Request, ok bool) {
	if !t.facts.Terminal {
		t.Log("not declared: nothing is promised")
		return req, false
	}
	req = t.sh(script, args...)
	req.TTY = &hpcexec.TTY{Term: "xterm", Cols: 91, Rows: 27}
	return req, true
}

func ttyRefused(t *T) {
	path := t.temp()
	req := t.sh(`: >"$1"`, path)
	req.TTY = &hpcexec.TTY{Term: "xterm", Cols: 80, Rows: 24}
	r := t.run(t.ctx, req)
	if t.facts.Terminal {
		t.wantCode(r, 0)
		return
	}
	if hpcexec.KindName(r.err) != "invalid" || t.exists(path) {
		t.Errorf("got error %v, ran %v, want ErrInvalid, false", r.err, t.exists(path))
	}
}

func tty(t *T) {
	req, ok := t.withTTY(`
		for fd in 0 1 2; do test -t $fd && echo "terminal $fd"; done
		stty size
		echo "$TERM"
		echo "opened" >/dev/tty`)
	if !ok {
		return
	}
	r := t.ok(req)
	t.wantOutput(r.stdout, "terminal 0\r\nterminal 1\r\nterminal 2\r\n27 91\r\nxterm\r\nopened\r\n")
	req.Env = append(req.Env, "TERM=vt100") // what is asked for by name wins
	if r := t.ok(req); !strings.Contains(r.stdout, "vt100\r\n") {
		t.Errorf("got stdout %q, want TERM of Env in it", r.stdout)
	}
}

func ttyOutput(t *T) {
	req, ok := t.withTTY(`i=0; while [ $i -lt 2000 ]; do echo "out $i"; echo "err $i" >&2; i=$((i+1)); done`)
	if !ok {
		return
	}
	want := new(strings.Builder)
	for i := range 2000 {
		want.WriteString("out " + itoa(i) + "\r\nerr " + itoa(i) + "\r\n")
	}
	for range 3 {
		r := t.ok(req)
		if r.stdout != want.String() {
			t.Fatalf("got %d bytes, want %d in order", len(r.stdout), want.Len())
		}
		t.wantOutput(r.stderr, "")
	}
	// What is written just before the end, while the Writer is busy.
	for range 10 {
		late, _ := t.withTTY(`echo up; sleep 0.01 2>/dev/null; printf %s "$1"`, strings.Repeat("x", 3000))
		out := &slowWriter{pause: 20 * time.Millisecond, keep: true}
		late.Stdout = out
		t.ok(late)
		t.wantOutput(out.String(), "up\r\n"+strings.Repeat("x", 3000))
	}
	req.Stdout = new(slowWriter) // nobody looks
	t.wantCode(t.run(t.ctx, req), 0)
	if r, err := t.ex.Run(t.ctx, hpcexec.Request{Args: req.Args, TTY: req.TTY}); err != nil || r.ExitCode != 0 {
		t.Errorf("without a Writer: got exit code %d, error %v, want 0, nil", r.ExitCode, err)
	}
}

func ttyInput(t *T) {
	for in, want := range map[string]string{
		"one\ntwo\n": "[one][two]end",
		"one\ntwo":   "[one][two]end", // the key ends the line, and then the file
		"":           "end",
	} {
		req, ok := t.withTTY(`stty -echo; echo up; while read -r l; do printf '[%s]' "$l"; done; test -z "$l" || printf '[%s]' "$l"; printf end`)
		if !ok {
			return
		}
		req.Stdin = strings.NewReader(in)
		r := t.ok(req)
		// The echo of what was typed before stty is in it, too.
		if _, got, _ := strings.Cut(r.stdout, "up\r\n"); got != want {
			t.Errorf("typed %q: got %q, want %q", in, r.stdout, want)
		}
	}
	req, ok := t.withTTY(`cat; echo end`)
	if !ok {
		return
	}
	req.Stdin = nil
	t.wantOutput(t.ok(req).stdout, "end\r\n")
}

func ttyInterrupt(t *T) {
	req, ok := t.withTTY(`trap 'echo interrupted; exit 9' INT; echo up; ` + idle)
	if !ok {
		return
	}
	in := t.stuck("")
	in.gate = make(chan string, 1)
	req.Stdin = in
	rn := t.launch(req, "up\r\n")
	in.gate <- "\x03"
	r := rn.wait()
	t.wantCode(r, 9)
	if !strings.Contains(r.stdout, "interrupted\r\n") {
		t.Errorf("got stdout %q, want the trap in it", r.stdout)
	}
}

func ttyResize(t *T) {
	req, ok := t.withTTY(`trap 'stty size; exit' WINCH; echo up; ` + idle)
	if !ok {
		return
	}
	out := newWriter()
	req.Stdout = out
	req.Stdin = t.stuck("")
	p := t.start(t.ctx, req)
	if p == nil {
		return
	}
	t.await(out, "up\r\n")
	for _, bad := range [][2]int{{-1, 5}, {5, 70000}} {
		if err := p.Resize(bad[0], bad[1]); hpcexec.KindName(err) != "invalid" {
			t.Errorf("Resize(%d, %d): got error %v, want ErrInvalid", bad[0], bad[1], err)
		}
	}
	if err := p.Resize(123, 45); err != nil {
		t.Fatal("Resize:", err)
	}
	if _, err := t.waitFor(p); err != nil {
		t.Fatal(err)
	}
	t.wantOutput(out.String(), "up\r\n45 123\r\n")
}

func ttyCancel(t *T) {
	req, ok := t.withTTY(`trap '' TERM HUP INT; set -m; (trap '' TERM HUP; sleep 600; sleep 600) & echo up; while :; do sleep 600; done`)
	if !ok {
		return
	}
	req.Stdin = t.stuck("")
	rn := t.launch(req, "up\r\n")
	t.awaitMarked(4, t.s.Grace)
	rn.cancel(errWhy)
	t.wantErr(rn.wait().err, errWhy)
	t.wantMarked(0, t.s.Grace)
}

func ttyEnds(t *T) {
	tests := []struct {
		script string
		code   int
	}{
		{`exit 3`, 3}, {`kill -TERM $$; sleep 600`, 143}, {`exectest-no-such-program`, 127}, {`trap '' HUP; sleep 600 & exit 4`, 4},
	}
	for _, tt := range tests {
		req, ok := t.withTTY(tt.script)
		if !ok {
			return
		}
		if r := t.run(t.ctx, req); r.err != nil || r.ExitCode != tt.code {
			t.Errorf("%q: got exit code %d, error %v, want %d, nil", tt.script, r.ExitCode, r.err, tt.code)
		}
	}
	req, _ := t.withTTY("")
	req.Args = []string{"exectest-no-such-program"}
	r := t.run(t.ctx, req)
	t.wantCode(r, 127)
	if !strings.Contains(r.stdout, "exectest-no-such-program") {
		t.Errorf("not found: got stdout %q, want its name in it", r.stdout)
	}
}
