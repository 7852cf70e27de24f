package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

// timed takes samples of one call.
func timed(run func(context.Context) error) func(context.Context, int) ([]time.Duration, error) {
	return func(ctx context.Context, n int) ([]time.Duration, error) {
		var took []time.Duration
		for range n {
			begin := time.Now()
			if err := run(ctx); err != nil {
				return nil, err
			}
			took = append(took, time.Since(begin))
		}
		return took, nil
	}
}

// forkSamples takes samples of fork+exec in this process.
func forkSamples(ctx context.Context, n int) ([]time.Duration, error) {
	return timed(func(ctx context.Context) error { return exec.CommandContext(ctx, "true").Run() })(ctx, n)
}

// printForks is what this program does in a container for forkRow.
func printForks(ctx context.Context, n int) error {
	took, err := forkSamples(ctx, n)
	for _, t := range took {
		fmt.Println(t.Nanoseconds())
	}
	return err
}

// forkRow measures fork+exec inside of a container, by a copy of this program.
func forkRow(ctx context.Context, where string, ex hpcexec.Executor) (*row, error) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	defer self.Close()
	const path = "/tmp/bench"
	resp, err := ex.Run(ctx, hpcexec.Request{
		Args: []string{"sh", "-c", "cat > " + path + " && chmod +x " + path}, Stdin: self, Stderr: os.Stderr,
	})
	if err == nil && resp.ExitCode != 0 {
		err = fmt.Errorf("copy of this program: exit code %d", resp.ExitCode)
	}
	if err != nil {
		return nil, err
	}
	return &row{Where: where, How: "fork+exec of true, by a program in it", Peer: true, sample: func(ctx context.Context, n int) ([]time.Duration, error) {
		var out strings.Builder
		resp, err := ex.Run(ctx, hpcexec.Request{Args: []string{path, "-forks", fmt.Sprint(n)}, Stdout: &out, Stderr: os.Stderr})
		if err != nil || resp.ExitCode != 0 {
			return nil, errors.Join(err, fmt.Errorf("exit code %d", resp.ExitCode))
		}
		var took []time.Duration
		for _, line := range strings.Fields(out.String()) {
			var t time.Duration
			if _, err := fmt.Sscan(line, (*int64)(&t)); err != nil {
				return nil, err
			}
			took = append(took, t)
		}
		if len(took) != n {
			return nil, fmt.Errorf("got %d samples, want %d", len(took), n)
		}
		return took, nil
	}}, nil
}

// echoRow measures the round trip: a byte to a command that runs, and back.
func echoRow(ctx context.Context, where string, ex hpcexec.Starter) (*row, error) {
	in, toCat := io.Pipe()
	fromCat, out := io.Pipe()
	p, err := ex.Start(ctx, hpcexec.Request{Args: []string{"cat"}, Stdin: in, Stdout: out})
	if err != nil {
		return nil, err
	}
	go func() {
		_, err := p.Wait()
		out.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { toCat.Close() })
	r := bufio.NewReader(fromCat)
	return &row{Where: where, How: "a byte through cat and back", sample: timed(func(context.Context) error {
		if _, err := toCat.Write([]byte{'x'}); err != nil {
			return err
		}
		_, err := r.ReadByte()
		return err
	})}, nil
}
