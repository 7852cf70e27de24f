package hpcexec

import (
	"errors"
	"io"
	"io/fs"
	"strings"
	"syscall"
)

// defaultPath is searched where the environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// access is access(2) with the effective ids.
func access(path string, mode uint32) error {
	const (
		atFDCWD   = -0x64
		atEaccess = 0x200
	)
	return syscall.Faccessat(atFDCWD, path, mode, atEaccess)
}

// xOK asks access whether a file can be executed, a directory searched.
const xOK = 1

// checkDir says why a directory can't be a working directory.
func checkDir(dir string) error {
	var st syscall.Stat_t
	err := syscall.Stat(dir, &st)
	if err == nil && st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		err = syscall.ENOTDIR
	}
	if err == nil {
		err = access(dir, xOK)
	}
	if err != nil {
		return Errorf(ErrInvalid, "directory %s: %w", dir, err).
			WithHint("make it, or name another directory")
	}
	return nil
}

// lookPath finds a program as execvp(3) does, in the PATH of env and from dir.
// Its errors are fs.ErrNotExist and fs.ErrPermission.
func lookPath(name string, env []string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path, ok := getenv(env, "PATH")
	if !ok {
		path = defaultPath
	}
	denied := false
	for entry := range strings.SplitSeq(path, ":") {
		if entry == "" {
			entry = "."
		}
		file := entry + "/" + name
		seen := file
		if entry[0] != '/' && dir != "" {
			seen = dir + "/" + file // the command will be there, we aren't
		}
		var st syscall.Stat_t
		if err := syscall.Stat(seen, &st); err != nil {
			denied = denied || errors.Is(err, fs.ErrPermission)
			continue
		}
		if st.Mode&syscall.S_IFMT == syscall.S_IFDIR || access(seen, xOK) != nil {
			denied = true
			continue
		}
		return file, nil
	}
	if denied {
		return "", fs.ErrPermission
	}
	return "", fs.ErrNotExist
}

// notExecutable turns the reason why a program can't be executed into what a
// shell makes of it: an exit code, and a line for Stderr.
func notExecutable(name string, err error) (code int, line string) {
	code, why := 126, err.Error()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code, why = 127, "not found"
		if strings.Contains(name, "/") && access(name, xOK) == nil {
			why = "its interpreter is not found"
		}
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP):
		code = 127
	case errors.Is(err, fs.ErrPermission):
		why = "not executable"
	case errors.Is(err, syscall.ENOEXEC):
		why = "not executable: neither a program nor a script that starts with #!"
	}
	return code, "hpcexec: " + name + ": " + why + "\n"
}

// failed is how a request ends that never got a process.
func (p *process) failed(req *Request, err error) {
	name := req.Args[0]
	code, line := notExecutable(name, err)
	w := req.Stderr
	if req.TTY != nil {
		w, line = req.Stdout, strings.TrimSuffix(line, "\n")+"\r\n"
	}
	if w != nil {
		io.WriteString(w, line) // an error is the Writer's to tell, as ever
	}
	p.notRun = code
}

// forkError gives a failure of the fork, as opposed to one of the execution,
// its kind; nil is for the latter.
func forkError(err error, req *Request, env []string) error {
	switch {
	case errors.Is(err, syscall.E2BIG):
		return tooBig(req, env)
	case errors.Is(err, syscall.EAGAIN):
		return Errorf(ErrUnavailable, "start of a process: %w", err).
			WithHint("the limit of processes is reached: see ulimit -u and what is running")
	case errors.Is(err, syscall.ENOMEM):
		return Errorf(ErrUnavailable, "start of a process: %w", err).
			WithHint("the machine or the job is out of memory")
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return noDescriptors(err)
	}
	return nil
}

func noDescriptors(err error) error {
	return Errorf(ErrUnavailable, "start of a process: %w", err).
		WithHint("too many files are open: see ulimit -n")
}

// tooBig is the error of more arguments and environment than execve(2) takes in
// all: a quarter of the stack's limit. Single ones that are too big have been
// refused by Request.Check.
func tooBig(req *Request, env []string) error {
	total := 0
	for _, list := range [][]string{req.Args, env} {
		for _, e := range list {
			total += len(e) + 1
		}
	}
	return Errorf(ErrInvalid, "arguments and environment have %d bytes: %w", total, syscall.E2BIG).
		WithHint("the system takes a quarter of the stack's limit (ulimit -s); pass them on stdin or in a file")
}
