package apptainer

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/exectest"
)

// fakeInstance is one whose runtime is this test binary.
func fakeInstance(t *testing.T, name string) *Instance {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &Runtime{Path: exe, Flavor: Apptainer, Version: Version{1, 4, 5}, ConfigDir: "/run/cfg"}
	return r.Attach(Info{Name: name})
}

// TestConformanceFake holds the wrapper to the contract over a runtime that is
// played; TestConformance does with the real one, on the testbed.
func TestConformanceFake(t *testing.T) {
	exectest.Run(t, exectest.Suite{New: func(t *testing.T) hpcexec.Executor {
		w := fakeInstance(t, "hpcexec-x").Wrap(&hpcexec.Local{})
		// Less than usual: ending a tree takes walks through /proc, which is
		// this whole machine's here and not a container's.
		w.Grace = 700 * time.Millisecond
		return w
	}})
}

var nonces = regexp.MustCompile(`(hpcexec:|HPCEXEC_RUN=)[a-z2-7]{26}`)

// TestWrapGolden: what exactly is asked of the base.
func TestWrapGolden(t *testing.T) {
	for _, tc := range []struct {
		name    string
		flavor  Flavor
		request hpcexec.Request
	}{
		{"plain", Apptainer, hpcexec.Request{Args: []string{"ls", "-l", "a b"}, ID: "id1"}},
		{"all", Apptainer, hpcexec.Request{
			Args: []string{"python", "-c", "print('$HOME')"}, Dir: "/work dir", Timeout: time.Minute, ID: "id2",
			Env:     []string{"A=1", "B=two words", "A=3", "PATH=/x:/y", "TOKEN=old"},
			Secrets: []string{"TOKEN=s3cret", "HOME=/secret home"}, Stdin: strings.NewReader("x"),
		}},
		{"singularity", SingularityCE, hpcexec.Request{Args: []string{"true"}, Env: []string{"A=1"}, ID: "id3"}},
		{"bytes", Apptainer, hpcexec.Request{Args: []string{"echo", "\xff\n"}, Dir: "/d", Env: []string{"A=\x80b"}, ID: "id4"}},
		{"terminal", Apptainer, hpcexec.Request{Args: []string{"top"}, TTY: &hpcexec.TTY{Term: "xterm", Cols: 80, Rows: 24}, ID: "id5"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := &Runtime{Path: "/usr/bin/apptainer", Flavor: tc.flavor, ConfigDir: "/run/x/apptainer"}
			rec := &exectest.Recorder{}
			var secretSeen bool
			rec.Answer = func(_ context.Context, req hpcexec.Request) (hpcexec.Response, error) {
				secretSeen = strings.Contains(strings.Join(append(req.Args, req.Env...), "\n"), "s3cret")
				return hpcexec.Response{}, nil
			}
			r.Attach(Info{Name: "hpcexec-x"}).Wrap(rec).Run(t.Context(), tc.request)
			if secretSeen {
				t.Error("a secret is in argv or Env")
			}
			text := nonces.ReplaceAllString(rec.String(), "${1}NONCE")
			for name, script := range map[string]string{"ENTER": enterScript, "JOB": jobScript} {
				text = strings.ReplaceAll(text, quoted(script), "<"+name+" SCRIPT>")
			}
			exectest.Golden(t, "wrap/"+tc.name, text)
		})
	}
}

func quoted(s string) string {
	line, _, _ := strings.Cut(exectest.Format(hpcexec.Request{Args: []string{s}}), "\n")
	return strings.TrimPrefix(line, "arg ")
}

// answering is a base whose command prints and ends as told.
func answering(code int, signal, stderr string) *exectest.Recorder {
	return &exectest.Recorder{Answer: func(_ context.Context, req hpcexec.Request) (hpcexec.Response, error) {
		if req.Stderr != nil {
			nonce := nonces.FindString(strings.Join(req.Args, " "))
			for _, c := range strings.ReplaceAll(stderr, "NONCE", nonce) {
				req.Stderr.Write([]byte(string(c)))
			}
		}
		return hpcexec.Response{ExitCode: code, Signal: signal}, nil
	}}
}

func TestWrapJudges(t *testing.T) {
	for _, tc := range []struct {
		name       string
		code       int
		signal     string
		stderr     string // what the base's command prints
		wantErr    error
		wantCode   int
		wantStderr string
	}{
		{name: "normal", stderr: "WARNING: noise\nNONCE run 17\nmine", wantStderr: "mine"},
		{name: "255 of the command", code: 255, stderr: "NONCE run 17\nFATAL: mine\n", wantCode: 255, wantStderr: "FATAL: mine\n"},
		{name: "255 of the runtime", code: 255, stderr: "FATAL:   While setting image/instance: no instance found with name hpcexec-x\n", wantErr: ErrNotFound},
		{name: "no shell", code: 255, stderr: "FATAL:   stat /bin/sh: no such file or directory\n", wantErr: hpcexec.ErrInvalid},
		{name: "served by a dead process", code: 255, stderr: "FATAL:   stat /bin/sh: transport endpoint is not connected\n", wantErr: hpcexec.ErrUnavailable},
		{name: "runtime missing", code: 127, stderr: "hpcexec: /usr/bin/apptainer: not found\n", wantErr: hpcexec.ErrUnavailable},
		{name: "runtime silent", code: 137, signal: "KILL", wantErr: hpcexec.ErrUnavailable},
		{name: "no directory", code: 125, stderr: "NONCE dir not a directory\n", wantErr: hpcexec.ErrInvalid},
		{name: "carriage return", stderr: "NONCE run 17\r\nx\r\n", wantStderr: "x\r\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := &Runtime{Path: "/usr/bin/apptainer", Flavor: Apptainer}
			w := r.Attach(Info{Name: "hpcexec-x"}).Wrap(answering(tc.code, tc.signal, tc.stderr))
			var stderr bytes.Buffer
			resp, err := w.Run(t.Context(), hpcexec.Request{Args: []string{"x"}, Dir: "/d", Stderr: &stderr})
			if !errors.Is(err, tc.wantErr) {
				t.Errorf("got error %v, want %v", err, tc.wantErr)
			}
			if resp.ExitCode != tc.wantCode || stderr.String() != tc.wantStderr {
				t.Errorf("got exit code %d, stderr %q, want %d, %q", resp.ExitCode, stderr.String(), tc.wantCode, tc.wantStderr)
			}
		})
	}
}

