package exectest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hpcexec/hpcexec"
)

// A Recorder is an Executor that runs nothing and remembers what it was asked:
// the base under a wrapper in a test. The zero value answers every request
// with exit code 0.
type Recorder struct {
	// Facts are what Properties returns.
	Facts hpcexec.Properties

	// Answer plays the command: it may read Stdin, write to Stdout and look
	// at ctx. It is called by several goroutines at once if Run is.
	Answer func(ctx context.Context, req hpcexec.Request) (hpcexec.Response, error)

	mu       sync.Mutex
	requests []hpcexec.Request
	signals  []string
}

var (
	_ hpcexec.Starter   = (*Recorder)(nil)
	_ hpcexec.Describer = (*Recorder)(nil)
)

// Run remembers a request and answers it.
func (r *Recorder) Run(ctx context.Context, req hpcexec.Request) (hpcexec.Response, error) {
	r.mu.Lock()
	r.requests = append(r.requests, copyOf(req))
	r.mu.Unlock()
	if r.Answer == nil {
		return hpcexec.Response{Place: r.Facts.Place, ID: req.ID}, nil
	}
	return r.Answer(ctx, req)
}

// Start is Run in the background.
func (r *Recorder) Start(ctx context.Context, req hpcexec.Request) (hpcexec.Process, error) {
	p := &recorded{r: r, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.resp, p.err = r.Run(ctx, req)
	}()
	return p, nil
}

// Properties returns Facts.
func (r *Recorder) Properties() hpcexec.Properties { return r.Facts }

// Requests are copies of what was asked so far, in order.
func (r *Recorder) Requests() []hpcexec.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}

// Signals are the names of the signals sent and the sizes ("80x24") set so
// far, in order.
func (r *Recorder) Signals() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.signals)
}

// String has all requests in the form of Format, with a blank line between two.
func (r *Recorder) String() string {
	var parts []string
	for _, req := range r.Requests() {
		parts = append(parts, Format(req))
	}
	return strings.Join(parts, "\n")
}

// copyOf is a request that doesn't change when its original does.
func copyOf(req hpcexec.Request) hpcexec.Request {
	req.Args, req.Env, req.Secrets = slices.Clone(req.Args), slices.Clone(req.Env), slices.Clone(req.Secrets)
	if req.TTY != nil {
		tty := *req.TTY
		req.TTY = &tty
	}
	return req
}

// A recorded is a process of a Recorder.
type recorded struct {
	r    *Recorder
	done chan struct{}
	resp hpcexec.Response
	err  error
}

func (p *recorded) Wait() (hpcexec.Response, error) {
	<-p.done
	return p.resp, p.err
}

func (p *recorded) Signal(name string) error { return p.note(name) }

func (p *recorded) Resize(cols, rows int) error { return p.note(fmt.Sprintf("%dx%d", cols, rows)) }

func (p *recorded) note(what string) error {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.r.signals = append(p.r.signals, what)
	return nil
}

// Format is a request as text, a line for each thing in it and no line for what
// it doesn't have. Strings are quoted as in Go, Secrets only named.
func Format(req hpcexec.Request) string {
	var b strings.Builder
	for _, a := range req.Args {
		fmt.Fprintf(&b, "arg %q\n", a)
	}
	for _, e := range req.Env {
		fmt.Fprintf(&b, "env %q\n", e)
	}
	for _, e := range req.Secrets {
		name, _, _ := strings.Cut(e, "=")
		fmt.Fprintf(&b, "secret %s\n", name)
	}
	if req.Dir != "" {
		fmt.Fprintf(&b, "dir %q\n", req.Dir)
	}
	for _, s := range []struct {
		name string
		has  bool
	}{{"stdin", req.Stdin != nil}, {"stdout", req.Stdout != nil}, {"stderr", req.Stderr != nil}} {
		if s.has {
			fmt.Fprintln(&b, s.name)
		}
	}
	if req.Timeout != 0 {
		fmt.Fprintf(&b, "timeout %v\n", req.Timeout)
	}
	if req.TTY != nil {
		fmt.Fprintf(&b, "tty %q %dx%d\n", req.TTY.Term, req.TTY.Cols, req.TTY.Rows)
	}
	if req.ID != "" {
		fmt.Fprintf(&b, "id %q\n", req.ID)
	}
	return b.String()
}

// Golden compares a text with the file testdata/NAME.golden of the package
// under test. With UPDATE_GOLDEN=1 in the environment it writes the file.
func Golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (UPDATE_GOLDEN=1 go test writes it)", err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}
