package apptainer

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// TestMain lets the test binary be other programs: the payload of an instance,
// and a runtime.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv("HPCEXEC_TEST_PAYLOAD") != "":
		servePayload()
	case len(os.Args) > 2 && os.Args[1] == "-s":
		fakeRuntime(os.Args[2:])
	default:
		goleak.VerifyTestMain(m)
	}
}

// servePayload serves the listening socket that it was given as descriptor 3,
// as a shim does, and answers each connection with what it sees of its place.
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

// fakeRuntime does what `apptainer -s exec --cleanenv --no-eval --pwd DIR
// instance://NAME COMMAND…` does as far as a Wrapper has to cope with it, with
// no container: a clean environment with prefix variables in it, HOME and
// LD_LIBRARY_PATH not as told, everything through JSON, noise on stderr, exit
// code 255 for its own failures. Instance "hpcexec-none" doesn't exist.
func fakeRuntime(args []string) {
	fatal := func(format string, a ...any) {
		fmt.Fprintf(os.Stderr, "FATAL:   "+format+"\n", a...)
		os.Exit(255)
	}
	if len(args) < 7 || args[0] != "exec" || args[1] != "--cleanenv" || args[2] != "--no-eval" || args[3] != "--pwd" {
		fatal("the call has another shape: %q", args)
	}
	if args[5] == "instance://hpcexec-none" {
		fatal("While setting image/instance: no instance found with name hpcexec-none")
	}
	fmt.Fprintln(os.Stderr, "WARNING: noise of the runtime")
	valid := func(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
	vars := map[string]string{
		"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C", "TERM": os.Getenv("TERM"),
		"LD_LIBRARY_PATH": "/.singularity.d/libs", "PS1": "Apptainer> ", "APPTAINER_NAME": "x.sif",
	}
	for _, e := range os.Environ() {
		if rest, ok := strings.CutPrefix(e, "APPTAINERENV_"); ok {
			name, value, _ := strings.Cut(rest, "=")
			vars[name] = valid(value)
		}
	}
	if v := vars["PREPEND_PATH"]; v != "" {
		vars["PATH"] = v + ":" + vars["PATH"]
		delete(vars, "PREPEND_PATH")
	}
	vars["HOME"] = "/tmp"
	if !strings.Contains(vars["LD_LIBRARY_PATH"], ".singularity.d") {
		vars["LD_LIBRARY_PATH"] += ":/.singularity.d/libs"
	}
	var env, argv []string
	for name, value := range vars {
		env = append(env, name+"="+value)
	}
	for _, a := range args[6:] {
		argv = append(argv, valid(a))
	}
	if err := os.Chdir(args[4]); err != nil {
		fatal("failed to set working directory: %v", err)
	}
	fatal("stat %s: %v", argv[0], syscall.Exec(argv[0], argv, env))
}
