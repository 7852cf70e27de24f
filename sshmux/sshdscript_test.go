package sshmux

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/hpcexec/hpcexec"
)

// shells are those that /bin/sh is on one system or another, as far as they
// are installed here; sh always is.
func shells(t testing.TB) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, argv := range [][]string{{"sh"}, {"dash"}, {"bash", "--posix"}, {"busybox", "sh"}, {"ksh"}, {"mksh"}, {"yash"}} {
		if path, err := exec.LookPath(argv[0]); err == nil {
			all[argv[0]] = append([]string{path}, argv[1:]...)
		}
	}
	if all["sh"] == nil {
		t.Fatal("no sh")
	}
	return all
}

// runLine runs a script in a shell as an SSH server would, with more stdin
// behind it, and gives what the command itself wrote.
func runLine(t testing.TB, sh []string, s script, stdin string) (stdout, stderr string, code int) {
	t.Helper()
	line, err := s.line()
	if err != nil {
		t.Fatal(err)
	}
	if i := strings.IndexByte(line, '\n'); i != len(line)-1 {
		t.Fatalf("the line has a newline at %d of %d", i, len(line))
	}
	// What bootLine makes of the shell, with this one in the place of sh.
	cmd := exec.Command(sh[0], append(sh[1:], "-c", `IFS= read -r hpcexec_x && eval "$hpcexec_x"`)...)
	cmd.Stdin = io.MultiReader(strings.NewReader(line), strings.NewReader(stdin))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(out.String(), s.token+" "+saysPID+" ")
	if ok {
		_, after, _ = strings.Cut(after, "\n")
		return after, strings.TrimPrefix(errs.String(), s.token+"\n"), cmd.ProcessState.ExitCode()
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// everyByte is all bytes but NUL, newlines at its end.
func everyByte() string {
	var b []byte
	for c := 1; c < 256; c++ {
		b = append(b, byte(c))
	}
	return string(b) + "\n\n"
}

func TestScript(t *testing.T) {
	for name, sh := range shells(t) {
		t.Run(name, func(t *testing.T) {
			t.Setenv("hpcexec_x", "exported") // by an unlucky user
			t.Setenv("hpcexec_v", "exported")
			s := script{token: "TOKEN", mark: "HPCEXEC_MARK=m", dir: "/",
				args: []string{"sh", "-c", `printf '%s|' "$@"; printf '%s|' "$A" "$B" "$UID_" "$PWD" "$HPCEXEC_MARK" "${hpcexec_x-none}" "${hpcexec_v-none}" "$IFS"; cat`,
					"sh", everyByte(), "", " a  b ", "it's", "$HOME", "*", "-n", "a\n"},
				env: []string{"A=" + everyByte(), "B=", "UID_=x", "IFS=ab"},
			}
			out, errs, code := runLine(t, sh, s, "rest\nof stdin")
			want := strings.Join(s.args[4:], "|") + "|" + everyByte() + "||x|/|m|none|none|" + " \t\n" + "|rest\nof stdin"
			// A shell resets IFS at its start; what it got is env's to tell.
			if out != want || code != 0 {
				t.Errorf("got %q, exit code %d, stderr %q\nwant %q", out, code, errs, want)
			}
		})
	}
}

func TestScriptEnds(t *testing.T) {
	tests := []struct {
		name   string
		s      script
		code   int
		stdout string
		stderr string
	}{
		{"not found", script{args: []string{"hpcexec-no-such-program"}}, 127, "", "hpcexec-no-such-program"},
		{"not executable", script{args: []string{"/etc/passwd"}}, 126, "", "/etc/passwd"},
		{"no directory", script{args: []string{"true"}, dir: "/no/such/dir"}, 0, "TOKEN dir\n", ""},
		{"variables that shells can't set", script{args: []string{"env"}, env: []string{"UID=5", "RANDOM=x", "_=y", "OPTIND=z", "BASH_X=1"}}, 0, "UID=5\n", ""},
		{"program like an assignment", script{args: []string{"A=b", "true"}}, 127, "", "A=b"},
	}
	for name, sh := range shells(t) {
		for _, tt := range tests {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				s := tt.s
				s.token, s.mark = "TOKEN", "HPCEXEC_MARK=m"
				out, errs, code := runLine(t, sh, s, "")
				if code != tt.code || !strings.Contains(out, tt.stdout) || !strings.Contains(errs, tt.stderr) {
					t.Errorf("got exit code %d, %q, %q, want %d, %q, %q", code, out, errs, tt.code, tt.stdout, tt.stderr)
				}
				if tt.name == "variables that shells can't set" {
					for _, e := range s.env {
						if !strings.Contains("\n"+out, "\n"+e+"\n") && !strings.HasPrefix(e, "_=") {
							t.Errorf("got %q, want %q in it", out, e)
						}
					}
				}
			})
		}
	}
}

func TestScriptRefuses(t *testing.T) {
	long := strings.Repeat("x", maxArg)
	for _, s := range []script{
		{args: []string{"true", long}},
		{args: []string{"true"}, env: []string{"A=" + long}},
		{args: []string{"a=b"}, env: []string{"UID=1"}},
	} {
		if _, err := s.line(); !errors.Is(err, hpcexec.ErrInvalid) {
			t.Errorf("%.20q: got error %v, want ErrInvalid", s.args, err)
		}
	}
	if err := checkSecrets([]string{"A=1", "UID=secret"}); !errors.Is(err, hpcexec.ErrInvalid) || strings.Contains(err.Error(), "secret,") {
		t.Errorf("got error %v, want ErrInvalid without the value", err)
	}
}

func FuzzScript(f *testing.F) {
	f.Add("a b", "c\nd")
	f.Add(everyByte(), "'\\''")
	f.Add("$(id)", "`id`;!x\x81\x88")
	sh := shells(f)["sh"]
	f.Fuzz(func(t *testing.T, arg, value string) {
		if strings.IndexByte(arg+value, 0) >= 0 || len(arg)+len(value) > 4096 {
			return
		}
		s := script{token: "TOKEN", mark: "M=m", args: []string{"sh", "-c", `printf '%s|%s.' "$1" "$V"`, "sh", arg}, env: []string{"V=" + value}}
		if out, errs, _ := runLine(t, sh, s, ""); out != arg+"|"+value+"." {
			t.Errorf("got %q, %q, want %q", out, errs, arg+"|"+value+".")
		}
	})
}

func TestWatcherIsPOSIX(t *testing.T) {
	for name, sh := range shells(t) {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(sh[0], append(sh[1:], "-n")...)
			cmd.Stdin = strings.NewReader(watcherScript)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			// It answers, and ends with its stdin.
			cmd = exec.Command(sh[0], append(sh[1:], "-c", `IFS= read -r hpcexec_x && eval "$hpcexec_x"`)...)
			cmd.Stdin = strings.NewReader(program(defaultGrace) + "+ no-such-id 0 5\n- no-such-id\nk no-such-id 0 0\n")
			out, err := cmd.CombinedOutput()
			if want := watcherReady + "\nd no-such-id 0\n"; string(out) != want || err != nil {
				t.Errorf("got %q, %v, want %q", out, err, want)
			}
		})
	}
}
