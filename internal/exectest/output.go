package exectest

import (
	"bytes"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hpcexec/hpcexec"
)

func outputClauses() []Clause {
	return []Clause{
		{"Streams", "Stdout and Stderr stay apart; a nil Writer discards its stream.", streams},
		{"Binary", "Output arrives byte by byte as written: every byte value, no line ends changed, none added.", binary},
		{"Large", "Output of several megabytes on both streams arrives whole and unmixed.", large},
		{"Prompt", "Output arrives while the command runs.", prompt},
		{"LateOutput", "What a command writes just before it ends arrives, although the Writer is slow.", lateOutput},
		{"NoWriteAfterReturn", "Nobody writes to Stdout or Stderr once Run has returned.", noWriteAfterReturn},
		{"SlowReader", "Any amount of output passes through a slow Writer in constant memory.", slowReader},
		{"SameWriter", "A Writer that is both Stdout and Stderr gets both streams and is never called by two goroutines at once.", sameWriter},
		{"OutputFile", "An *os.File is a Writer like another, a pipe and a file alike.", outputFile},
		{"WriterFails", "A Writer that fails is a closed pipe to the command: SIGPIPE ends it when it writes on; Run returns no error.", writerFails},
		{"BackgroundHoldsOutput", "A background process that holds the output open doesn't delay the return, even one that writes all the time.", backgroundHolds},
		{"Parallel", "Runs at the same time don't mix: 64 at once.", parallel},
	}
}

func streams(t *T) {
	req := t.sh(`echo out; echo err >&2; echo out2`)
	r := t.ok(req)
	t.wantOutput(r.stdout, "out\nout2\n")
	t.wantOutput(r.stderr, "err\n")

	var w writer
	for _, req := range []hpcexec.Request{
		{Args: []string{"sh", "-c", `head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; exit 4`}},
		{Args: []string{"sh", "-c", `echo out; echo err >&2; exit 4`}, Stdout: &w},
		{Args: []string{"sh", "-c", `echo out; echo err >&2; exit 4`}, Stderr: &w},
	} {
		if r, err := t.ex.Run(t.ctx, req); err != nil || r.ExitCode != 4 {
			t.Fatalf("with nil Writers: got exit code %d, error %v, want 4, nil", r.ExitCode, err)
		}
	}
	t.wantOutput(w.String(), "out\nerr\n")
}

func binary(t *T) {
	data := random(100 << 10)
	for i := range 256 {
		data[i] = byte(i)
	}
	for script, want := range map[string]string{
		`cat`:                                 string(data),
		`cat >&2`:                             "",
		`cat >/dev/null; printf 'a\r\n'`:      "a\r\n",
		`cat >/dev/null; printf 'no newline'`: "no newline",
	} {
		req := t.sh(script)
		req.Stdin = bytes.NewReader(data)
		t.wantOutput(t.ok(req).stdout, want)
	}
}

func large(t *T) {
	// Lines with numbers, so that a lost or doubled block shows.
	r := t.ok(t.sh(`
		n() { i=0; while [ $i -lt 400 ]; do echo "$1 $i $2"; i=$((i+1)); done; }
		n out "$1" & n err "$1" >&2; wait; n last "$1"`, strings.Repeat("x", 8000)))
	check := func(stream, got string, names ...string) {
		want := new(strings.Builder)
		for _, name := range names {
			for i := range 400 {
				want.WriteString(name + " " + itoa(i) + " " + strings.Repeat("x", 8000) + "\n")
			}
		}
		if got != want.String() {
			t.Errorf("%s: got %d bytes, want %d, or they differ", stream, len(got), want.Len())
		}
	}
	check("stdout", r.stdout, "out", "last")
	check("stderr", r.stderr, "err")
}

func prompt(t *T) {
	req := t.sh(`echo up; read -r x; echo "$x"`)
	in := t.stuck("")
	in.gate = make(chan string, 1)
	req.Stdin = in
	rn := t.launch(req, "up\n") // or it would fail: the command waits for us
	in.gate <- "go on\n"
	r := rn.wait()
	t.wantCode(r, 0)
	t.wantOutput(r.stdout, "up\ngo on\n")
}

// A slowWriter takes its time for each Write.
type slowWriter struct {
	writer
	pause time.Duration
	total atomic.Int64
	keep  bool
}

func (w *slowWriter) Write(b []byte) (int, error) {
	time.Sleep(w.pause)
	w.total.Add(int64(len(b)))
	if !w.keep {
		return len(b), nil
	}
	return w.writer.Write(b)
}

func lateOutput(t *T) {
	want := strings.Repeat("0123456789abcde\n", 60<<10/16)
	for range 10 {
		req := t.sh(`printf %s "$1$1"; printf %s "$1" >&2`, want)
		out, errOut := &slowWriter{pause: 10 * time.Millisecond, keep: true}, &slowWriter{pause: 10 * time.Millisecond, keep: true}
		req.Stdout, req.Stderr = out, errOut
		t.ok(req)
		t.wantOutput(out.String(), want+want)
		t.wantOutput(errOut.String(), want)
	}
}

func noWriteAfterReturn(t *T) {
	for range 5 {
		// It goes on, until SIGPIPE or the end of the case.
		r := t.ok(t.sh(`(while :; do echo more; done) & (while :; do echo more >&2; done) & echo up`))
		n, m := r.stdoutW.count(), r.stderrW.count()
		time.Sleep(50 * time.Millisecond)
		if n2, m2 := r.stdoutW.count(), r.stderrW.count(); n2 != n || m2 != m {
			t.Fatalf("%d Writes after the return", n2-n+m2-m)
		}
	}
}

