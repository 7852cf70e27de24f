package sshmux

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// readyVar names the descriptor where a master writes a byte once it answers.
const readyVar = "HPCEXEC_MASTER_READY"

// MasterMain is the program of a master: --host HOST --socket PATH
// [--login PATH] [--idle DURATION]. It returns its exit code: 0 for an end that was asked for
// or came by itself, 1 for a start that failed (see EnsureMaster), 2 for wrong
// arguments. SIGTERM, SIGINT and SIGHUP end it.
func MasterMain(args []string) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var opts MasterOptions
	f := flag.NewFlagSet("master", flag.ContinueOnError)
	f.StringVar(&opts.Host, "host", "", "[USER@]HOST[:PORT], or local")
	f.StringVar(&opts.Socket, "socket", "", "path of the control socket")
	f.StringVar(&opts.Login, "login", "", "control socket of a master of OpenSSH's to go through")
	f.DurationVar(&opts.Idle, "idle", defaultIdle, "end after this time without clients")
	if err := f.Parse(args); err != nil {
		return 2
	}
	if opts.Host == "" || opts.Socket == "" || f.NArg() > 0 {
		log.Error("usage: master --host HOST --socket PATH [--login PATH] [--idle DURATION]")
		return 2
	}
	opts.Log = log.With("host", opts.Host, "pid", os.Getpid())
	ready := readyFile()
	opts.Ready = func() {
		ready.Write([]byte{1})
		ready.Close()
		os.Remove(opts.Socket + ".err")
	}

	// Others of this user can't trace it or read its memory: it has keys and
	// the commands' secrets.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		opts.Log.Warn("prctl", "err", err)
	}
	raiseFileLimit()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	if err := ServeMaster(ctx, opts); err != nil {
		if !errors.Is(err, ErrMasterExists) {
			noteFailure(opts.Socket, err)
		}
		opts.Log.Error("master", "err", err)
		return 1
	}
	return 0
}

// readyFile is the pipe of EnsureMaster, or nothing.
func readyFile() *os.File {
	fd, err := strconv.Atoi(os.Getenv(readyVar))
	os.Unsetenv(readyVar)
	if err != nil || fd < 3 {
		return nil // whose methods do nothing
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "ready")
}

// raiseFileLimit allows as many open files as there may be: a client takes up
// to seven.
func raiseFileLimit() {
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) == nil {
		lim.Cur = lim.Max
		unix.Setrlimit(unix.RLIMIT_NOFILE, &lim)
	}
}
