package sshmux

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/hpcexec/hpcexec"
)

// clientMain is a client in a process of its own: it runs a command through a
// socket with the process's own streams.
func clientMain(socket string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, err := Open(socket)
	if err == nil {
		var resp hpcexec.Response
		resp, err = c.Run(ctx, hpcexec.Request{Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
		if err == nil {
			return resp.ExitCode
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 125
}

// pipeMain joins stdin and stdout with an address, as nc does.
func pipeMain(network, addr string) int {
	c, err := net.Dial(network, addr)
	if err != nil {
		return 1
	}
	go io.Copy(c, os.Stdin)
	io.Copy(os.Stdout, c)
	return 0
}
