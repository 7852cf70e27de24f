package hpcexec_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/exectest"
	"github.com/hpcexec/hpcexec/internal/proctree"
)

func TestMain(m *testing.M) {
	if os.Getenv("HPCEXEC_TEST_SUBREAPER") != "" {
		os.Exit(m.Run()) // it is about processes, not goroutines
	}
	goleak.VerifyTestMain(m)
}

func TestLocalConformance(t *testing.T) {
	exectest.Run(t, exectest.Suite{
		New: func(t *testing.T) hpcexec.Executor { return &hpcexec.Local{Grace: 300 * time.Millisecond} },
		Facts: &hpcexec.Properties{
			Place: "local", SharesFilesystem: true, ReportsSignal: true,
			TreeByGroup: true, TreeWhole: true, Terminal: true, Signals: true,
		},
	})
}

// run runs a script and returns its stdout.
func run(t *testing.T, l *hpcexec.Local, req hpcexec.Request) (hpcexec.Response, string) {
	t.Helper()
	var out, errOut bytes.Buffer
	if req.Stdout == nil {
		req.Stdout = &out
	}
	req.Stderr = &errOut
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	resp, err := l.Run(ctx, req)
	if err != nil {
		t.Fatalf("Run: %v (stderr %q)", err, errOut.String())
	}
	return resp, out.String() + errOut.String()
}

func sh(script string, args ...string) []string {
	return append([]string{"sh", "-c", script, "sh"}, args...)
}

func TestLocalFields(t *testing.T) {
	dir := t.TempDir()
	l := &hpcexec.Local{Env: []string{"A=base", "B=base", "PATH=" + os.Getenv("PATH")}, Dir: dir, PlaceName: "here"}
	resp, out := run(t, l, hpcexec.Request{Args: sh(`echo "$A,$B,$HOME,$(pwd),$PWD"`), Env: []string{"B=req"}})
	if want := "base,req,," + dir + "," + dir + "\n"; out != want || resp.Place != "here" || l.Properties().Place != "here" {
		t.Errorf("got %q at %q, want %q at here", out, resp.Place, want)
	}
	_, out = run(t, l, hpcexec.Request{Args: sh("pwd"), Dir: "/"})
	if out != "/\n" {
		t.Errorf("Dir of the request: got %q, want /", out)
	}
	l.Dir = dir + "/missing"
	if _, err := l.Run(context.Background(), hpcexec.Request{Args: sh("pwd")}); !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("missing Local.Dir: got error %v, want ErrInvalid", err)
	}
}

func TestLocalLookup(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"a", "b", "a/prog-dir"} {
		if err := os.Mkdir(dir+"/"+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(dir+"/"+name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("a/prog", "#!/bin/sh\necho a\n", 0o755)
	write("b/prog", "#!/bin/sh\necho b\n", 0o755)
	write("a/plain", "text\n", 0o644)
	write("b/plain", "#!/bin/sh\necho plain in b\n", 0o755)
	write("a/nohead", "echo no head\n", 0o755)
	write("a/lost", "#!/exectest/no/such/interpreter\n", 0o755)
	tests := []struct {
		name, prog, path string
		code             int
		want             string // in the output
	}{
		{"first wins", "prog", dir + "/a:" + dir + "/b", 0, "a\n"},
		{"missing directory", "prog", "/exectest/none:" + dir + "/b", 0, "b\n"},
		{"a file that isn't executable is passed over", "plain", dir + "/a:" + dir + "/b", 0, "plain in b\n"},
		{"only one that isn't executable", "plain", dir + "/a", 126, "plain: not executable\n"},
		{"a directory", "prog-dir", dir + "/a", 126, "prog-dir: not executable\n"},
		{"relative entry", "prog", "b", 0, "b\n"},
		{"empty entry is Dir", "prog", ":/exectest/none", 127, "prog: not found\n"},
		{"no script head", "nohead", dir + "/a", 126, "starts with #!"},
		{"no interpreter", dir + "/a/lost", dir + "/a", 127, "its interpreter is not found"},
		{"file as directory", dir + "/a/prog/x", "", 127, "not a directory"},
		{"name too long", strings.Repeat("x", 300), dir, 127, "not found"},
		{"empty PATH", "prog", "", 127, "not found"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, out := run(t, &hpcexec.Local{}, hpcexec.Request{
				Args: []string{tt.prog}, Env: []string{"PATH=" + tt.path}, Dir: dir,
			})
			if resp.ExitCode != tt.code || !strings.Contains(out, tt.want) {
				t.Errorf("got exit code %d, output %q, want %d, %q", resp.ExitCode, out, tt.code, tt.want)
			}
		})
	}
	t.Run("no PATH at all", func(t *testing.T) {
		_, out := run(t, &hpcexec.Local{Env: []string{}}, hpcexec.Request{Args: []string{"echo", "found"}})
		if out != "found\n" {
			t.Errorf("got %q, want found", out)
		}
	})
}

func TestLocalTooBig(t *testing.T) {
	big := strings.Repeat("x", 200<<10)
	var many []string
	for range 200 {
		many = append(many, big[:100<<10])
	}
	tests := []struct {
		name string
		req  hpcexec.Request
		want string
	}{
		{"argument", hpcexec.Request{Args: []string{"true", "a", big}}, "argument 2 has 204800 bytes"},
		{"variable", hpcexec.Request{Args: []string{"true"}, Secrets: []string{"TOKEN=" + big}}, "environment variable TOKEN has 204806 bytes"},
		{"all", hpcexec.Request{Args: append([]string{"true"}, many...)}, "arguments and environment have"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := (&hpcexec.Local{}).Run(context.Background(), tt.req)
			if !errors.Is(err, hpcexec.ErrInvalid) || !strings.HasPrefix(err.Error(), tt.want) || hpcexec.Hint(err) == "" {
				t.Errorf("got error %v, hint %q, want ErrInvalid, %q and a hint", err, hpcexec.Hint(err), tt.want)
			}
		})
	}
}

