package main

import (
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hpcexec/hpcexec"
)

func testInvocation(t testing.TB) *invocation {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	return &invocation{stdio: stdio{in: null, out: null, err: null}}
}

func TestParseLine(t *testing.T) {
	words := func(w ...string) []string { return w }
	tests := []struct {
		name    string
		argv    []string
		flags   []string // what urfave/cli gets, without the program
		names   []string
		rest    []string
		dash    bool
		wantErr error
	}{
		{name: "nothing"},
		{name: "flags before and after a name", argv: words("session", "start", "--on", "slurm", "train", "--gpus", "2"),
			flags: words("session", "start", "--on=slurm", "--gpus=2"), names: words("train")},
		{name: "global flags anywhere", argv: words("--json", "session", "--quiet", "show", "train", "-v"),
			flags: words("--json", "--quiet", "--verbose", "session", "show"), names: words("train")},
		{name: "argv is verbatim", argv: words("exec", "--", "sh", "--json", "-s", "--", ""),
			flags: words("exec"), rest: words("sh", "--json", "-s", "--", ""), dash: true},
		{name: "empty after the dash", argv: words("exec", "--"), flags: words("exec"), rest: words(), dash: true},
		{name: "short flags", argv: words("exec", "-itstrain", "-e", "A=1,2", "-eB", "-C=/x", "--"),
			flags: words("exec", "--interactive", "--tty", "--session=train", "--env=A=1,2", "--env=B", "--dir=/x"), rest: words(), dash: true},
		{name: "a value that looks like a flag", argv: words("exec", "--slurm-opt", "--exclusive", "--slurm-opt=--mem=1", "--"),
			flags: words("exec", "--slurm-opt=--exclusive", "--slurm-opt=--mem=1"), rest: words(), dash: true},
		{name: "a dash alone is a name", argv: words("session", "show", "-"), flags: words("session", "show"), names: words("-")},
		{name: "an empty value", argv: words("exec", "--session", "", "--"), flags: words("exec", "--session="), rest: words(), dash: true},
		{name: "help as a command", argv: words("help", "session", "start"), flags: words("session", "start", "--help")},
		{name: "help of a group", argv: words("session", "-h"), flags: words("session", "--help")},
		{name: "help among names", argv: words("session", "rm", "help"), flags: words("session", "rm"), names: words("help")},
		{name: "version as a flag", argv: words("--version"), flags: words("version")},

		{name: "unknown command", argv: words("exce"), wantErr: hpcexec.ErrInvalid},
		{name: "unknown subcommand", argv: words("session", "begin"), flags: words("session"), wantErr: hpcexec.ErrInvalid},
		{name: "group alone", argv: words("session"), flags: words("session"), wantErr: hpcexec.ErrInvalid},
		{name: "unknown flag", argv: words("exec", "--imgae", "x"), flags: words("exec"), wantErr: hpcexec.ErrInvalid},
		{name: "unknown short flag", argv: words("exec", "-iz"), flags: words("exec", "--interactive"), wantErr: hpcexec.ErrInvalid},
		{name: "one dash and a long name", argv: words("exec", "-image", "x"), wantErr: hpcexec.ErrInvalid, flags: words("exec", "--interactive")},
		{name: "flag of a command before it", argv: words("--image", "x", "exec"), wantErr: hpcexec.ErrInvalid},
		{name: "no value", argv: words("exec", "--image"), flags: words("exec"), wantErr: hpcexec.ErrInvalid},
		{name: "the dash is no value", argv: words("exec", "--image", "--", "true"), flags: words("exec"), rest: words("true"), dash: true, wantErr: hpcexec.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := testInvocation(t)
			l, err := parseLine(in.newApp(), append([]string{"hpcexec"}, tt.argv...))
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("error: got %v, want %v", err, tt.wantErr)
			}
			if diff := cmp.Diff(append([]string{"hpcexec"}, tt.flags...), l.flags); diff != "" {
				t.Errorf("flags (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.names, l.names, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.rest, l.rest, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("rest (-want +got):\n%s", diff)
			}
			if l.dash != tt.dash {
				t.Errorf("dash: got %v, want %v", l.dash, tt.dash)
			}
		})
	}
}

// What is given before "--" must never change what stands after it.
func FuzzParseLine(f *testing.F) {
	f.Add("exec", "-s", "train", "sh")
	f.Add("--json", "exec", "--env=A=1", "--json")
	f.Add("session", "start", "-itsx", "--")
	f.Add("help", "", "-", "help")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		in := testInvocation(t)
		argv := []string{"hpcexec", a, b, c, "--", d, "--json"}
		l, err := parseLine(in.newApp(), argv)
		if a == "--" || b == "--" || c == "--" {
			return
		}
		if diff := cmp.Diff([]string{d, "--json"}, l.rest); diff != "" || !l.dash {
			t.Errorf("rest (-want +got):\n%s", diff)
		}
		if err != nil && !errors.Is(err, hpcexec.ErrInvalid) {
			t.Errorf("error: got %v, want one of kind ErrInvalid", err)
		}
	})
}

func BenchmarkVersion(b *testing.B) {
	in := testInvocation(b)
	for b.Loop() {
		runCLI([]string{"hpcexec", "version"}, in.stdio)
	}
}

func BenchmarkExec(b *testing.B) {
	in := testInvocation(b)
	for b.Loop() {
		runCLI([]string{"hpcexec", "exec", "-s", "Train", "--", "true"}, in.stdio)
	}
}

func BenchmarkNewApp(b *testing.B) {
	in := testInvocation(b)
	for b.Loop() {
		in.newApp()
	}
}
