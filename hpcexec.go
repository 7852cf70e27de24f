// Package hpcexec is the contract of hpcexec: what it means to run a command
// in a place, whichever place that is.
//
//	Request ──▶ Executor ──▶ Response          a place that starts processes
//	Request ──▶ wrapper ──▶ Executor ──▶ …     a place inside another one
//
// Two things start processes: [Local], on this machine, and an SSH connection
// (package sshmux). A container (package apptainer), an allocation (package
// slurm) and a set of modules (package modules) rewrite a Request and delegate
// it; wrapped around each other they reach a command in a container in an
// allocation behind a login node.
//
// The clauses that every Executor keeps are numbered in docs/contract.md, and
// each is a case of the conformance suite internal/exectest.
//
// Beside the standard library this package imports internal/proctree alone,
// which imports nothing else.
package hpcexec

import (
	"context"
	"io"
	"time"
)

// A Request says what to run and how it is connected. An Executor neither
// keeps nor changes it.
type Request struct {
	// Args is the argv, delivered verbatim in every place; it is never a
	// shell line. Args[0] is looked up in the PATH of the place unless it
	// has a slash.
	Args []string

	// Env has NAME=VALUE entries that are added to the environment of the
	// place. The last of several with one name wins. Names match
	// [A-Za-z_][A-Za-z0-9_]*, values are any bytes without NUL.
	Env []string

	// Secrets has entries of the same form as Env. They reach the
	// environment of the command, after Env, and nothing else: no argv, no
	// file that outlives the call, no log, no error text.
	Secrets []string

	// Dir is the working directory, absolute in the place; empty stands for
	// the place's own default. A Dir that isn't there is an error, the
	// command never runs elsewhere.
	Dir string

	// Stdin is delivered whole, with its end; nil is an empty stdin. A
	// command may end though Stdin never does; Run doesn't wait for a Read
	// that is in progress then.
	Stdin io.Reader

	// Stdout and Stderr receive the output, apart and complete; nil
	// discards it. Nobody writes to them once Run or Wait has returned.
	// Where both are the same comparable writer it gets both streams, and
	// is never called by two goroutines at once.
	Stdout, Stderr io.Writer

	// Timeout ends the command and its process tree where it runs, so it
	// holds when the client is gone. Zero is no limit.
	Timeout time.Duration

	// TTY gives the command a terminal. Its output is all on Stdout then.
	TTY *TTY

	// ID names the run in audit records, in the place and in the log of
	// whatever carries it. Empty: the Executor makes one with [NewID].
	ID string
}

// A TTY is the terminal that a command gets.
type TTY struct {
	Term       string // value of TERM, such as "xterm-256color"
	Cols, Rows int    // size in characters; 0 is unknown
}

// A Response says how a command ended. A non-zero exit is a Response with a
// nil error.
type Response struct {
	// ExitCode is the command's own, or 128+n where signal n ended it. 126
	// and 127 stand for a command that is not executable or not found.
	ExitCode int

	// Signal is the name of the signal that ended it, without SIG ("TERM"),
	// or empty. A place that can't tell (see [Properties]) leaves it empty.
	Signal string

	// TimedOut says that Request.Timeout ended it.
	TimedOut bool

	// Started and Ended are times of the place's clock.
	Started, Ended time.Time

	// Place is where it ran, such as "local" or "ssh:gpu1".
	Place string

	// ID is Request.ID, or the one made for it.
	ID string
}

// An Executor runs commands in one place. It is safe for concurrent use.
type Executor interface {
	// Run runs one command and returns when it has ended and its output is
	// complete. A background process that holds the output open doesn't
	// delay the return.
	//
	// Where ctx ends first, the command's process tree is ended within the
	// grace time, what it had written stays written, and the error matches
	// context.Cause(ctx). Where ctx had ended before, nothing runs.
	//
	// Other errors match one of the Err variables of this package.
	Run(ctx context.Context, req Request) (Response, error)
}

// A Starter is an Executor whose commands can be talked to while they run.
type Starter interface {
	Executor

	// Start starts a command and returns once it runs. When ctx ends the
	// command ends, as with Run. The caller must call Wait.
	Start(ctx context.Context, req Request) (Process, error)
}

// A Process is a command that was started.
type Process interface {
	// Wait returns what Run would. It may be called once.
	Wait() (Response, error)

	// Signal sends a signal, named without SIG ("TERM", "INT"), to the
	// command's process group. After the end it is an error of kind
	// ErrInvalid.
	Signal(name string) error

	// Resize sets the size of the terminal of a command that has one.
	Resize(cols, rows int) error
}

// Properties are the facts in which places differ. The zero value promises
// the least; the conformance suite holds a place to each fact it declares.
type Properties struct {
	// Place names the place, such as "ssh:gpu1".
	Place string

	// SharesFilesystem: a path means the same file here and there.
	SharesFilesystem bool

	// ReportsSignal: Response.Signal is set for a command that a signal
	// ended. Else only ExitCode tells, as 128+n.
	ReportsSignal bool

	// TreeByGroup: cancel and time-out reach every process in the command's
	// process group. TreeWhole: they also reach processes that left it with
	// setsid or a double fork.
	TreeByGroup, TreeWhole bool

	// OutlivesClient: Timeout is enforced even where the client was killed.
	OutlivesClient bool

	// Terminal: TTY is supported. Without it a TTY is ErrInvalid.
	Terminal bool

	// Signals: the place's processes can be signalled (it is a Starter).
	Signals bool
}

// A Describer declares the Properties of its place.
type Describer interface {
	Properties() Properties
}