// A pipe of Go's is in non-blocking mode; a command must not see that, and the
// mode stays.
func TestLocalNonBlockingFile(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	slow := make(chan int64)
	go func() {
		time.Sleep(50 * time.Millisecond) // the pipe is full: EAGAIN for who doesn't block
		n, _ := io.Copy(io.Discard, io.LimitReader(r, 300000))
		slow <- n
	}()
	resp, out := run(t, &hpcexec.Local{}, hpcexec.Request{Args: sh("head -c 300000 /dev/zero"), Stdout: w})
	if resp.ExitCode != 0 || out != "" {
		t.Errorf("got exit code %d, stderr %q, want 0", resp.ExitCode, out)
	}
	if n := <-slow; n != 300000 {
		t.Errorf("got %d bytes, want 300000", n)
	}
	rc, err := w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	rc.Control(func(fd uintptr) {
		flags, _, _ := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFL, 0)
		if flags&syscall.O_NONBLOCK == 0 {
			t.Error("the mode of the file was changed")
		}
	})
}

// What comes on a file after the command has ended is for whoever reads next:
// the shell that the user types at.
func TestLocalLeavesStdinAlone(t *testing.T) {
	for _, tty := range []*hpcexec.TTY{nil, {}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		run(t, &hpcexec.Local{}, hpcexec.Request{Args: sh("exit 0"), Stdin: r, TTY: tty})
		if _, err := io.WriteString(w, "next"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4)
		r.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.ReadFull(r, buf); err != nil || string(buf) != "next" {
			t.Errorf("tty %v: got %q, %v, want what was written after the end", tty != nil, buf, err)
		}
	}
}

func TestLocalClosedFile(t *testing.T) {
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	for name, req := range map[string]hpcexec.Request{
		"stdin": {Stdin: f}, "stdout": {Stdout: f}, "stderr": {Stderr: f}, "nil file": {Stdin: (*os.File)(nil)},
	} {
		req.Args = []string{"true"}
		if _, err := (&hpcexec.Local{}).Run(context.Background(), req); !errors.Is(err, hpcexec.ErrInvalid) {
			t.Errorf("%s: got error %v, want ErrInvalid", name, err)
		}
	}
}

// A program that has just been written can be run, although another goroutine
// forks in the meantime and its child has the file open for a moment.
func TestLocalJustWritten(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				path := dir + "/p" + strconv.Itoa(i) + "-" + strconv.Itoa(j)
				if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 5\n"), 0o755); err != nil {
					t.Error(err)
				}
				resp, err := (&hpcexec.Local{}).Run(context.Background(), hpcexec.Request{Args: []string{path}})
				if err != nil || resp.ExitCode != 5 {
					t.Errorf("got exit code %d, error %v, want 5, nil", resp.ExitCode, err)
				}
			}
		})
	}
	wg.Wait()
}

