package shim

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

func sh(script string, args ...string) []string {
	return append([]string{"/bin/sh", "-c", script, "sh"}, args...)
}

func TestExec(t *testing.T) {
	home := tempDir(t)
	c := dial(t, serve(t, Options{Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "A=base", "HPCEXEC_ID=outer", "OLDPWD=/x"}}))
	long := strings.Repeat("x", 100<<10)
	for _, tt := range []struct {
		name       string
		e          wire.Exec
		stdin      string
		wantOut    string
		wantErr    string
		wantCode   int
		wantSignal string
		wantKind   string
	}{
		{name: "argv verbatim", e: wire.Exec{Args: sh(`printf '<%s>' "$@"`, "a b", "", "$HOME", "'\"", "x\ny", "--", "é")}, wantOut: "<a b><><$HOME><'\"><x\ny><--><é>"},
		{name: "exit code", e: wire.Exec{Args: sh("exit 7")}, wantCode: 7},
		{name: "signal", e: wire.Exec{Args: sh("kill -SEGV $$")}, wantCode: 139, wantSignal: "SEGV"},
		{name: "stdout and stderr", e: wire.Exec{Args: sh("echo out; echo err >&2")}, wantOut: "out\n", wantErr: "err\n"},
		{name: "stdout dropped", e: wire.Exec{Args: sh("echo out; [ /dev/fd/1 -ef /dev/null ] && ! [ /dev/fd/2 -ef /dev/null ] && echo err >&2"), DropStdout: true}, wantErr: "err\n"},
		{name: "both dropped", e: wire.Exec{Args: sh("echo out; echo err >&2; [ /dev/fd/1 -ef /dev/null ] && [ /dev/fd/2 -ef /dev/null ]"), DropStdout: true, DropStderr: true}},
		{name: "both dropped in the background", e: wire.Exec{Args: sh("echo out; [ /dev/fd/1 -ef /dev/null ]"), DropStdout: true, DropStderr: true, Background: true}},
		{name: "merged", e: wire.Exec{Args: sh("for i in 1 2 3; do echo out; echo err >&2; done"), Merged: true}, wantOut: strings.Repeat("out\nerr\n", 3)},
		{name: "merged in the background", e: wire.Exec{Args: sh("for i in 1 2 3; do echo out; echo err >&2; done"), Merged: true, Background: true}, wantOut: strings.Repeat("out\nerr\n", 3)},
		{name: "stdin", e: wire.Exec{Args: []string{"cat"}}, stdin: "to and fro", wantOut: "to and fro"},
		{name: "no stdin is empty", e: wire.Exec{Args: []string{"cat"}}},
		{name: "not found", e: wire.Exec{Args: []string{"no-such-program"}}, wantCode: 127, wantErr: "hpcexec: no-such-program: not found\n"},
		{name: "not executable", e: wire.Exec{Args: []string{"/etc/passwd"}}, wantCode: 126, wantErr: "hpcexec: /etc/passwd: not executable\n"},
		{name: "env", e: wire.Exec{Args: sh(`echo "$A $B $C"`), Env: []string{"A=1", "B=2", "B=3"}, Secrets: []string{"C=4"}}, wantOut: "1 3 4\n"},
		{name: "base env", e: wire.Exec{Args: sh(`echo "$A ${OLDPWD-none}"`)}, wantOut: "base none\n"},
		{name: "id", e: wire.Exec{Args: sh(`echo $HPCEXEC_ID`), ID: "my-id"}, wantOut: "my-id\n"},
		{name: "own id", e: wire.Exec{Args: sh(`echo ${#HPCEXEC_ID}`)}, wantOut: "26\n"},
		{name: "dir", e: wire.Exec{Args: []string{"pwd"}, Dir: "/usr"}, wantOut: "/usr\n"},
		{name: "home", e: wire.Exec{Args: sh("pwd; echo $PWD")}, wantOut: home + "\n" + home + "\n"},
		{name: "missing dir", e: wire.Exec{Args: []string{"pwd"}, Dir: "/no/such"}, wantKind: "invalid"},
		{name: "no command", e: wire.Exec{}, wantKind: "invalid"},
		{name: "bad env", e: wire.Exec{Args: []string{"true"}, Env: []string{"A-B=1"}}, wantKind: "invalid"},
		{name: "other version", e: wire.Exec{Version: 99, Args: []string{"true"}}, wantKind: "invalid"},
		{name: "long request", e: wire.Exec{Args: sh(`echo "$# ${#1}"`, strings.Split(strings.Repeat(long+" ", 9)+long, " ")...)}, wantOut: "10 102400\n"},
		{name: "long request and stdin", e: wire.Exec{Args: sh(`cat; echo " $#"`, long)}, stdin: "in", wantOut: "in 1\n"},
		{name: "argument too long", e: wire.Exec{Args: sh(":", strings.Repeat("x", 200<<10))}, wantKind: "invalid"},
		{name: "terminal", e: wire.Exec{Args: sh(`stty size; echo $TERM; test -t 0 -a -t 1 -a -t 2 && echo tty`), TTY: &hpcexec.TTY{Term: "vt9", Cols: 77, Rows: 33}}, wantOut: "33 77\r\nvt9\r\ntty\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &client{Conn: c.Conn, t: t}
			out, errs, exit := c.run(tt.e, tt.stdin)
			if out != tt.wantOut || errs != tt.wantErr {
				t.Errorf("got stdout %q, stderr %q, want %q, %q", out, errs, tt.wantOut, tt.wantErr)
			}
			if exit.Code != tt.wantCode || exit.Signal != tt.wantSignal || exit.ErrKind != tt.wantKind {
				t.Errorf("got %+v, want code %d, signal %q, kind %q", exit, tt.wantCode, tt.wantSignal, tt.wantKind)
			}
			if tt.wantKind == "" && (exit.Started.IsZero() || exit.Ended.Before(exit.Started)) {
				t.Errorf("got times %v to %v, want those of the run", exit.Started, exit.Ended)
			}
		})
	}
}

