package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec/internal/wire"
)

func TestUsage(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	network, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, tt := range []struct {
		name string
		args []string
		fd3  *os.File
		want string
	}{
		{"nothing", nil, nil, "usage:"},
		{"both", []string{"--fd", "3", "--stdio"}, nil, "usage:"},
		{"too much", []string{"--stdio", "x"}, nil, "usage:"},
		{"unknown", []string{"--port", "22"}, nil, "usage:"},
		{"not a number", []string{"--fd", "x"}, nil, "usage:"},
		{"not open", []string{"--fd", "77"}, nil, "--fd 77"},
		{"no socket", []string{"--fd", "3"}, file, "--fd 3"},
		{"network", []string{"--fd", "3"}, network, "never on the network"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", tt.args...)
			cmd.Env = []string{"HPCEXEC_SHIM_TEST=1"}
			if tt.fd3 != nil {
				cmd.ExtraFiles = []*os.File{tt.fd3}
			}
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code != exitFailed || out.Len() > 0 || !strings.Contains(errs.String(), tt.want) {
				t.Errorf("got %d, %q, %q, want %d and %q on stderr alone", code, &out, &errs, exitFailed, tt.want)
			}
		})
	}
}

// TestPrepare looks at what the process is afterwards, from inside.
func TestPrepare(t *testing.T) {
	if os.Getenv("HPCEXEC_SHIM_PREPARE") != "" {
		if err := prepare(); err != nil {
			t.Fatal(err)
		}
		dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		fmt.Println("dumpable:", dumpable, err)
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestPrepare$")
	cmd.Env = append(os.Environ(), "HPCEXEC_SHIM_PREPARE=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "dumpable: 0 <nil>") {
		t.Errorf("got %s, %v, want a process that isn't dumpable", out, err)
	}
}

// TestDescriptorsStay: what the shim has inherited, commands don't.
func TestDescriptorsStay(t *testing.T) {
	c := dial(t, spawn(t).socket)
	// ls itself opens one to read the directory.
	if got := strings.Fields(c.sh("ls /proc/self/fd")); len(got) != 4 {
		t.Errorf("got descriptors %v, want 0, 1, 2 and that of ls", got)
	}
}

func TestEnvironment(t *testing.T) {
	c := dial(t, spawn(t, "A=1", "HPCEXEC_SHIM_X=1", "SHLVL=3", "PWD=/x", "HPCEXEC_SESSION=s").socket)
	got := strings.Fields(c.sh("env | grep -v HPCEXEC_ID= | sort"))
	var names []string
	for _, e := range got {
		name, _, _ := strings.Cut(e, "=")
		names = append(names, name)
	}
	// PWD is that of the command, and so is what sh itself sets.
	want := "A HOME HPCEXEC_SESSION OLDPWD PATH PWD SHLVL _"
	for _, name := range names {
		if !strings.Contains(" "+want+" ", " "+name+" ") {
			t.Errorf("got %s in the environment", name)
		}
	}
	if !strings.Contains(strings.Join(got, " "), "A=1 HOME=/ HPCEXEC_SESSION=s") {
		t.Errorf("got %v, want what the shim has", got)
	}
}

// stdioShim starts the test binary as `shim --stdio`.
func stdioShim(t *testing.T, args ...string) (*exec.Cmd, *client, io.Closer) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", append(args, "--stdio")...)
	cmd.Env = []string{"HPCEXEC_SHIM_TEST=1", "PATH=" + os.Getenv("PATH"), "HOME=/"}
	cmd.Stderr = t.Output()
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
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	rw := struct {
		io.Reader
		io.Writer
		io.Closer
	}{out, in, closers{in, out}}
	return cmd, connect(t, rw), rw
}

type closers []io.Closer

func (c closers) Close() error {
	var errs []error
	for _, x := range c {
		errs = append(errs, x.Close())
	}
	return errors.Join(errs...)
}