func slowReader(t *T) {
	const total, limit = 96 << 20, 40 << 20
	out := &slowWriter{pause: 20 * time.Microsecond}
	var most atomic.Int64
	done := make(chan struct{})
	stop := make(chan struct{})
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most.Store(max(most.Load(), int64(m.HeapInuse)-int64(before.HeapInuse)))
			}
		}
	}()
	req := t.sh(`head -c "$1" /dev/zero`, itoa(total))
	req.Stdout = out
	r := t.run(t.ctx, req)
	close(stop)
	<-done
	t.wantCode(r, 0)
	if got := out.total.Load(); got != total {
		t.Errorf("got %d bytes, want %d", got, total)
	}
	if got := most.Load(); got > limit {
		t.Errorf("used %d MiB of memory for %d MiB of output, want less than %d", got>>20, total>>20, limit>>20)
	}
}

func sameWriter(t *T) {
	w := &loneWriter{writer: newWriter()}
	req := t.sh(`i=0; while [ $i -lt 500 ]; do echo out; echo err >&2; i=$((i+1)); done`)
	req.Stdout, req.Stderr = w, w
	r, err := t.ex.Run(t.ctx, req)
	if err != nil || r.ExitCode != 0 {
		t.Fatalf("got exit code %d, error %v, want 0, nil", r.ExitCode, err)
	}
	got := w.String()
	if strings.Count(got, "out\n") != 500 || strings.Count(got, "err\n") != 500 || len(got) != 4000 {
		t.Errorf("got %d bytes, want 500 lines of each stream", len(got))
	}
	if w.twin.Load() {
		t.Error("two goroutines wrote at once")
	}
}

// A loneWriter notices when two write at once.
type loneWriter struct {
	*writer
	busy sync.Mutex
	twin atomic.Bool
}

func (w *loneWriter) Write(b []byte) (int, error) {
	if !w.busy.TryLock() {
		w.twin.Store(true)
		return w.writer.Write(b)
	}
	defer w.busy.Unlock()
	time.Sleep(200 * time.Microsecond) // or they would hardly meet
	return w.writer.Write(b)
}

func outputFile(t *T) {
	path := t.T.TempDir() + "/out"
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	req := t.sh(`head -c 300000 /dev/zero; echo end >&2`)
	req.Stdout, req.Stderr = f, f
	t.ok(req)
	got, err := os.ReadFile(path)
	if err != nil || len(got) != 300004 || !bytes.HasSuffix(got, []byte("end\n")) {
		t.Errorf("file: got %d bytes, %v, want 300004", len(got), err)
	}

	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Close()
	read := make(chan string)
	go func() {
		var b bytes.Buffer
		b.ReadFrom(pr)
		read <- b.String()
	}()
	req = t.sh(`head -c 300000 /dev/zero; echo end`)
	req.Stdout = pw
	t.ok(req)
	pw.Close()
	if got := <-read; len(got) != 300004 || !strings.HasSuffix(got, "end\n") {
		t.Errorf("pipe: got %d bytes, want 300004", len(got))
	}
}

func writerFails(t *T) {
	for _, script := range []string{`while :; do echo y; done`, `while :; do echo y; done >&2`} {
		req := t.sh(script)
		req.Stdout, req.Stderr = failing{}, failing{}
		r := t.run(t.ctx, req)
		t.wantCode(r, 128+13)
	}
	req := t.sh(`echo y; exit 3`) // it needn't write on
	req.Stdout = failing{}
	if r := t.run(t.ctx, req); r.err != nil || r.ExitCode != 3 && r.ExitCode != 128+13 {
		t.Errorf("a command that writes once: got exit code %d, error %v, want 3 (or 141), nil", r.ExitCode, r.err)
	}
}

func backgroundHolds(t *T) {
	r := t.ok(t.sh(`sleep 600 & echo up`))
	t.wantOutput(r.stdout, "up\n")
	// One that never lets the pipe run dry.
	rn := t.launch(t.sh(`(while :; do echo more; done) & sleep 1`), "more\n")
	t.wantCode(rn.wait(), 0)
	// Some that fill the pipe faster than it is read: it is never empty.
	req := t.sh(`for i in 1 2 3 4 5 6; do cat /dev/zero & done; sleep 0.3 2>/dev/null || sleep 1; exit 4`)
	out := &slowWriter{pause: 50 * time.Millisecond}
	req.Stdout = out
	r = t.run(t.ctx, req)
	t.wantCode(r, 4)
	// A pipe and the window of a connection are what may be on the way.
	limit := 1<<20*4 + int64(r.Ended.Sub(r.Started)/out.pause)*64<<10
	if got := out.total.Load(); got > limit {
		t.Errorf("got %d bytes, most of them written after the end", got)
	}
}

func parallel(t *T) {
	const n = 64
	errs := make(chan string, n)
	for i := range n {
		go func() {
			id := itoa(i)
			req := t.sh(`cat; printf '%s %s\n' "$1" "$EXECTEST_I"; echo "err $1" >&2; exit "$1"`, id)
			req.Env = append(req.Env, "EXECTEST_I=env "+id)
			req.Stdin = strings.NewReader("in " + id + "\n")
			r := t.run(t.ctx, req)
			msg := ""
			if want := "in " + id + "\n" + id + " env " + id + "\n"; r.err != nil || r.ExitCode != i || r.stdout != want || r.stderr != "err "+id+"\n" {
				msg = "run " + id + ": got exit code " + itoa(r.ExitCode) + ", stdout " + r.stdout + ", stderr " + r.stderr
				if r.err != nil {
					msg += ", error " + r.err.Error()
				}
			}
			errs <- msg
		}()
	}
	for range n {
		if msg := <-errs; msg != "" {
			t.Error(msg)
		}
	}
}