func TestHomeIsNotThere(t *testing.T) {
	for _, home := range []string{"HOME=/no/such", "HOME=relative", "HOME=/etc/passwd", "X=1"} {
		c := dial(t, serve(t, Options{Env: []string{"PATH=" + os.Getenv("PATH"), home}}))
		if got := c.sh("pwd"); got != "/\n" {
			t.Errorf("with %s: got directory %q, want /", home, got)
		}
	}
}

func TestTimeout(t *testing.T) {
	c := dial(t, serve(t, Options{Grace: time.Hour}))
	out, _, exit := c.run(wire.Exec{
		Args:    sh(`trap 'echo bye; exit 3' TERM; echo hello; while :; do sleep 0.01; done`),
		Timeout: 300 * time.Millisecond,
	}, "")
	if !exit.TimedOut || exit.Code != 3 || exit.ErrKind != "" || out != "hello\nbye\n" {
		t.Errorf("got %+v and %q, want a time-out, code 3, and all output", exit, out)
	}
}

func TestLargeOutput(t *testing.T) {
	c := dial(t, serve(t, Options{}))
	const size = 20 << 20
	p := c.start(wire.Exec{Args: sh(`head -c $1 /dev/zero; head -c $1 /dev/zero >&2`, strconv.Itoa(size))})
	if exit := p.wait(); exit.Code != 0 {
		t.Errorf("got %+v, want success", exit)
	}
	if p.stdout.Len() != size || p.stderr.Len() != size {
		t.Errorf("got %d and %d bytes, want %d", p.stdout.Len(), p.stderr.Len(), size)
	}
}

func TestStdinThroughAndBack(t *testing.T) {
	c := dial(t, serve(t, Options{}))
	in := make([]byte, 0, 8<<20)
	for i := 0; len(in) < cap(in); i++ {
		in = binary.BigEndian.AppendUint64(in, uint64(i))
	}
	out, _, exit := c.run(wire.Exec{Args: []string{"cat"}}, string(in))
	if exit.Code != 0 || sha256.Sum256([]byte(out)) != sha256.Sum256(in) {
		t.Errorf("got %d bytes and %+v, want the %d that went in", len(out), exit, len(in))
	}
}

func TestStdinThatNeverEnds(t *testing.T) {
	c := dial(t, serve(t, Options{}))
	p := c.start(wire.Exec{Args: []string{"true"}, HasStdin: true})
	if exit := p.wait(); exit.Code != 0 || exit.ErrKind != "" {
		t.Errorf("got %+v, want success", exit)
	}
}

func TestBackgroundChildDoesNotDelay(t *testing.T) {
	p := spawn(t)
	c := dial(t, p.socket)
	out, _, exit := c.run(wire.Exec{Args: sh(`sleep 600 & echo $!`)}, "")
	pid, _ := strconv.Atoi(strings.TrimSpace(out))
	if exit.Code != 0 || pid == 0 {
		t.Fatalf("got %+v, %q, want success and a pid", exit, out)
	}
	if !alive(pid) {
		t.Error("what the command left running has ended, want it to live on")
	}
	if st := c.status(); st.Running != 0 || st.Background != 1 {
		t.Errorf("got %+v, want none running and 1 in the background", st)
	}
	c.Close() // which isn't the end of the shim either
	c = dial(t, p.socket)
	if !alive(pid) {
		t.Error("it ended with the connection, want it to live on")
	}
	p.Process.Signal(os.Interrupt)
	if code := p.wait(t); code != 0 {
		t.Errorf("the shim ended with %d, want 0", code)
	}
	if alive(pid) {
		t.Error("it outlived the shim")
	}
}

