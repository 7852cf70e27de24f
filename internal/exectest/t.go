package exectest

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
)

// A T is one case in one place.
type T struct {
	*testing.T
	s Suite

	ex    hpcexec.Executor
	facts hpcexec.Properties
	ctx   context.Context // of the case, with its limit
	mark  string          // unique; marked processes have it in their environment

	probeOnce sync.Once
	probeEx   hpcexec.Executor
}

// markVar is the variable that marks the processes of a case.
const markVar = "EXECTEST_MARK"

// idle is the end of a script that has nothing to do but to get signals, which
// a shell sees after each sleep. Not every sleep knows fractions.
const idle = `while :; do sleep 0.1 2>/dev/null || sleep 1; done`

// A result is how a run ended, and its output.
type result struct {
	hpcexec.Response
	err              error
	stdout, stderr   string
	stdoutW, stderrW *writer
}

// sh is a request for a script, with $1 and so on, that carries the mark.
func (t *T) sh(script string, args ...string) hpcexec.Request {
	return hpcexec.Request{
		Args: append([]string{"sh", "-c", script, "sh"}, args...),
		Env:  []string{markVar + "=" + t.mark},
	}
}

// run runs a request in the place; what it has no Writer for is in the result.
func (t *T) run(ctx context.Context, req hpcexec.Request) result {
	return runIn(ctx, t.ex, req)
}

func runIn(ctx context.Context, ex hpcexec.Executor, req hpcexec.Request) result {
	r := result{stdoutW: newWriter(), stderrW: newWriter()}
	if req.Stdout == nil {
		req.Stdout = r.stdoutW
	}
	if req.Stderr == nil {
		req.Stderr = r.stderrW
	}
	r.Response, r.err = ex.Run(ctx, req)
	r.stdout, r.stderr = r.stdoutW.String(), r.stderrW.String()
	return r
}

// ok runs a request that must end with exit code 0.
func (t *T) ok(req hpcexec.Request) result {
	t.Helper()
	r := t.run(t.ctx, req)
	t.wantCode(r, 0)
	return r
}

func (t *T) wantCode(r result, code int) {
	t.Helper()
	if r.err != nil || r.ExitCode != code {
		t.Fatalf("got exit code %d, error %v, want %d, nil (stderr %q)", r.ExitCode, r.err, code, clip(r.stderr))
	}
}

func (t *T) wantOutput(got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("got %q, want %q", clip(got), clip(want))
	}
}

func (t *T) wantErr(err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want one that matches %q", err, want)
	}
}

func clip(s string) string {
	if len(s) > 300 {
		return s[:300] + "… (" + strconv.Itoa(len(s)) + " bytes)"
	}
	return s
}

// probe runs a script beside the case and returns its output.
func (t *T) probe(stdin, script string, args ...string) string {
	t.Helper()
	t.probeOnce.Do(func() {
		if t.s.Probe == nil {
			t.probeEx = t.s.New(t.T)
		} else {
			t.probeEx = t.s.Probe(t.T)
		}
	})
	// The limit is its own: the clean-up probes when the case's has passed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), 30*time.Second)
	defer cancel()
	r := runIn(ctx, t.probeEx, hpcexec.Request{
		Args:  append([]string{"sh", "-c", script, "sh"}, args...),
		Stdin: strings.NewReader(stdin),
	})
	if r.err != nil {
		t.Errorf("probe %q: %v", script, r.err)
	}
	return strings.TrimSpace(r.stdout)
}

// marked is how many processes of the case are alive. The mark reaches the
// probe on stdin, else it would count itself.
func (t *T) marked() int {
	t.Helper()
	out := t.probe(t.mark+"\n", `read -r m
		cat /proc/[0-9]*/environ 2>/dev/null | tr '\000' '\n' | grep -c "^`+markVar+`=$m\$"`)
	n, err := strconv.Atoi(out)
	if err != nil {
		t.Errorf("probe counted %q processes", out)
	}
	return n
}

// wantMarked waits until as many processes of the case are alive.
func (t *T) wantMarked(want int, within time.Duration) {
	t.Helper()
	got := -1
	for deadline := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		if got = t.marked(); got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %d processes of the command alive, want %d: %s", got, want, t.listMarked())
		}
	}
}