func TestStdio(t *testing.T) {
	cmd, c, rw := stdioShim(t)
	if got := c.sh("echo hello; cat"); got != "hello\n" {
		t.Errorf("got %q, want hello and an empty stdin", got)
	}
	file := tempDir(t) + "/pids"
	c.start(wire.Exec{Args: sh(stubborn, file)})
	tree := pids(t, file)
	rw.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the shim: got %v, want exit 0", err)
	}
	if !allGone(tree)() {
		t.Error("the shim ended before its command")
	}
}

// TestStdioBackground: for what is in the background the shim stays.
func TestStdioBackground(t *testing.T) {
	cmd, c, rw := stdioShim(t)
	dir := tempDir(t)
	c.start(wire.Exec{Args: sh(`touch "$1/up"; while ! [ -e "$1/go" ]; do sleep 0.01; done; head -c 1000000 /dev/zero && echo "$?" >"$1/done"`, dir), Background: true})
	left, _, _ := c.run(wire.Exec{Args: sh("sleep 600 & echo $!")}, "")
	eventually(t, "the command runs", func() bool { _, err := os.Stat(dir + "/up"); return err == nil })
	rw.Close()
	if _, err := os.Create(dir + "/go"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the shim: got %v, want exit 0", err)
	}
	if b, err := os.ReadFile(dir + "/done"); string(b) != "0\n" {
		t.Errorf("got %q, %v, want the command to have ended by itself", b, err)
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(left))
	if !alive(pid) {
		t.Error("what a command left running on a bare host has ended with the connection")
	}
	syscall.Kill(pid, syscall.SIGKILL)
}

// TestStdioClose: files that block don't keep the connection from ending.
func TestStdioClose(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	s := &stdio{in: os.NewFile(uintptr(p[0]), "in"), out: os.NewFile(uintptr(p[1]), "out")}
	var err error
	if s.wakeR, s.wakeW, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	// Another end for writing, so that the close of out is no end of file.
	other, err := unix.FcntlInt(uintptr(p[1]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other)
	s.Write([]byte("x"))
	done := make(chan error)
	go func() {
		buf := make([]byte, 1)
		_, err := s.Read(buf)
		if err == nil {
			_, err = s.Read(buf)
		}
		done <- err
	}()
	time.Sleep(20 * time.Millisecond) // the second Read waits by now, most likely
	go s.Close()
	select {
	case err := <-done:
		if err == nil {
			t.Error("Read: got no error, want the end")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Read doesn't end")
	}
}

func TestStdioTerminated(t *testing.T) {
	cmd, c, _ := stdioShim(t, "--grace", "100ms")
	file := tempDir(t) + "/pids"
	p := c.start(wire.Exec{Args: sh(stubborn, file)})
	tree := pids(t, file)
	cmd.Process.Signal(syscall.SIGTERM)
	p.done.Wait() // before Cmd.Wait closes the pipe
	if err := cmd.Wait(); err != nil {
		t.Errorf("the shim: got %v, want exit 0", err)
	}
	if !allGone(tree)() {
		t.Error("a process outlived the shim")
	}
	if exit := p.wait(); exit.ErrKind != "unknown_end" {
		t.Errorf("got %+v, want to be told of the end", exit)
	}
}

func TestHello(t *testing.T) {
	shim := spawn(t)
	c := dial(t, shim.socket)
	ok, b, err := c.SendRequest(wire.RequestHello, true, (&wire.Hello{Versions: []uint32{7, 1}}).Marshal())
	if !ok || err != nil {
		t.Fatalf("got %v, %v, want an answer", ok, err)
	}
	h, err := wire.ParseHello(b)
	if err != nil || h.Common(&wire.Hello{Versions: []uint32{7, 1}}) != 1 || h.PID != shim.Process.Pid || h.UID != os.Getuid() || h.Home != "/" || h.Build == "" {
		t.Errorf("got %+v, %v, want the shim's own facts", h, err)
	}
}

func TestStatusActivity(t *testing.T) {
	c := dial(t, serve(t, Options{}))
	before := c.status().LastActivity
	if again := c.status().LastActivity; again != before {
		t.Error("to ask for the status counts as activity")
	}
	c.sh("true")
	if after := c.status().LastActivity; !after.After(before) {
		t.Errorf("got %v after a command, want it after %v", after, before)
	}
}