// Many commands that wait take no thread each.
func TestLocalThreads(t *testing.T) {
	const n = 150
	ctx, cancel := context.WithCancel(context.Background())
	var up, done sync.WaitGroup
	for range n {
		up.Add(1)
		once := sync.OnceFunc(up.Done)
		done.Go(func() {
			defer once()
			(&hpcexec.Local{}).Run(ctx, hpcexec.Request{
				Args: sh("echo up; exec sleep 600"), Stdin: strings.NewReader(""), Stdout: writerFunc(func([]byte) { once() }),
			})
		})
	}
	up.Wait()
	tasks, err := os.ReadDir("/proc/self/task")
	cancel()
	done.Wait()
	if err != nil || len(tasks) > n/2+runtime.GOMAXPROCS(0) {
		t.Errorf("%d commands: got %d threads, %v, want far fewer", n, len(tasks), err)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

// Descriptors are closed, whatever the end.
func TestLocalDescriptors(t *testing.T) {
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	l := &hpcexec.Local{Grace: -1}
	all := func() {
		for _, req := range []hpcexec.Request{
			{Args: sh("cat"), Stdin: strings.NewReader("x"), Stdout: io.Discard, Stderr: io.Discard},
			{Args: sh("cat"), Stdin: strings.NewReader("x"), TTY: &hpcexec.TTY{}},
			{Args: sh("sleep 600"), Timeout: 20 * time.Millisecond, Stdout: io.Discard},
			{Args: []string{"no-such-program"}, Stdout: io.Discard},
			{Args: []string{"/"}, Stdin: strings.NewReader(""), Stdout: io.Discard},
			{Args: []string{"true", strings.Repeat("x", 200<<10)}, Stdin: strings.NewReader(""), Stdout: io.Discard},
			{Args: []string{"/"}, TTY: &hpcexec.TTY{}, Stdout: io.Discard},
			{Args: sh("while :; do echo; done"), Stdout: failing{}},
		} {
			l.Run(context.Background(), req)
		}
	}
	all()
	before := count()
	for range 5 {
		all()
	}
	if after := count(); after > before+2 { // the runtime's own come and go
		t.Errorf("got %d descriptors, then %d", before, after)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no") }

func TestSignalNames(t *testing.T) {
	tests := []struct {
		number int
		name   string
	}{
		{1, "HUP"}, {2, "INT"}, {9, "KILL"}, {15, "TERM"}, {17, "CHLD"}, {31, "SYS"}, {32, "32"}, {34, "RTMIN"},
		{35, "RTMIN+1"}, {49, "RTMIN+15"}, {50, "RTMAX-14"}, {63, "RTMAX-1"}, {64, "RTMAX"},
	}
	for _, tt := range tests {
		if got := hpcexec.SignalName(tt.number); got != tt.name {
			t.Errorf("SignalName(%d): got %q, want %q", tt.number, got, tt.name)
		}
	}
	for n := 1; n <= 64; n++ {
		for _, name := range []string{hpcexec.SignalName(n), strconv.Itoa(n)} {
			if got, ok := hpcexec.SignalNumber(name); got != n || !ok {
				t.Errorf("SignalNumber(%q): got %d, %v, want %d, true", name, got, ok, n)
			}
		}
	}
	for _, bad := range []string{"", "SIGTERM", "term", "0", "65", "-1", "+1", "RTMIN-1", "RTMIN1", "RTMAX+1", "RTMIN+31", "RTMAX-31", "RTMIN+", "RTMAX-x", "1 "} {
		if n, ok := hpcexec.SignalNumber(bad); ok {
			t.Errorf("SignalNumber(%q): got %d, want false", bad, n)
		}
	}
}

// In a subreaper orphans are reaped, commands keep their exit codes.
func TestLocalReapOrphans(t *testing.T) {
	if os.Getenv("HPCEXEC_TEST_SUBREAPER") == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestLocalReapOrphans$", "-test.v")
		cmd.Env = append(os.Environ(), "HPCEXEC_TEST_SUBREAPER=1")
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("as a subreaper")) {
			t.Errorf("in a subreaper: %v\n%s", err, out)
		}
		return
	}
	t.Log("as a subreaper")
	if err := proctree.BecomeSubreaper(); err != nil {
		t.Fatal(err)
	}
	l := &hpcexec.Local{}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { l.ReapOrphans(ctx); close(served) }()
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			resp, err := l.Run(context.Background(), hpcexec.Request{Args: sh(`sleep 0.2 & exit "$1"`, strconv.Itoa(i))})
			if err != nil || resp.ExitCode != i {
				t.Errorf("got exit code %d, error %v, want %d, nil", resp.ExitCode, err, i)
			}
		})
	}
	wg.Wait()
	zombies := func() (pids []string) {
		dirs, _ := os.ReadDir("/proc")
		for _, d := range dirs {
			stat, _ := os.ReadFile("/proc/" + d.Name() + "/stat")
			_, after, _ := bytes.Cut(stat, []byte(") "))
			if f := strings.Fields(string(after)); len(f) > 1 && f[0] == "Z" && f[1] == strconv.Itoa(os.Getpid()) {
				pids = append(pids, d.Name())
			}
		}
		return pids
	}
	for deadline := time.Now().Add(20 * time.Second); len(zombies()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("got zombies %v after 20 s", zombies())
		}
	}
	cancel()
	<-served
}

