package shim

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec/internal/wire"
)

// The test binary is also the shim that tests start as a process.
func TestMain(m *testing.M) {
	if os.Getenv("HPCEXEC_SHIM_TEST") != "" {
		os.Exit(Main(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// tempDir is a directory whose name is short enough for a unix socket in it.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "shim")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func listen(t testing.TB) *net.UnixListener {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(tempDir(t), "s"))
	if err != nil {
		t.Fatal(err)
	}
	return l.(*net.UnixListener)
}

// serve runs a shim in this process and gives its socket.
func serve(t testing.TB, opts Options) string {
	t.Helper()
	l := listen(t)
	opts.Listener = l
	if testing.Verbose() {
		opts.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, opts) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Serve doesn't end")
		}
	})
	return l.Addr().String()
}

// A shimProcess is a shim in a process of its own.
type shimProcess struct {
	*exec.Cmd
	socket string
	ended  chan struct{}
}

// spawn starts the test binary as `shim --fd 3`, in an environment of its own.
func spawn(t testing.TB, env ...string) *shimProcess {
	t.Helper()
	l := listen(t)
	defer l.Close()
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("/proc/self/exe", "--fd", "3")
	cmd.ExtraFiles = []*os.File{f, f} // one more than it knows of
	cmd.Env = append([]string{"HPCEXEC_SHIM_TEST=1", "PATH=" + os.Getenv("PATH"), "HOME=/"}, env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &shimProcess{cmd, l.Addr().String(), make(chan struct{})}
	go func() {
		cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		p.wait(t)
		if t.Failed() {
			t.Logf("stderr of the shim:\n%s", &stderr)
		}
		if stdout.Len() > 0 {
			t.Errorf("the shim wrote to stdout: %q", &stdout)
		}
	})
	return p
}

// wait waits for the end of the shim and gives its exit code.
func (p *shimProcess) wait(t testing.TB) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		t.Error("the shim doesn't end")
		p.Process.Kill()
		<-p.ended
	}
	return p.ProcessState.ExitCode()
}

// A client is one connection to a shim.
type client struct {
	ssh.Conn
	t      testing.TB
	socket string
}

func dial(t testing.TB, socket string) *client {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	cl := connect(t, c)
	cl.socket = socket
	return cl
}

func connect(t testing.TB, rwc io.ReadWriteCloser) *client {
	t.Helper()
	conn, chans, reqs, err := wire.Client(rwc)
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(reqs)
	go func() {
		for nc := range chans {
			nc.Reject(ssh.Prohibited, "no channels here")
		}
	}()
	t.Cleanup(func() { conn.Close() })
	return &client{Conn: conn, t: t}
}

// A call is a command on a channel.
type call struct {
	ssh.Channel
	t              testing.TB
	stdout, stderr bytes.Buffer
	requests       map[string][]byte // payloads of what the shim asks, by type
	done           sync.WaitGroup
}

func (c *client) channel() (ssh.Channel, <-chan *ssh.Request) {
	c.t.Helper()
	ch, reqs, err := c.OpenChannel("session", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return ch, reqs
}

// open opens a channel of type session and collects what comes.
func (c *client) open() *call {
	c.t.Helper()
	ch, reqs := c.channel()
	p := &call{Channel: ch, t: c.t, requests: map[string][]byte{}}
	p.done.Go(func() { io.Copy(&p.stdout, ch) })
	p.done.Go(func() { io.Copy(&p.stderr, ch.Stderr()) })
	p.done.Go(func() {
		for req := range reqs {
			p.requests[req.Type] = req.Payload
		}
	})
	return p
}

// start starts a command.
func (c *client) start(e wire.Exec) *call {
	c.t.Helper()
	p := c.open()
	if err := wire.SendExec(p, &e); err != nil {
		c.t.Fatal(err)
	}
	return p
}

// wait waits for the channel's end.
func (p *call) wait() wire.Exit {
	p.t.Helper()
	p.done.Wait()
	payload, ok := p.requests[wire.RequestExit]
	if !ok {
		p.t.Fatalf("no %s came; stderr %q", wire.RequestExit, &p.stderr)
	}
	exit, err := wire.ParseExit(payload)
	if err != nil {
		p.t.Fatal(err)
	}
	return exit
}

// run runs a command with a stdin, if it isn't empty.
func (c *client) run(e wire.Exec, stdin string) (stdout, stderr string, exit wire.Exit) {
	c.t.Helper()
	e.HasStdin = stdin != ""
	p := c.start(e)
	if e.HasStdin {
		go func() {
			io.WriteString(p, stdin)
			p.CloseWrite()
		}()
	}
	exit = p.wait()
	return p.stdout.String(), p.stderr.String(), exit
}

// sh runs a script and gives its stdout; anything but success fails the test.
func (c *client) sh(script string, env ...string) string {
	c.t.Helper()
	out, errs, exit := c.run(wire.Exec{Args: []string{"sh", "-c", script}, Env: env}, "")
	if exit.Code != 0 || exit.ErrKind != "" {
		c.t.Fatalf("script %q: got %+v, stderr %q", script, exit, errs)
	}
	return out
}

func (c *client) status() wire.Status {
	c.t.Helper()
	_, b, err := c.SendRequest(wire.RequestStatus, true, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	st, err := wire.ParseStatus(b)
	if err != nil {
		c.t.Fatal(err)
	}
	return st
}

// eventually waits for what another process brings about.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not seen in 20 s:", what)
		}
	}
}

// alive says whether a process is there and no zombie.
func alive(pid int) bool {
	_, ok := findProcess(pid)
	return ok
}
