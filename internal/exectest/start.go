package exectest

import (
	"context"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

func startClauses() []Clause {
	return []Clause{
		{"Starter", "An Executor is a Starter exactly where Properties say Signals.", starter},
		{"Start", "Start returns once the command runs, and Wait returns what Run would.", start},
		{"StartFails", "Start has the errors of Run; a program that isn't found is no error, but what Wait returns.", startFails},
		{"StartCancel", "When ctx ends the command and its tree end, though nobody waits yet.", startCancel},
		{"Signal", "Signal reaches the process group of the command, by the name of the signal.", signalGroup},
		{"SignalBad", "Signal of a name that doesn't exist, or after the end, is ErrInvalid.", signalBad},
	}
}

// start starts a request; nil stands for a place that doesn't declare it.
func (t *T) start(ctx context.Context, req hpcexec.Request) hpcexec.Process {
	t.Helper()
	s, ok := t.ex.(hpcexec.Starter)
	if !ok {
		t.Log("not declared: nothing is promised")
		return nil
	}
	p, err := s.Start(ctx, req)
	if err != nil {
		t.Fatal("Start:", err)
	}
	return p
}

// waitFor waits for a process, within the limit of the case.
func (t *T) waitFor(p hpcexec.Process) (hpcexec.Response, error) {
	t.Helper()
	type end struct {
		r   hpcexec.Response
		err error
	}
	c := make(chan end, 1)
	go func() {
		r, err := p.Wait()
		c <- end{r, err}
	}()
	select {
	case e := <-c:
		return e.r, e.err
	case <-time.After(t.s.Limit / 2):
		t.Fatal("Wait doesn't return")
	}
	panic("unreachable")
}

// await waits until a writer has a string.
func (t *T) await(w *writer, s string) {
	t.Helper()
	limit := time.After(t.s.Limit / 2)
	for !w.contains(s) {
		select {
		case <-w.wrote:
		case <-limit:
			t.Fatalf("got output %q, want %q in it", clip(w.String()), s)
		}
	}
}

func starter(t *T) {
	if _, ok := t.ex.(hpcexec.Starter); ok != t.facts.Signals {
		t.Errorf("got a Starter: %v, declared: %v", ok, t.facts.Signals)
	}
}

func start(t *T) {
	out, errOut := newWriter(), newWriter()
	req := t.sh(`cat; echo "$1"; echo err >&2; exit 3`, "arg")
	req.Stdin = strings.NewReader("in\n")
	req.Stdout, req.Stderr = out, errOut
	req.ID = "exectest-start"
	p := t.start(t.ctx, req)
	if p == nil {
		return
	}
	r, err := t.waitFor(p)
	if err != nil || r.ExitCode != 3 || r.ID != req.ID || r.Started.IsZero() {
		t.Errorf("got %+v, error %v, want exit code 3 and the ID", r, err)
	}
	t.wantOutput(out.String(), "in\narg\n")
	t.wantOutput(errOut.String(), "err\n")
}

func startFails(t *T) {
	errOut := newWriter()
	p := t.start(t.ctx, hpcexec.Request{Args: []string{"exectest-no-such-program"}, Stderr: errOut})
	if p == nil {
		return
	}
	if r, err := t.waitFor(p); err != nil || r.ExitCode != 127 || !strings.Contains(errOut.String(), "exectest-no-such-program") {
		t.Errorf("not found: got exit code %d, error %v, stderr %q, want 127, nil, its name", r.ExitCode, err, errOut.String())
	}
	s := t.ex.(hpcexec.Starter)
	if _, err := s.Start(t.ctx, hpcexec.Request{}); hpcexec.KindName(err) != "invalid" {
		t.Errorf("no args: got error %v, want ErrInvalid", err)
	}
	ctx, cancel := context.WithCancelCause(t.ctx)
	cancel(errWhy)
	path := t.temp()
	if p, err := s.Start(ctx, t.sh(`: >"$1"`, path)); err == nil {
		_, err = t.waitFor(p)
		t.wantErr(err, errWhy)
	} else {
		t.wantErr(err, errWhy)
	}
	if t.exists(path) {
		t.Error("cancelled before: the command ran")
	}
}

func startCancel(t *T) {
	ctx, cancel := context.WithCancelCause(t.ctx)
	defer cancel(nil)
	out := newWriter()
	req := t.sh(`trap '' TERM; (sleep 600; sleep 600) & echo up; wait; wait`)
	req.Stdout = out
	p := t.start(ctx, req)
	if p == nil {
		return
	}
	t.await(out, "up\n")
	t.wantMarked(3, t.s.Grace)
	cancel(errWhy)
	t.wantMarked(0, 2*t.s.Grace) // Wait's return isn't there to count from
	_, err := t.waitFor(p)
	t.wantErr(err, errWhy)
}

func signalGroup(t *T) {
	out := newWriter()
	req := t.sh(`
		n=0
		trap 'echo usr1; n=$((n+1))' USR1
		(trap 'echo child; exit' USR1; echo child up; ` + idle + `) &
		echo up
		while [ $n = 0 ]; do sleep 0.1 2>/dev/null || sleep 1; done
		wait
		exit 6`)
	req.Stdout = out
	p := t.start(t.ctx, req)
	if p == nil {
		return
	}
	t.await(out, "child up\n")
	t.await(out, "\nup\n"[1:])
	if err := p.Signal("USR1"); err != nil {
		t.Fatal("Signal:", err)
	}
	r, err := t.waitFor(p)
	if err != nil || r.ExitCode != 6 || !out.contains("usr1\n") || !out.contains("child\n") {
		t.Errorf("got exit code %d, error %v, stdout %q, want 6, nil, both processes to get the signal", r.ExitCode, err, out.String())
	}

	for _, name := range []string{"TERM", "KILL"} {
		out := newWriter()
		req := t.sh(`echo up; sleep 600`)
		req.Stdout = out
		p := t.start(t.ctx, req)
		t.await(out, "up\n")
		if err := p.Signal(name); err != nil {
			t.Fatalf("Signal %s: %v", name, err)
		}
		if r, err := t.waitFor(p); err != nil || r.ExitCode != 128+deadly[name] {
			t.Errorf("%s: got exit code %d, error %v, want %d, nil", name, r.ExitCode, err, 128+deadly[name])
		}
	}
	t.wantMarked(0, t.s.Grace)
}

func signalBad(t *T) {
	out := newWriter()
	req := t.sh(`echo up; read -r x`)
	in := t.stuck("")
	in.gate = make(chan string, 1)
	req.Stdin, req.Stdout = in, out
	p := t.start(t.ctx, req)
	if p == nil {
		return
	}
	t.await(out, "up\n")
	for _, name := range []string{"", "NOSUCH", "SIGTERM", "term", "0", "65", "-15"} {
		if err := p.Signal(name); hpcexec.KindName(err) != "invalid" {
			t.Errorf("Signal(%q): got error %v, want ErrInvalid", name, err)
		}
	}
	if err := p.Resize(80, 24); hpcexec.KindName(err) != "invalid" {
		t.Errorf("Resize without a terminal: got error %v, want ErrInvalid", err)
	}
	in.gate <- "go\n"
	if r, err := t.waitFor(p); err != nil || r.ExitCode != 0 {
		t.Errorf("got exit code %d, error %v, want 0, nil: a bad name reached it", r.ExitCode, err)
	}
	if err := p.Signal("TERM"); hpcexec.KindName(err) != "invalid" {
		t.Errorf("Signal after the end: got error %v, want ErrInvalid", err)
	}
}
