// Package exectest is the conformance suite of hpcexec: every clause of
// docs/contract.md as a case that any Executor can be held to.
//
//	func TestConformance(t *testing.T) {
//		exectest.Run(t, exectest.Suite{New: func(t *testing.T) hpcexec.Executor { … }})
//	}
//
// A case that fails prints the rule it guards. It runs under a time limit and
// must leave no goroutine behind. Cases use what POSIX promises of a shell and
// its tools, and /proc, so that they run in a minimal image; the facts in which
// places differ are declared by their [hpcexec.Properties] and the fields of
// [Suite], never guessed from a name, and are checked both ways where that is
// possible.
//
// A wrapper, which rewrites a request and delegates it, needs a second kind of
// test: what exactly did it ask of its base? A [Recorder] tells.
package exectest

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hpcexec/hpcexec"
)

// A Suite is an Executor to test and the facts of its place.
type Suite struct {
	// New makes an Executor for one case and registers its clean-up. It may
	// return the same one each time where a place is dear.
	New func(t *testing.T) hpcexec.Executor

	// Probe makes an Executor that runs commands in the same place (on the
	// same processes and files) and goes on working after Break. Nil stands
	// for New.
	Probe func(t *testing.T) hpcexec.Executor

	// Break loses the place of an Executor that New made, as a dead
	// connection would. Nil: it can't be lost.
	Break func(t *testing.T, ex hpcexec.Executor)

	// Facts are what the place is known to be; the Executor's Properties
	// must say the same. Nil takes what it declares.
	Facts *hpcexec.Properties

	// TempDir is a directory in the place where cases may write. Empty
	// stands for /tmp.
	TempDir string

	// HardCancel: where ctx or the time ends, the command is killed without
	// a SIGTERM before.
	HardCancel bool

	// EndsBackground: what a command leaves running ends with it.
	EndsBackground bool

	// Grace is how long after the return of a cancelled Run its processes
	// may take to be gone. 0 stands for 5 s.
	Grace time.Duration

	// Limit is the time that a case may take. 0 stands for 60 s.
	Limit time.Duration

	// Leaks has goroutines that may be left: those of a shared Executor.
	Leaks []goleak.Option
}

// A Clause is one rule of the contract with the case that guards it.
type Clause struct {
	Name string // of the case
	Rule string // as in docs/contract.md

	fn func(t *T)
}

// Clauses are all clauses of the contract, in the order of their numbers,
// which begin at 1.
func Clauses() []Clause {
	var all []Clause
	for _, part := range [][]Clause{
		requestClauses(), environmentClauses(), stdinClauses(), outputClauses(),
		endClauses(), stopClauses(), startClauses(), terminalClauses(), lossClauses(),
	} {
		all = append(all, part...)
	}
	return all
}

// Run holds an Executor to every clause, each as a subtest.
func Run(t *testing.T, s Suite) {
	if s.New == nil {
		t.Fatal("exectest: Suite.New is missing")
	}
	if s.TempDir == "" {
		s.TempDir = "/tmp"
	}
	if s.Grace == 0 {
		s.Grace = 5 * time.Second
	}
	if s.Limit == 0 {
		s.Limit = time.Minute
	}
	for i, c := range Clauses() {
		t.Run(c.Name, func(t *testing.T) { runCase(t, s, i+1, c) })
	}
}

func runCase(t *testing.T, s Suite, number int, c Clause) {
	// Clean-ups run last in, first out: these two after those of New.
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the rule, clause %d of docs/contract.md: %s", number, c.Rule)
		}
	})
	before := append([]goleak.Option{goleak.IgnoreCurrent()}, s.Leaks...)
	t.Cleanup(func() {
		if err := goleak.Find(before...); err != nil && !t.Failed() {
			t.Errorf("goroutines are left: %v", err)
		}
	})
	ctx, cancel := context.WithTimeoutCause(context.Background(), s.Limit,
		fmt.Errorf("the case took longer than %v", s.Limit))
	t.Cleanup(cancel)

	ct := &T{T: t, s: s, ctx: ctx, mark: "exectest-" + hpcexec.NewID()}
	ct.ex = s.New(t)
	ct.facts = declared(ct.ex)
	if s.Facts != nil {
		ct.facts = *s.Facts
	}
	t.Cleanup(ct.killLeft)

	done := make(chan struct{})
	go func() {
		defer close(done) // also where c.fn calls FailNow
		c.fn(ct)
	}()
	select {
	case <-done:
	case <-time.After(s.Limit + 10*time.Second): // its context has ended before
		buf := make([]byte, 1<<20)
		t.Fatalf("the case hangs:\n%s", buf[:runtime.Stack(buf, true)])
	}
}

func declared(ex hpcexec.Executor) hpcexec.Properties {
	if d, ok := ex.(hpcexec.Describer); ok {
		return d.Properties()
	}
	return hpcexec.Properties{}
}
