package shim

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

// plain is a client that knows nothing of hpcexec.
func plain(t *testing.T, socket string) *ssh.Client {
	c := dial(t, socket)
	chans, reqs := make(chan ssh.NewChannel), make(chan *ssh.Request)
	close(chans)
	close(reqs)
	return ssh.NewClient(c.Conn, chans, reqs)
}

func TestPlainExec(t *testing.T) {
	home := tempDir(t)
	c := plain(t, serve(t, Options{Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}}))
	for _, tt := range []struct {
		name, command, stdin string
		env                  map[string]string
		want                 string
		wantStatus           int
		wantSignal           string
	}{
		{name: "shell line", command: `echo "$HOME" | tr a-z A-Z; pwd`, want: strings.ToUpper(home) + "\n" + home + "\n"},
		{name: "bash", command: `[[ abc == a* ]] && echo ${BASH_VERSION:+bash}`, want: "bash\n"},
		{name: "stdin", command: "cat; echo end", stdin: "in ", want: "in end\n"},
		{name: "status", command: "exit 3", wantStatus: 3},
		{name: "signal", command: "kill -TERM $$", wantStatus: 128 + 15, wantSignal: "TERM"},
		{name: "signal without a name", command: "kill -34 $$", wantStatus: 128 + 34},
		{name: "env", command: `echo "$A,$B"`, env: map[string]string{"A": "1 2", "B": "$A"}, want: "1 2,$A\n"},
		{name: "empty", command: ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := c.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for k, v := range tt.env {
				if err := s.Setenv(k, v); err != nil {
					t.Errorf("Setenv(%s): %v", k, err)
				}
			}
			s.Stdin = strings.NewReader(tt.stdin)
			out, err := s.Output(tt.command)
			if string(out) != tt.want {
				t.Errorf("got %q, want %q", out, tt.want)
			}
			var exit *ssh.ExitError
			switch {
			case tt.wantStatus == 0:
				if err != nil {
					t.Errorf("got %v, want nil", err)
				}
			case !errors.As(err, &exit):
				t.Errorf("got %v, want status %d", err, tt.wantStatus)
			case exit.ExitStatus() != tt.wantStatus || exit.Signal() != tt.wantSignal:
				t.Errorf("got status %d, signal %q, want %d, %q", exit.ExitStatus(), exit.Signal(), tt.wantStatus, tt.wantSignal)
			}
		})
	}
}

func TestPlainEnvRefused(t *testing.T) {
	c := plain(t, serve(t, Options{}))
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, bad := range []struct{ name, value string }{
		{"", "x"}, {"A-B", "x"}, {"1A", "x"}, {"A=B", "x"}, {"A", "nul\x00"}, {"BASH_FUNC_f%%", "() { :; }"}, {"A", strings.Repeat("x", maxEnv)},
	} {
		if err := s.Setenv(bad.name, bad.value); err == nil {
			t.Errorf("Setenv(%q): taken, want it refused", bad.name)
		}
	}
}

func TestPlainTerminal(t *testing.T) {
	c := plain(t, serve(t, Options{Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + tempDir(t), "PS1=$ "}}))
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.RequestPty("vt100", 44, 111, ssh.TerminalModes{ssh.ECHO: 0}); err != nil {
		t.Fatal(err)
	}
	s.Stdin = strings.NewReader("stty size; echo term=$TERM; shopt login_shell; exit 6\n")
	var out bytes.Buffer
	s.Stdout = &out
	if err := s.Shell(); err != nil {
		t.Fatal(err)
	}
	var exit *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 6 {
		t.Errorf("got %v, want status 6", err)
	}
	for _, want := range []string{"44 111", "term=vt100", "login_shell    \ton"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %q, want %q in it", &out, want)
		}
	}
}

func TestPlainShellWithoutBash(t *testing.T) {
	s := newServer(t.Context(), Options{Env: []string{"PATH=/no/such:.:relative"}})
	if got := s.shell(); got != "/bin/sh" {
		t.Errorf("got %q, want /bin/sh", got)
	}
}

func TestSFTP(t *testing.T) {
	home := tempDir(t)
	socket := serve(t, Options{Env: []string{"HOME=" + home}})
	c, err := sftp.NewClient(plain(t, socket))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if wd, err := c.Getwd(); err != nil || wd != home {
		t.Errorf("got directory %q, %v, want %q", wd, err, home)
	}
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	f, err := c.Create("sub") // a name relative to HOME
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadFrom(bytes.NewReader(data)); err != nil {
		t.Error(err)
	}
	f.Close()
	if got, err := os.ReadFile(home + "/sub"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("got %d bytes, %v, want the %d that were put", len(got), err, len(data))
	}
	f, err = c.Open(home + "/sub")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, data) {
		t.Errorf("got %d bytes back, %v, want %d", len(got), err, len(data))
	}
	f.Close()
	if err := c.PosixRename("sub", "other"); err != nil {
		t.Error(err)
	}
	if _, err := c.Stat("no-such"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want %v", err, os.ErrNotExist)
	}
}

// openSSH runs ssh of OpenSSH over the socket: with -O proxy it speaks the SSH
// connection protocol itself.
func openSSH(t *testing.T, socket string, args ...string) *exec.Cmd {
	t.Helper()
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Fatal("this test needs the ssh of OpenSSH (package openssh-client):", err)
	}
	return exec.Command("ssh", append([]string{"-F", "none", "-O", "proxy", "-S", socket, "x"}, args...)...)
}

func TestOpenSSH(t *testing.T) {
	socket := serve(t, Options{})
	cmd := openSSH(t, socket, "cat; echo $((6*7)); echo err >&2; exit 9")
	cmd.Stdin = strings.NewReader("in\n")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 9 || out.String() != "in\n42\n" || errs.String() != "err\n" {
		t.Errorf("got %d, %q, %q, want 9, \"in\\n42\\n\", \"err\\n\"", code, &out, &errs)
	}
}

func TestOpenSSHTerminal(t *testing.T) {
	cmd := openSSH(t, serve(t, Options{}), "-tt", "test -t 0 && echo $TERM")
	cmd.Env = append(os.Environ(), "TERM=vt220")
	if out, err := cmd.Output(); err != nil || string(out) != "vt220\r\n" {
		t.Errorf("got %q, %v, want the terminal's name", out, err)
	}
}

func TestOpenSSHSFTP(t *testing.T) {
	home := tempDir(t)
	cmd := openSSH(t, serve(t, Options{Env: []string{"HOME=" + home}}), "-s", "sftp")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := sftp.NewClientPipe(out, in)
	if err != nil {
		t.Fatal(err)
	}
	if wd, err := c.Getwd(); err != nil || wd != home {
		t.Errorf("got directory %q, %v, want %q", wd, err, home)
	}
	c.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("ssh: %v", err)
	}
}