func TestSignal(t *testing.T) {
	c := dial(t, serve(t, Options{}))
	ch, reqs := c.channel()
	wire.SendExec(ch, &wire.Exec{Args: sh(`trap 'echo usr1; exit 9' USR1; echo ready; while :; do sleep 0.01; done`)})
	out := bufio.NewReader(ch)
	if line, err := out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("got %q, %v, want ready", line, err)
	}
	go func() {
		if ok, err := ch.SendRequest("signal", true, append([]byte{0, 0, 0, 4}, "USR1"...)); !ok || err != nil {
			t.Errorf("signal: got %v, %v, want true", ok, err)
		}
	}()
	if line, err := out.ReadString('\n'); line != "usr1\n" {
		t.Errorf("got %q, %v, want what the trap writes", line, err)
	}
	for req := range reqs {
		if x, err := wire.ParseExit(req.Payload); x.Code != 9 {
			t.Errorf("got %+v, %v, want code 9", x, err)
		}
	}
}

func TestResize(t *testing.T) {
	c := dial(t, serve(t, Options{}))
	p := c.start(wire.Exec{Args: sh(`while [ "$(stty size)" != "50 100" ]; do sleep 0.01; done; echo seen`), TTY: &hpcexec.TTY{Cols: 80, Rows: 24}})
	size := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 100), 50)
	if ok, err := p.SendRequest("window-change", true, append(size, make([]byte, 8)...)); !ok || err != nil {
		t.Errorf("window-change: got %v, %v, want true", ok, err)
	}
	if exit := p.wait(); exit.Code != 0 || p.stdout.String() != "seen\r\n" {
		t.Errorf("got %+v, %q, want the new size seen", exit, &p.stdout)
	}
}

func TestSignalNames(t *testing.T) {
	c := dial(t, serve(t, Options{}))
	p := c.start(wire.Exec{Args: sh("sleep 600")})
	for name, want := range map[string]bool{"NOPE": false, "": false, "URG": true, "URG@openssh.com": true, "SIGURG": false} {
		ok, _ := p.SendRequest("signal", true, append(binary.BigEndian.AppendUint32(nil, uint32(len(name))), name...))
		if ok != want {
			t.Errorf("signal %q: got %v, want %v", name, ok, want)
		}
	}
	p.SendRequest(wire.RequestCancel, false, nil)
	p.wait()
}

func TestEndOfOutput(t *testing.T) {
	c := dial(t, serve(t, Options{}))
	p := c.start(wire.Exec{Args: sh(`trap '' TERM; yes; echo "yes: $?" >&2; exit 5`)})
	p.SendRequest("eow@openssh.com", false, nil)
	if exit := p.wait(); exit.Code != 5 || !strings.Contains(p.stderr.String(), "yes: ") {
		t.Errorf("got %+v, stderr %q, want code 5 after `yes` couldn't write", exit, &p.stderr)
	}
}

// TestThousandAtOnce runs a thousand commands over one connection, each with
// stdin and output of its own.
func TestThousandAtOnce(t *testing.T) {
	c := dial(t, serve(t, Options{}))
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			ch, reqs, err := c.OpenChannel("session", nil)
			if err != nil {
				t.Errorf("command %d: %v", i, err)
				return
			}
			go func() {
				wire.SendExec(ch, &wire.Exec{Args: sh(`cat; exit $1`, strconv.Itoa(i%200)), HasStdin: true})
				fmt.Fprintf(ch, "number %d", i)
				ch.CloseWrite()
			}()
			out, err := io.ReadAll(ch)
			if want := fmt.Sprintf("number %d", i); err != nil || string(out) != want {
				t.Errorf("command %d: got %q, %v, want %q", i, out, err, want)
			}
			code := -1
			for req := range reqs {
				x, err := wire.ParseExit(req.Payload)
				if err != nil || x.ErrKind != "" {
					t.Errorf("command %d: got %+v, %v", i, x, err)
				}
				code = x.Code
			}
			if code != i%200 {
				t.Errorf("command %d: got code %d, want %d", i, code, i%200)
			}
		})
	}
	wg.Wait()
}
