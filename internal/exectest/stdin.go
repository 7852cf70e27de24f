package exectest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

func stdinClauses() []Clause {
	return []Clause{
		{"StdinNil", "A nil Stdin is empty.", stdinNil},
		{"Stdin", "Stdin is delivered whole, with its end; 10 MB of any bytes too.", stdin},
		{"StdinSlow", "What Stdin has is delivered at once, it doesn't wait for more.", stdinSlow},
		{"StdinFile", "An *os.File is a Stdin like another, a pipe and a file alike.", stdinFile},
		{"StdinNeverEOF", "When the command ends Run returns, although Stdin never does.", stdinNeverEOF},
		{"StdinUnread", "A command needn't read its Stdin: it ends as it ends.", stdinUnread},
		{"StdinFails", "A Stdin that fails is an end of file to the command and no error of Run.", stdinFails},
		{"StdinLeftAlone", "No Read of Stdin begins once Run has returned.", stdinLeftAlone},
	}
}

// random is n bytes that look random, the same each time.
func random(n int) []byte {
	b := make([]byte, n)
	var seed [32]byte
	rand.NewChaCha8(seed).Read(b)
	return b
}

func stdinNil(t *T) {
	r := t.ok(t.sh(`cat; echo "end $?"`))
	t.wantOutput(r.stdout, "end 0\n")
}

func stdin(t *T) {
	for _, n := range []int{0, 1, 4096, 65536, 65537, 10 << 20} {
		data := random(n)
		req := t.sh(`cat`)
		req.Stdin = bytes.NewReader(data)
		r := t.ok(req)
		if sha256.Sum256([]byte(r.stdout)) != sha256.Sum256(data) {
			t.Errorf("%d bytes: got %d others back", n, len(r.stdout))
		}
	}
	// A Reader that comes with its own way to be read, and gives little.
	req := t.sh(`wc -c`)
	req.Stdin = io.LimitReader(oneByte{}, 3000)
	if got := strings.TrimSpace(t.ok(req).stdout); got != "3000" {
		t.Errorf("byte by byte: got %s bytes, want 3000", got)
	}
}

type oneByte struct{}

func (oneByte) Read(b []byte) (int, error) { b[0] = 'x'; return 1, nil }

func stdinSlow(t *T) {
	r, w := io.Pipe()
	defer w.Close()
	req := t.sh(`while read -r l; do echo "got $l"; done; echo end`)
	req.Stdin = r
	fed := make(chan struct{})
	go func() { defer close(fed); io.WriteString(w, "one\n") }()
	rn := t.launch(req, "got one\n")
	<-fed
	io.WriteString(w, "two\n")
	w.Close()
	res := rn.wait()
	t.wantCode(res, 0)
	t.wantOutput(res.stdout, "got one\ngot two\nend\n")
}

func stdinFile(t *T) {
	path := t.T.TempDir() + "/in"
	data := random(300 << 10)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Close()
	defer pw.Close()
	go func() { pw.Write(data); pw.Close() }()
	for name, in := range map[string]*os.File{"file": f, "pipe": pr} {
		req := t.sh(`cat`)
		req.Stdin = in
		if r := t.ok(req); r.stdout != string(data) {
			t.Errorf("%s: got %d bytes, want the %d that are in it", name, len(r.stdout), len(data))
		}
	}
	// One that stays open, too.
	pr2, pw2, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pr2.Close()
	defer pw2.Close()
	req := t.sh(`exit 3`)
	req.Stdin = pr2
	t.wantCode(t.run(t.ctx, req), 3)
}

func stdinNeverEOF(t *T) {
	req := t.sh(`read -r l; echo "$l"`)
	req.Stdin = t.stuck("line\n")
	r := t.run(t.ctx, req)
	t.wantCode(r, 0)
	t.wantOutput(r.stdout, "line\n")
	req = t.sh(`exit 3`)
	req.Stdin = t.stuck("")
	t.wantCode(t.run(t.ctx, req), 3)
}

func stdinUnread(t *T) {
	for _, script := range []string{`exit 3`, `exec <&-; exit 3`, `head -c 10 >/dev/null; exit 3`} {
		req := t.sh(script)
		req.Stdin = bytes.NewReader(random(10 << 20))
		t.wantCode(t.run(t.ctx, req), 3)
	}
}

func stdinFails(t *T) {
	req := t.sh(`cat; echo " end"`)
	req.Stdin = io.MultiReader(strings.NewReader("part"), failing{})
	r := t.ok(req)
	t.wantOutput(r.stdout, "part end\n")
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("exectest: a reader that fails") }

func (failing) Write([]byte) (int, error) { return 0, errors.New("exectest: a writer that fails") }

func stdinLeftAlone(t *T) {
	// A Reader that always has something: the copier is hardly ever idle.
	for range 20 {
		in := &countingReader{}
		req := t.sh(`head -c 5 >/dev/null`)
		req.Stdin = in
		t.ok(req)
		before := in.begun.Load()
		time.Sleep(5 * time.Millisecond)
		// One may have been about to begin.
		if n := in.begun.Load() - before; n > 1 {
			t.Fatalf("%d Reads began after the return", n)
		}
	}
}

// A countingReader always has something to read, and counts.
type countingReader struct{ begun atomic.Int64 }

func (r *countingReader) Read(b []byte) (int, error) {
	r.begun.Add(1)
	return copy(b, "line\n"), nil
}
