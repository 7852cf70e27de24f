package exectest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/hpcexec/hpcexec"
)

func stopClauses() []Clause {
	return []Clause{
		{"CancelledBefore", "Where ctx had ended before, nothing runs and the error matches context.Cause(ctx).", cancelledBefore},
		{"Cancel", "Where ctx ends in mid-run, Run returns an error that matches context.Cause(ctx), and what the command had written is kept.", cancelMidRun},
		{"CancelGrace", "The command gets SIGTERM first and the grace time to end by itself; what it writes then is kept.", cancelGrace},
		{"CancelStubborn", "A command that ignores SIGTERM is killed after the grace time.", cancelStubborn},
		{"CancelTree", "Cancel ends every process in the group of the command, also those that ignore SIGTERM or hold the output open.", cancelTree},
		{"CancelEscaped", "Where Properties say TreeWhole, cancel also ends processes that left the group or session or lost their parent.", cancelEscaped},
		{"CancelStuckStdin", "A Stdin that never ends doesn't delay the end of a cancelled command.", cancelStuckStdin},
		{"CancelRace", "A command that ended before cancel took effect is a Response with a nil error; there is no third outcome.", cancelRace},
		{"CancelOne", "Cancel ends one run and no other.", cancelOne},
		{"CancelMany", "Many runs cancelled at once all end, with their trees.", cancelMany},
		{"Deadline", "A deadline of ctx is a cancel: the error matches context.DeadlineExceeded.", deadline},
		{"Timeout", "Timeout ends the command and its tree: a Response with TimedOut and the output so far, and a nil error.", timeout},
		{"TimeoutUnused", "A command that ends within its Timeout hasn't timed out, whatever its exit code.", timeoutUnused},
		{"TimeoutBackground", "A background process that holds the output open doesn't keep Timeout waiting, nor is it a time-out after a normal end.", timeoutBackground},
	}
}

var errWhy = errors.New("exectest: why it was cancelled")

// stubborn is a command that nothing but SIGKILL ends.
const stubborn = `trap '' TERM HUP INT; echo up; while :; do sleep 600; done`

func cancelledBefore(t *T) {
	path := t.temp()
	ctx, cancel := context.WithCancelCause(t.ctx)
	cancel(errWhy)
	in := &countingReader{}
	req := t.sh(`: >"$1"`, path)
	req.Stdin = in
	t.wantErr(t.run(ctx, req).err, errWhy)
	time.Sleep(5 * time.Millisecond)
	if n := in.begun.Load(); n > 0 || t.exists(path) {
		t.Errorf("the command ran, or %d Reads of its Stdin began", n)
	}
	// Nor is anything looked up.
	r := t.run(ctx, hpcexec.Request{Args: []string{"exectest-no-such-program"}})
	t.wantErr(r.err, errWhy)
	t.wantOutput(r.stderr, "")
}

func cancelMidRun(t *T) {
	rn := t.launch(t.sh(`echo before; echo up; exec sleep 600`), "up\n")
	t.wantMarked(1, t.s.Grace)
	rn.cancel(errWhy)
	r := rn.wait()
	t.wantErr(r.err, errWhy)
	t.wantOutput(r.stdout, "before\nup\n")
	t.wantMarked(0, t.s.Grace)
}

func cancelGrace(t *T) {
	rn := t.launch(t.sh(`trap 'echo bye; exit 0' TERM; echo up; `+idle), "up\n")
	rn.cancel(errWhy)
	r := rn.wait()
	t.wantErr(r.err, errWhy)
	if got := strings.Contains(r.stdout, "bye\n"); got == t.s.HardCancel {
		t.Errorf("got stdout %q: HardCancel is declared %v", r.stdout, t.s.HardCancel)
	}
}

func cancelStubborn(t *T) {
	rn := t.launch(t.sh(stubborn), "up\n")
	rn.cancel(errWhy)
	t.wantErr(rn.wait().err, errWhy)
	t.wantMarked(0, t.s.Grace)
}

func cancelTree(t *T) {
	if !t.facts.TreeByGroup {
		t.Log("not declared: nothing is promised")
		return
	}
	// A child that holds the output, one that has closed it, a grandchild
	// whose parent is gone, and one that is stopped; and a parent that goes
	// at once.
	rn := t.launch(t.sh(`
		(trap '' TERM; sleep 600; sleep 600) &
		(trap '' TERM; exec >/dev/null 2>&1 </dev/null; sleep 600; sleep 600) &
		( (trap '' TERM; sleep 600; sleep 600) & )
		sleep 600 & kill -STOP $!
		echo up; wait`), "up\n")
	t.wantMarked(8, t.s.Grace)
	rn.cancel(errWhy)
	t.wantErr(rn.wait().err, errWhy)
	t.wantMarked(0, t.s.Grace)
}

func cancelEscaped(t *T) {
	if !t.facts.TreeWhole {
		t.Log("not declared: nothing is promised")
		return
	}
	if t.probe("", `command -v setsid`) == "" {
		t.Fatal("the place has no setsid to test this with")
	}
	rn := t.launch(t.sh(`
		setsid sleep 600 &
		(setsid sleep 600 </dev/null >/dev/null 2>&1 &)
		setsid sh -c 'trap "" TERM; (setsid sleep 600 &) ; sleep 600; sleep 600' &
		echo up; wait`), "up\n")
	t.wantMarked(6, t.s.Grace)
	rn.cancel(errWhy)
	t.wantErr(rn.wait().err, errWhy)
	t.wantMarked(0, t.s.Grace)
}

