package overlay

import (
	"context"
	"errors"
	"testing"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/hostid"
)

// TestJudge: who counts as dead.
func TestJudge(t *testing.T) {
	self, _ := hostid.SelfProc()
	dead := hostid.Proc{PID: self.PID, Start: self.Start + 1}
	rebooted := nodeA
	rebooted.BootID = "boot-a2"
	renamed := nodeA
	renamed.Host = "a.cluster"
	yes := func(context.Context, string, time.Time) (bool, bool) { return true, true }
	no := func(context.Context, string, time.Time) (bool, bool) { return false, true }
	unknown := func(context.Context, string, time.Time) (bool, bool) { return true, false }
	running := func(context.Context, Holder) (bool, bool) { return false, true }
	const now, past = 0, -time.Hour // after the case begins
	tests := []struct {
		name     string
		holder   Holder
		at       time.Duration // last beat by the holder's clock
		released bool
		jobGone  func(context.Context, string, time.Time) (bool, bool)
		nodeGone func(context.Context, Holder) (bool, bool)
		free     bool
		wait     bool // only after the time of silence
		orphans  bool
	}{
		{name: "released", holder: Holder{Host: nodeB, Proc: self}, released: true, free: true},
		{name: "same host, alive", holder: Holder{Host: nodeA, Proc: self}, at: past},
		{name: "same host, renamed, alive", holder: Holder{Host: renamed, Proc: self}, at: past},
		{name: "same host, dead", holder: Holder{Host: nodeA, Proc: dead}, at: now, free: true},
		{name: "same host, dead, helper alive", holder: Holder{Host: nodeA, Proc: dead, Helpers: []hostid.Proc{dead, self}}, orphans: true},
		{name: "same host, dead, helper dead", holder: Holder{Host: nodeA, Proc: dead, Helpers: []hostid.Proc{dead}}, free: true},
		{name: "rebooted long ago", holder: Holder{Host: rebooted, Proc: self}, at: past, free: true},
		{name: "rebooted just now", holder: Holder{Host: rebooted, Proc: self}, at: now, free: true, wait: true},
		{name: "rebooted, clock ahead", holder: Holder{Host: rebooted, Proc: self}, at: time.Hour, free: true, wait: true},
		{name: "other host, nobody to ask", holder: Holder{Host: nodeB, Proc: dead}, at: past},
		{name: "other host, job gone, nobody asks", holder: Holder{Host: nodeB, Proc: dead, Job: "1"}, at: past},
		{name: "other host, job gone", holder: Holder{Host: nodeB, Proc: dead, Job: "1"}, at: past, jobGone: yes, free: true, wait: true},
		{name: "other host, job gone, not tracked", holder: Holder{Host: nodeB, Proc: dead, Job: "1"}, at: past, jobGone: unknown},
		{name: "other host, job runs", holder: Holder{Host: nodeB, Proc: dead, Job: "1"}, at: past, jobGone: no},
		{name: "other host, no job", holder: Holder{Host: nodeB, Proc: dead}, at: past, jobGone: yes},
		{name: "other host, node says gone", holder: Holder{Host: nodeB, Proc: dead, Job: "1"}, at: past, jobGone: unknown, nodeGone: gone, free: true, wait: true},
		{name: "other host, node says running", holder: Holder{Host: nodeB, Proc: dead}, at: past, nodeGone: running},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := create(t)
			opts := quick(nodeA)
			opts.JobGone, opts.NodeGone = tt.jobGone, tt.nodeGone
			if !tt.wait {
				opts.Silence = 30 * time.Minute // longer than the test may take
			}
			start := time.Now()
			forge(t, o, 7, tt.holder, start.Add(tt.at), tt.released)
			l, err := o.Acquire(t.Context(), opts)
			if tt.free != (err == nil) {
				t.Fatalf("got %v, want the lease: %v", err, tt.free)
			}
			if took := time.Since(start); tt.wait && took < opts.Silence {
				t.Errorf("took %v, want to wait %v for silence", took, opts.Silence)
			}
			var use *InUseError
			if err != nil && (!errors.As(err, &use) || use.Orphans != tt.orphans || hpcexec.Hint(err) == "") {
				t.Errorf("got %#v, want an InUseError, orphans: %v", err, tt.orphans)
			}
			if err == nil {
				if got := leases(t, o); len(got) != 1 || got[0] != "lease.8" {
					t.Errorf("got %v, want lease.8 alone", got)
				}
				l.Release()
			}
		})
	}
}

// TestSilentHolder: a holder on another node who beats is alive, whatever the
// others say; clocks of nodes are never compared.
func TestSilentHolder(t *testing.T) {
	o := create(t)
	l := acquire(t, o, quick(nodeB))
	opts := quick(nodeA)
	opts.Silence = 3 * time.Second // many beats, also on a machine that is busy
	opts.NodeGone = gone
	if _, err := o.Acquire(t.Context(), opts); !errors.Is(err, ErrInUse) {
		t.Errorf("got %v, want ErrInUse", err)
	}
	wantLost(t, l, false)

	// The same name is no proof that it is the same machine.
	twin := nodeB
	twin.BootID = "boot-of-twin"
	opts = quick(twin)
	opts.Silence = 3 * time.Second
	if _, err := o.Acquire(t.Context(), opts); !errors.Is(err, ErrInUse) {
		t.Errorf("twin: got %v, want ErrInUse", err)
	}
	wantLost(t, l, false)
}

// TestAskedOnce: those who are asked about a job may be slow, and there may be
// many who wait.
func TestAskedOnce(t *testing.T) {
	o := create(t)
	forge(t, o, 1, Holder{Host: nodeB, Proc: hostid.Proc{PID: 1}, Job: "5"}, time.Now(), false)
	opts := quick(nodeA)
	asked := 0
	opts.JobGone = func(_ context.Context, job string, _ time.Time) (bool, bool) {
		asked++
		return job == "5", true
	}
	acquire(t, o, opts)
	if asked != 1 {
		t.Errorf("asked %d times, want once", asked)
	}
}

// TestCancelWait: the wait for silence ends with the context.
func TestCancelWait(t *testing.T) {
	o := create(t)
	forge(t, o, 1, Holder{Host: nodeB, Proc: hostid.Proc{PID: 1}}, time.Now(), false)
	opts := quick(nodeA)
	opts.NodeGone, opts.Silence = gone, time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := o.Acquire(ctx, opts); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
}