// A process that was started with signals ignored, by nohup or in the
// background of a script, runs commands that don't ignore them.
func TestLocalIgnoredSignals(t *testing.T) {
	if os.Getenv("HPCEXEC_TEST_IGNORING") != "" {
		_, out := run(t, &hpcexec.Local{}, hpcexec.Request{Args: []string{"grep", "^SigIgn", "/proc/self/status"}})
		t.Logf("as one that ignores; the command has %s", out)
		return
	}
	for _, ignored := range []string{"", "HUP", "INT", "HUP INT QUIT TERM USR1"} {
		cmd := exec.Command("sh", "-c", `trap "" $1; exec /proc/`+strconv.Itoa(os.Getpid())+`/exe -test.run="^TestLocalIgnoredSignals$" -test.v`, "sh", ignored)
		if ignored == "" {
			cmd.Args[2] = strings.TrimPrefix(cmd.Args[2], `trap "" $1; `)
		}
		cmd.Env = append(os.Environ(), "HPCEXEC_TEST_IGNORING=1")
		out, err := cmd.CombinedOutput()
		_, mask, found := bytes.Cut(out, []byte("SigIgn:\t"))
		if err != nil || !found || len(mask) < 16 {
			t.Errorf("ignoring %q: %v, got\n%s", ignored, err, out)
			continue
		}
		// 32 to 34 are the C library's own; some launchers ignore them, and
		// no program is told.
		bits, err := strconv.ParseUint(string(mask[:16]), 16, 64)
		if bits &^= 7 << 31; err != nil || bits != 0 {
			t.Errorf("ignoring %q: got a command that ignores signals %#x, %v, want none", ignored, bits, err)
		}
	}
}

// The request may be shared by runs at the same time.
func TestLocalSharedRequest(t *testing.T) {
	req := hpcexec.Request{Args: sh(`printf %s "$A"`), Env: slices.Grow([]string{"A=1"}, 10)}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			mine := req
			var out bytes.Buffer
			mine.Stdout = &out
			if _, err := (&hpcexec.Local{}).Run(context.Background(), mine); err != nil || out.String() != "1" {
				t.Errorf("got %q, %v, want 1", out.String(), err)
			}
		})
	}
	wg.Wait()
}

func BenchmarkRun(b *testing.B) {
	b.Run("Local", func(b *testing.B) {
		l := &hpcexec.Local{}
		for b.Loop() {
			var out, errOut bytes.Buffer
			if _, err := l.Run(context.Background(), hpcexec.Request{Args: []string{"/bin/true"}, Stdout: &out, Stderr: &errOut}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("os-exec", func(b *testing.B) {
		for b.Loop() {
			var out, errOut bytes.Buffer
			cmd := exec.CommandContext(context.Background(), "/bin/true")
			cmd.Stdout, cmd.Stderr = &out, &errOut
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