func cancelStuckStdin(t *T) {
	req := t.sh(`echo up; cat`)
	req.Stdin = t.stuck("line\n")
	rn := t.launch(req, "line\n")
	rn.cancel(errWhy)
	t.wantErr(rn.wait().err, errWhy)
	t.wantMarked(0, t.s.Grace)
}

func cancelRace(t *T) {
	for i := range 60 {
		ctx, cancel := context.WithCancelCause(t.ctx)
		// About as long as a short command takes, here and elsewhere.
		timer := time.AfterFunc(time.Duration(i)*200*time.Microsecond, func() { cancel(errWhy) })
		r := t.run(ctx, t.sh(`echo x; exit 7`))
		timer.Stop()
		cancel(nil)
		switch {
		case r.err == nil && r.ExitCode == 7 && r.stdout == "x\n":
		case errors.Is(r.err, errWhy):
		default:
			t.Fatalf("got exit code %d, stdout %q, error %v, want 7 and all output, or the cause", r.ExitCode, r.stdout, r.err)
		}
	}
	t.wantMarked(0, t.s.Grace)
}

func cancelOne(t *T) {
	other := t.launch(t.sh(`echo up; read -r x; echo "$x"`), "up\n") // its stdin is nil
	t.wantCode(other.wait(), 0)

	req := t.sh(`echo up; read -r x; echo "$x"`)
	in := t.stuck("")
	in.gate = make(chan string, 1)
	req.Stdin = in
	other = t.launch(req, "up\n")
	mine := t.launch(t.sh(stubborn), "up\n")
	mine.cancel(errWhy)
	t.wantErr(mine.wait().err, errWhy)
	in.gate <- "still here\n"
	r := other.wait()
	t.wantCode(r, 0)
	t.wantOutput(r.stdout, "up\nstill here\n")
}

func cancelMany(t *T) {
	const n = 32
	ctx, cancel := context.WithCancelCause(t.ctx)
	defer cancel(nil)
	errs := make([]error, n)
	var up, done sync.WaitGroup
	for i := range n {
		out := &upWriter{up: sync.OnceFunc(up.Done)}
		up.Add(1)
		done.Go(func() {
			req := t.sh(`sleep 600 & echo up; wait`)
			req.Stdout = out
			_, errs[i] = t.ex.Run(ctx, req)
			out.up()
		})
	}
	up.Wait()
	t.wantMarked(2*n, t.s.Grace)
	cancel(errWhy)
	done.Wait()
	for i, err := range errs {
		if !errors.Is(err, errWhy) {
			t.Errorf("run %d: got error %v, want %v", i, err, errWhy)
		}
	}
	t.wantMarked(0, t.s.Grace)
}

// An upWriter tells of its first Write.
type upWriter struct{ up func() }

func (w *upWriter) Write(b []byte) (int, error) { w.up(); return len(b), nil }

func deadline(t *T) {
	ctx, cancel := context.WithTimeout(t.ctx, 300*time.Millisecond)
	defer cancel()
	r := t.run(ctx, t.sh(stubborn))
	t.wantErr(r.err, context.DeadlineExceeded)
	t.wantMarked(0, t.s.Grace)
}

func timeout(t *T) {
	for name, script := range map[string]string{
		"obeys":    `echo before; exec sleep 600`,
		"stubborn": `trap '' TERM; echo before; (sleep 600) & while :; do sleep 600; done`,
	} {
		req := t.sh(script)
		req.Timeout = time.Second // it must have begun to write
		req.Stdin = t.stuck("")
		r := t.run(t.ctx, req)
		if r.err != nil || !r.TimedOut || r.ExitCode < 128 || r.stdout != "before\n" {
			t.Errorf("%s: got exit code %d, timed out %v, stdout %q, error %v, want 128+n, true, %q, nil",
				name, r.ExitCode, r.TimedOut, r.stdout, r.err, "before\n")
		}
		t.wantMarked(0, t.s.Grace)
	}
	// It ends with an exit of its own: still a time-out.
	req := t.sh(`trap 'exit 5' TERM; echo up; ` + idle)
	req.Timeout = time.Second
	r := t.run(t.ctx, req)
	if r.err != nil || !r.TimedOut || r.ExitCode != 5 && !t.s.HardCancel {
		t.Errorf("with a trap: got exit code %d, timed out %v, error %v, want 5, true, nil", r.ExitCode, r.TimedOut, r.err)
	}
}

func timeoutUnused(t *T) {
	for _, code := range []int{0, 3, 124, 143} {
		req := t.sh(`exit "$1"`, itoa(code))
		req.Timeout = t.s.Limit
		if r := t.run(t.ctx, req); r.err != nil || r.TimedOut || r.ExitCode != code {
			t.Errorf("exit %d: got exit code %d, timed out %v, error %v", code, r.ExitCode, r.TimedOut, r.err)
		}
	}
}

func timeoutBackground(t *T) {
	req := t.sh(`sleep 600 & echo up`)
	req.Timeout = t.s.Limit
	r := t.run(t.ctx, req)
	t.wantCode(r, 0)
	if r.TimedOut {
		t.Error("timed out, after a normal end")
	}
	req = hpcexec.Request{
		Args:    []string{"sh", "-c", `trap '' TERM; sleep 600 & echo up; exec sleep 600`},
		Env:     req.Env,
		Timeout: time.Second,
	}
	r = t.run(t.ctx, req)
	if r.err != nil || !r.TimedOut {
		t.Errorf("got timed out %v, error %v, want true, nil", r.TimedOut, r.err)
	}
	want := 1 // of the first
	if t.s.EndsBackground {
		want = 0
	}
	t.wantMarked(want, t.s.Grace)
}
