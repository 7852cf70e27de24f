package apptainer

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// TestMain lets the test binary be the payload of an instance: it serves the
// listening socket that it was given as descriptor 3, as a shim does.
func TestMain(m *testing.M) {
	if os.Getenv("HPCEXEC_TEST_PAYLOAD") != "" {
		servePayload()
		return
	}
	goleak.VerifyTestMain(m)
}

// servePayload answers each connection with what it sees of its place.
func servePayload() {
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "payload:", err)
		os.Exit(3)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		fds, _ := filepath.Glob("/proc/self/fd/*")
		for i, fd := range fds {
			to, _ := os.Readlink(fd)
			fds[i] = filepath.Base(fd) + "=" + to
		}
		cwd, _ := os.Getwd()
		fmt.Fprintf(c, "pid %d ppid %d\nargs %q\ncwd %s\nfds %s\nenv %q\n",
			os.Getpid(), os.Getppid(), os.Args, cwd, strings.Join(fds, " "), os.Environ())
		c.Close()
	}
}