// TestFilterBounded: a runtime that floods its output doesn't fill memory, and
// the message is found after it.
func TestFilterBounded(t *testing.T) {
	var out bytes.Buffer
	f := newFilter("MARK")
	f.to = &out
	f.Write([]byte("FATAL:   first\n"))
	for range 1000 {
		f.Write(bytes.Repeat([]byte("x"), 1000))
	}
	if n := len(f.head); n > 2*maxHead {
		t.Errorf("%d bytes are kept, want at most %d", n, 2*maxHead)
	}
	if _, text := f.result(); !strings.HasPrefix(text, "FATAL:   first\n") {
		t.Error("the first line is lost")
	}
	f.Write([]byte("\nMA"))
	f.Write([]byte("RK run 5\nrest"))
	if state, _ := f.result(); state != stateRun || f.pid() != 5 || out.String() != "rest" {
		t.Errorf("got state %v, pid %d, output %q", state, f.pid(), out.String())
	}
}

// FuzzOctal: what the script decodes is what was encoded, by a real shell.
func FuzzOctal(f *testing.F) {
	seeds := []string{"", "a", "\xff\x00"[:1], "x\n\n", "\\0101", "%s %b", "-n", "ü", "'\"`$(id)", "\x7f\x80\x01"}
	for _, s := range seeds {
		f.Add(s)
	}
	if len(seeds) == 0 {
		f.Fatal("the corpus is empty")
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Contains(s, "\x00") {
			return
		}
		o := octal(s)
		if !utf8.ValidString(o) || strings.ContainsAny(o, " '\"$`\n") {
			t.Errorf("octal(%q): got %q, which isn't plain", s, o)
		}
		out, err := exec.Command("sh", "-c", `v=$(printf %bx "$1"); printf %s "${v%x}"`, "sh", o).Output()
		if err != nil || string(out) != s {
			t.Errorf("octal(%q): the shell makes %q of it, %v", s, out, err)
		}
	})
}

func TestCheckSize(t *testing.T) {
	big := strings.Repeat("x", 100_000)
	many := func(n int, v string) (out []string) {
		for i := range n {
			out = append(out, "V"+string(rune('A'+i))+"="+v)
		}
		return out
	}
	for _, tc := range []struct {
		name    string
		argv    []string
		env     []string
		wantErr error
	}{
		{name: "small", argv: []string{"x"}, env: []string{"A=1"}},
		{name: "one entry too long", env: []string{"A=" + strings.Repeat("x", 131072)}, wantErr: hpcexec.ErrInvalid},
		{name: "argument too long", argv: []string{strings.Repeat("x", 131072)}, wantErr: hpcexec.ErrInvalid},
		{name: "eight large", env: many(8, big)},
		{name: "twelve large", env: many(12, big), wantErr: hpcexec.ErrInvalid},
		{name: "JSON makes it longer", env: many(3, strings.Repeat("<", 100_000)), wantErr: hpcexec.ErrInvalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := checkSize(tc.argv, tc.env)
			if !errors.Is(err, tc.wantErr) {
				t.Errorf("got %v, want %v", err, tc.wantErr)
			}
			if err != nil && strings.Contains(err.Error(), "xxx") {
				t.Errorf("the error has the value: %v", err)
			}
		})
	}
}

// TestSignalScriptBare: the script does without grep and cat.
func TestSignalScriptBare(t *testing.T) {
	for _, path := range []string{"/nonexistent", os.Getenv("PATH")} {
		run := hpcexec.NewID()
		var cmds []*exec.Cmd
		for _, mark := range []string{run, run, hpcexec.NewID()} {
			cmd := exec.Command("sleep", "600")
			cmd.Env = []string{"A=1\n2", "HPCEXEC_RUN=" + mark, "Z=" + strings.Repeat("z", 5000)}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait()
			defer cmd.Process.Kill()
			cmds = append(cmds, cmd)
		}
		script := exec.Command("/bin/sh", "-c", signalScript, "hpcexec", "TERM", "999999999", run, "tree", "0.05 0.1")
		script.Env = []string{"PATH=" + path}
		if out, err := script.CombinedOutput(); err != nil {
			t.Errorf("PATH=%s: %v: %s", path, err, out)
		}
		for i, cmd := range cmds {
			_, st, _ := procOf(cmd.Process.Pid)
			if gone := st.state == 'Z'; gone != (i < 2) {
				t.Errorf("PATH=%s: process %d: got state %q, want those of the run to be gone and no other", path, i, st.state)
			}
		}
	}
}