// awaitMarked waits until at least as many processes of the case are alive: a
// place may need some of its own around a command with a terminal.
func (t *T) awaitMarked(atLeast int, within time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		got := t.marked()
		if got >= atLeast {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %d processes of the command alive, want at least %d: %s", got, atLeast, t.listMarked())
		}
	}
}

const eachMarked = `read -r m
	for p in /proc/[0-9]*; do
		case $(tr '\000' '\n' <"$p/environ" 2>/dev/null) in *"$m"*) `

func (t *T) listMarked() string {
	return t.probe(t.mark+"\n", eachMarked+`echo "${p#/proc/} $(tr '\000' ' ' <"$p/cmdline")" ;; esac; done 2>/dev/null`)
}

// killLeft ends what the case left running, which isn't always a fault.
func (t *T) killLeft() {
	if t.marked() > 0 {
		t.probe(t.mark+"\n", eachMarked+`kill -KILL "${p#/proc/}" ;; esac; done 2>/dev/null`)
	}
}

// temp is the path of a file or directory, as yet missing, that is removed
// after the case.
func (t *T) temp() string {
	path := t.s.TempDir + "/exectest-" + hpcexec.NewID()
	t.Cleanup(func() { t.probe("", `rm -rf "$1"`, path) })
	return path
}

// exists says whether a path exists in the place.
func (t *T) exists(path string) bool {
	return t.probe("", `test -e "$1" && echo yes`, path) == "yes"
}

// A running is a run that is under way.
type running struct {
	t      *T
	out    *writer
	cancel context.CancelCauseFunc
	result chan result
}

// launch runs a request and returns once its stdout has a string.
func (t *T) launch(req hpcexec.Request, up string) *running {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.ctx)
	rn := &running{t: t, out: newWriter(), cancel: cancel, result: make(chan result, 1)}
	errOut := newWriter()
	req.Stdout = rn.out
	if req.Stderr == nil {
		req.Stderr = errOut
	}
	go func() {
		r := result{}
		r.Response, r.err = t.ex.Run(ctx, req)
		r.stdout, r.stderr = rn.out.String(), errOut.String()
		rn.result <- r
	}()
	t.Cleanup(func() { cancel(nil) })
	deadline := time.After(t.s.Limit)
	for !rn.out.contains(up) {
		select {
		case r := <-rn.result:
			if strings.Contains(r.stdout, up) {
				rn.result <- r
				return rn
			}
			t.Fatalf("the command ended before it wrote %q: exit code %d, error %v, stderr %q", up, r.ExitCode, r.err, clip(r.stderr))
		case <-rn.out.wrote:
		case <-deadline:
			t.Fatalf("the command didn't write %q", up)
		}
	}
	return rn
}

// wait waits for the end of the run.
func (rn *running) wait() result {
	rn.t.Helper()
	select {
	case r := <-rn.result:
		return r
	case <-time.After(rn.t.s.Limit / 2):
		rn.t.Fatal("Run doesn't return")
	}
	panic("unreachable")
}

// A writer is a Writer that tells what it gets.
type writer struct {
	wrote chan struct{} // has something after each Write

	mu    sync.Mutex
	buf   bytes.Buffer
	calls int
}

func newWriter() *writer { return &writer{wrote: make(chan struct{}, 1)} }

func (w *writer) Write(b []byte) (int, error) {
	w.mu.Lock()
	w.buf.Write(b)
	w.calls++
	w.mu.Unlock()
	select {
	case w.wrote <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (w *writer) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

func (w *writer) contains(s string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Contains(w.buf.Bytes(), []byte(s))
}

func (w *writer) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls
}

// A stuckReader gives some bytes and then nothing, until it is released.
type stuckReader struct {
	first *strings.Reader
	gate  chan string // more, when it comes; may be nil
	stop  chan struct{}
}

// stuck is a Stdin that never ends by itself. It is released after the case.
func (t *T) stuck(first string) *stuckReader {
	r := &stuckReader{first: strings.NewReader(first), stop: make(chan struct{})}
	t.Cleanup(func() { close(r.stop) })
	return r
}

func (r *stuckReader) Read(b []byte) (int, error) {
	if r.first.Len() > 0 {
		return r.first.Read(b)
	}
	select {
	case s := <-r.gate:
		return copy(b, s), nil
	case <-r.stop:
		return 0, errors.New("released")
	}
}

// statusField is a field of /proc/PID/status.
func statusField(status, name string) (string, bool) {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v), true
		}
	}
	return "", false
}
