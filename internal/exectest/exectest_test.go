package exectest

import (
	"bufio"
	"context"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hpcexec/hpcexec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// docs/contract.md has a line for each clause:
//
//  12. The rule. `Case`
var clauseLine = regexp.MustCompile("^([0-9]+)\\. (.*) `([A-Za-z]+)`$")

func TestDocument(t *testing.T) {
	f, err := os.Open("../../docs/contract.md")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	clauses := Clauses()
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m := clauseLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		if number, _ := strconv.Atoi(m[1]); number != n+1 {
			t.Fatalf("after clause %d comes %d", n, number)
		}
		if n == len(clauses) {
			t.Fatalf("the document has clause %d (%s), the suite hasn't", n+1, m[3])
		}
		if c := clauses[n]; c.Name != m[3] || c.Rule != m[2] {
			t.Errorf("clause %d: the document has\n%s %s\nthe suite\n%s %s", n+1, m[2], m[3], c.Rule, c.Name)
		}
		n++
	}
	if n != len(clauses) {
		t.Errorf("the document has %d clauses, the suite %d: %s is missing", n, len(clauses), clauses[n].Name)
	}
}

func TestClauses(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Clauses() {
		if seen[c.Name] {
			t.Errorf("%s is there twice", c.Name)
		}
		seen[c.Name] = true
		if !strings.HasSuffix(c.Rule, ".") || c.fn == nil {
			t.Errorf("%s: got rule %q, want a sentence, and a case", c.Name, c.Rule)
		}
	}
}

func TestRecorder(t *testing.T) {
	r := &Recorder{
		Facts: hpcexec.Properties{Place: "nowhere"},
		Answer: func(ctx context.Context, req hpcexec.Request) (hpcexec.Response, error) {
			io.WriteString(req.Stdout, "out")
			return hpcexec.Response{ExitCode: 3}, nil
		},
	}
	args := []string{"prog", "a b"}
	var out strings.Builder
	resp, err := r.Run(context.Background(), hpcexec.Request{
		Args: args, Env: []string{"A=1\n"}, Secrets: []string{"TOKEN=hidden"}, Dir: "/d", Stdout: &out,
		Timeout: time.Minute, TTY: &hpcexec.TTY{Term: "xterm", Cols: 80, Rows: 24}, ID: "id1",
	})
	if err != nil || resp.ExitCode != 3 || out.String() != "out" {
		t.Errorf("got exit code %d, error %v, output %q, want 3, nil, %q", resp.ExitCode, err, out.String(), "out")
	}
	args[0] = "changed"
	want := `arg "prog"
arg "a b"
env "A=1\n"
secret TOKEN
dir "/d"
stdout
timeout 1m0s
tty "xterm" 80x24
id "id1"
`
	if got := r.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	p, err := r.Start(context.Background(), hpcexec.Request{Args: []string{"two"}, Stdout: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	p.Signal("TERM")
	p.Resize(80, 24)
	if resp, err := p.Wait(); err != nil || resp.ExitCode != 3 {
		t.Errorf("Wait: got exit code %d, error %v, want 3, nil", resp.ExitCode, err)
	}
	if got := r.Signals(); !slices.Equal(got, []string{"TERM", "80x24"}) {
		t.Errorf("signals: got %q", got)
	}
	if n := len(r.Requests()); n != 2 || r.Properties().Place != "nowhere" {
		t.Errorf("got %d requests at %q, want 2 at nowhere", n, r.Properties().Place)
	}
}

func TestGolden(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("UPDATE_GOLDEN", "1")
	Golden(t, "sub/x", "text\n")
	t.Setenv("UPDATE_GOLDEN", "")
	Golden(t, "sub/x", "text\n")
	if got, err := os.ReadFile("testdata/sub/x.golden"); err != nil || string(got) != "text\n" {
		t.Errorf("got %q, %v, want the text", got, err)
	}
}
