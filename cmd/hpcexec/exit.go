package main

import (
	"context"
	"errors"
	"syscall"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/session"
)

// The exit codes that are not the command's own.
const (
	exitTryLater    = 75
	exitNeedsPerson = 77
	exitTimedOut    = 124
	exitFailed      = 125
	exitInterrupted = 128 + int(syscall.SIGINT)
)

// exitTable is the table of docs/exit-codes.md; a test holds the two equal.
var exitTable = []struct{ code, meaning string }{
	{"the command's own", "the command ended with it; 0 for hpcexec's own commands that did what was asked"},
	{"75", "try again later: the job is still pending after --wait, or there is no free slot"},
	{"77", "a person is needed: a password, a second factor or an approval"},
	{"124", "the command ran longer than --timeout and was ended"},
	{"125", "hpcexec failed or was used wrongly; with --json, error.type says which"},
	{"126", "the command was found but can't be executed"},
	{"127", "the command was not found"},
	{"128+n", "signal n ended the command: 137 is KILL, 143 is TERM"},
	{"130", "interrupted with Ctrl-C"},
}

// An exitError ends hpcexec with a code and says nothing: what there was to
// say has been said, or was the command's own.
type exitError int

func (e exitError) Error() string { return "" }

// An interruptError is a signal that ended hpcexec's own work.
type interruptError struct{ signal syscall.Signal }

func (e *interruptError) Error() string { return "interrupted by " + signalName(e.signal) }

// Is makes it a cancellation for those who ask.
func (e *interruptError) Is(target error) bool { return target == context.Canceled }

// exitCode maps the error that ended a command line to the exit code of the
// process. It is the only place that does.
func exitCode(err error) int {
	var (
		exit      exitError
		interrupt *interruptError
		pending   *session.PendingError
	)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	case errors.As(err, &interrupt):
		return 128 + int(interrupt.signal)
	case errors.As(err, &pending):
		return exitTryLater
	case errors.Is(err, hpcexec.ErrNeedsLogin):
		return exitNeedsPerson
	default:
		return exitFailed
	}
}

// responseCode is the exit code for a command that ran.
func responseCode(r hpcexec.Response) int {
	if r.TimedOut {
		return exitTimedOut
	}
	return r.ExitCode
}
