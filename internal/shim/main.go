package shim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec/internal/proctree"
)

// exitFailed is hpcexec's own exit code; see docs/exit-codes.md.
const exitFailed = 125

// gcPercent trades memory for processor time: a packet of x/crypto/ssh is new
// memory at both ends, so that at 500 MB/s the collector takes half as much
// time again as all else. It lets the heap grow to 16 MB.
const gcPercent = 400

const usage = `usage: hpcexec shim [--grace D] [-v] --fd N | --stdio
  --fd N      serve the listening unix socket that is descriptor N
  --stdio     serve one connection on stdin and stdout
  --grace D   time between SIGTERM and SIGKILL for commands, default 1.5s
  -v          log more to stderr
`

// Main is the command `hpcexec shim` with its arguments, without those two
// words. It writes nothing but the protocol to stdout, and ends on SIGTERM
// with all its processes.
func Main(args []string) int {
	opts, err := parse(args)
	if err == nil {
		err = prepare()
	}
	if err == nil {
		err = opts.open()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "hpcexec shim: %v\n", err)
		return exitFailed
	}
	// SIGPIPE: stderr may be a pipe that nobody reads any more.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		for sig := range signals {
			if sig != syscall.SIGPIPE {
				opts.Logger.Info("stopping", "signal", sig.String())
				cancel(errStopped)
			}
		}
	}()
	if err := Serve(ctx, opts.Options); err != nil {
		opts.Logger.Error("shim failed", "err", err)
		return exitFailed
	}
	return 0
}

type mainOptions struct {
	Options
	fd int // -1: stdin and stdout
}

func parse(args []string) (*mainOptions, error) {
	o := &mainOptions{}
	fs := flag.NewFlagSet("shim", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.IntVar(&o.fd, "fd", -1, "")
	stdio := fs.Bool("stdio", false, "")
	fs.DurationVar(&o.Grace, "grace", 0, "")
	verbose := fs.Bool("v", false, "")
	err := fs.Parse(args)
	if err == nil && (fs.NArg() > 0 || (o.fd >= 0) == *stdio) {
		err = errors.New("one of --fd N and --stdio is needed, and nothing else")
	}
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, usage)
	}
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	o.Orphans = true
	o.Build = build()
	return o, nil
}

// prepare does what concerns the whole process.
func prepare() error {
	// Other processes of the user can't read the memory and the environment
	// of the shim, which pass secrets on.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide memory: %w", err)
	}
	if err := proctree.BecomeSubreaper(); err != nil {
		return err
	}
	debug.SetGCPercent(gcPercent)
	return nil
}

// open makes what is to be served, and keeps descriptors from commands.
func (o *mainOptions) open() error {
	if err := closeOnExec(); err != nil {
		return err
	}
	if o.fd < 0 {
		s, err := openStdio()
		if err != nil {
			return err
		}
		o.Stdio = s
		return nil
	}
	f := os.NewFile(uintptr(o.fd), "listener")
	if f == nil {
		return fmt.Errorf("--fd %d: bad number", o.fd)
	}
	defer f.Close()
	l, err := net.FileListener(f) // a duplicate, closed on exec
	if err != nil {
		return fmt.Errorf("--fd %d: %w", o.fd, err)
	}
	ul, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return fmt.Errorf("--fd %d is no unix socket; a shim is never on the network", o.fd)
	}
	ul.SetUnlinkOnClose(false) // it is whoever made it who unlinks it
	o.Listener = ul
	return nil
}

// closeOnExec keeps descriptors that the shim itself has inherited, such as
// those of a container runtime, from commands.
func closeOnExec() error {
	const first = 3
	err := unix.CloseRange(first, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	fds, err := os.ReadDir("/proc/self/fd") // before Linux 5.11
	if err != nil {
		return fmt.Errorf("descriptors: %w", err)
	}
	for _, e := range fds {
		var fd int
		if _, err := fmt.Sscan(e.Name(), &fd); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// build is the release that this program was built from.
func build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}
