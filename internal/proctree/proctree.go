// Package proctree finds and ends the processes that one command has started,
// all of them, also those that tried to get away.
//
//	command ─┬─ child                   same process group, same session
//	         ├─ timeout 9 … ─ child     own group, same session
//	         ├─ setsid … ─ child        own session, parent still there
//	         ├─ daemon                  own session, parent gone: has the marker
//	         └─ env -i setsid …         detached: not of the tree
//
// A [Tree] is named by the command's process group, which is also its session
// (the leader of both is the command's first process), and by a marker, the
// value of the variable [MarkerVar] in the environment that every descendant
// inherits.
//
// A process that has a session of its own and an environment without a marker
// is detached, and its descendants with it. This is how a command starts what
// shall outlive it though it never asked its parent: hpcexec itself, run by a
// command, starts the master of a connection or the supervisor of a session so.
//
// A walk of /proc costs a few microseconds for each process of the machine. A
// [Walker] shares a walk between all who wait for one, so that the end of a
// thousand commands at once takes a few walks, not thousands.
//
// This package imports the standard library only: the root package uses it.
package proctree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// MarkerVar is the environment variable whose value marks the processes of a
// command.
const MarkerVar = "HPCEXEC_ID"

// A Tree names the processes of one command. The zero value names none.
type Tree struct {
	// PGID is the process group, and the session, of the command; 0 for
	// none. The caller must know that the number still stands for that
	// group: its leader hasn't been waited for yet, or a member is known to
	// live. Numbers are used again.
	PGID int

	// Marker is the value of [MarkerVar], or of the variable that the Walker
	// looks for; empty for none.
	Marker string
}

// Signal sends a signal to a process group. An empty group is
// syscall.ESRCH.
func Signal(pgid int, sig syscall.Signal) error {
	if pgid <= 1 {
		// kill(2) takes -1 for every process there is, and 0 for our own.
		return fmt.Errorf("process group %d: %w", pgid, syscall.EINVAL)
	}
	return syscall.Kill(-pgid, sig)
}

// Members are the living processes of a tree, without the calling one.
// Zombies don't live.
func Members(t Tree) []int { return new(Walker).Members(t) }

// Kill is [Walker.Kill] of a Walker of its own.
func Kill(ctx context.Context, t Tree) (survivors int, err error) {
	return new(Walker).Kill(ctx, t)
}

// Members are the living processes of a tree, without the calling one.
// Zombies don't live.
func (w *Walker) Members(t Tree) []int {
	var pids []int
	for _, p := range w.look().members(t) {
		pids = append(pids, p.pid)
	}
	return pids
}

// Kill sends SIGKILL to every process of a tree until none is left, and
// returns how many it had to leave: because ctx ended, or because they belong
// to another user. Whatever is left over comes with an error that says why.
func (w *Walker) Kill(ctx context.Context, t Tree) (survivors int, err error) {
	if t == (Tree{}) {
		return 0, nil
	}
	// Children of the dying lose the parent they are known by, so whoever
	// was found is remembered, by pid and start time.
	left := map[ident]bool{}
	for {
		for _, p := range w.look().members(t) {
			left[p.ident] = true
		}
		if len(left) == 0 {
			return 0, nil
		}
		if t.PGID > 1 {
			// All at once: a group that forks can't outrun it.
			syscall.Kill(-t.PGID, syscall.SIGKILL)
		}
		denied := 0
		for p := range left {
			if err := p.signal(syscall.SIGKILL); errors.Is(err, syscall.EPERM) {
				denied++
			}
		}
		if denied == len(left) {
			return denied, fmt.Errorf("%d processes belong to another user: %w", denied, syscall.EPERM)
		}
		if err := waitGone(ctx, left, 100*time.Millisecond); err != nil {
			return len(left), fmt.Errorf("%d processes don't end: %w", len(left), err)
		}
	}
}

// End asks a tree to end and then makes it: SIGTERM to the group and to what
// has left it, and what is there after the grace time gets SIGKILL. It returns
// what Kill does.
func (w *Walker) End(ctx context.Context, t Tree, grace time.Duration) (survivors int, err error) {
	if t == (Tree{}) {
		return 0, nil
	}
	deadline := time.Now().Add(grace)
	if t.PGID > 1 && grace > 0 {
		syscall.Kill(-t.PGID, syscall.SIGTERM)
		syscall.Kill(-t.PGID, syscall.SIGCONT) // the stopped can't obey before
	}
	asked := map[ident]bool{}
	for left := time.Until(deadline); left > 0; left = time.Until(deadline) {
		waiting := map[ident]bool{}
		for _, p := range w.look().members(t) {
			waiting[p.ident] = true
			if p.pgrp != t.PGID && !asked[p.ident] {
				p.signal(syscall.SIGTERM)
				p.signal(syscall.SIGCONT)
			}
			asked[p.ident] = true
		}
		if len(waiting) == 0 {
			return 0, nil
		}
		if err := waitGone(ctx, waiting, left); err != nil {
			return len(waiting), fmt.Errorf("%d processes don't end: %w", len(waiting), err)
		}
	}
	return w.Kill(ctx, t)
}

// waitGone takes out of left who has gone, until all have or the time is up.
// Its error is that of ctx.
func waitGone(ctx context.Context, left map[ident]bool, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for pause := 250 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		for p := range left {
			if !p.alive() {
				delete(left, p)
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// An ident is one process for ever: a pid is used again, but not with the
// same start time.
type ident struct {
	pid   int
	start uint64 // clock ticks since boot
}

// alive says whether the process is there and no zombie.
func (id ident) alive() bool {
	p, ok := readStat(id.pid)
	return ok && p.ident == id && !p.zombie
}

// signal reaches the process, and never another one that got its pid.
func (id ident) signal(sig syscall.Signal) error {
	p, err := os.FindProcess(id.pid) // holds on to the process, where the kernel can
	if err != nil {
		return err
	}
	defer p.Release()
	if !id.alive() {
		return os.ErrProcessDone
	}
	return p.Signal(sig)
}
