package slurm

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/hpcexec/hpcexec"
)

// fakeSrunMain is srun and slurmstepd, as far as they are seen from outside,
// with this machine as the node: it takes its options, connects the streams,
// kills the command at once on TERM, and has something to say itself. The test
// binary is run as it where it is named srun.
func fakeSrunMain(args []string) int {
	req := hpcexec.Request{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Dir: "/"}
	for len(args) > 0 && strings.HasPrefix(args[0], "--") {
		option, value, _ := strings.Cut(args[0], "=")
		switch option {
		case "--jobid", "--overlap", "--nodes", "--ntasks", "--export", "--cpu-bind", "--mpi", "--nodelist", "--unbuffered":
		case "--chdir":
			req.Dir = value
		case "--input":
			req.Stdin = nil
		case "--error":
			f, err := os.OpenFile(value, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
			if err != nil {
				fmt.Fprintln(os.Stderr, "srun: error: Could not open stderr file:", err)
				return 1
			}
			req.Stderr = f
		case "--pty":
			fd := int(os.Stdin.Fd())
			cols, rows, _ := term.GetSize(fd)
			req.TTY = &hpcexec.TTY{Term: os.Getenv("TERM"), Cols: cols, Rows: rows}
			if old, err := term.MakeRaw(fd); err == nil {
				defer term.Restore(fd, old)
			}
		default:
			fmt.Fprintf(os.Stderr, "srun: unrecognized option '%s'\n", args[0])
			return 255
		}
		args = args[1:]
	}
	for _, a := range args {
		if a == ":" {
			fmt.Fprintln(os.Stderr, "srun: error: the command after a : is another component's")
			return 1
		}
	}
	req.Args = args
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	local := &hpcexec.Local{Grace: -1, Env: append(os.Environ(), "SLURM_STEP_ID=7", "SLURMD_NODENAME=node1")}
	p, err := local.Start(ctx, req)
	if err != nil {
		fmt.Fprintln(os.Stderr, "srun: error: Unable to create step for job 12:", err)
		return 1
	}
	if req.TTY != nil {
		resized := make(chan os.Signal, 1)
		signal.Notify(resized, syscall.SIGWINCH)
		go func() {
			for range resized {
				if cols, rows, err := term.GetSize(int(os.Stdin.Fd())); err == nil {
					p.Resize(cols, rows)
				}
			}
		}()
	}
	resp, err := p.Wait()
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "srun: forcing job termination")
		return 137
	case err != nil:
		fmt.Fprintln(os.Stderr, "srun: error:", err)
		return 1
	case resp.ExitCode != 0:
		time.Sleep(time.Millisecond) // it comes after the output
		fmt.Fprintf(os.Stderr, "srun: error: node1: task 0: Exited with exit code %d\n", resp.ExitCode)
	}
	return resp.ExitCode
}
