package proctree

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Children knows which children of this process somebody waits for, so that
// a subreaper can reap the others. The zero value is ready; it is safe for
// concurrent use.
//
// Between a fork and the note of it a child that has ended looks like an
// orphan. So an orphan is reaped only when every fork that had begun before it
// was seen is over; a lock that forks hold would let one that hangs, on the
// file server of its program say, stop everything.
type Children struct {
	mu      sync.Mutex
	own     map[int]bool    // by pid
	forks   map[uint64]bool // under way, by number
	forked  uint64          // the last number given
	orphans map[int]uint64  // seen, by pid: the number of forks then
}

// Start calls fork and notes the child that it returns as one that will be
// waited for with Reap.
func (c *Children) Start(fork func() (pid int, err error)) (pid int, err error) {
	c.mu.Lock()
	if c.own == nil {
		c.own, c.forks, c.orphans = map[int]bool{}, map[uint64]bool{}, map[int]uint64{}
	}
	c.forked++
	number := c.forked
	c.forks[number] = true
	c.mu.Unlock()

	pid, err = fork()

	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.forks, number)
	if err == nil {
		c.own[pid] = true
	}
	return pid, err
}

// Reap waits for a child that Start noted and that has ended.
func (c *Children) Reap(pid int) (syscall.WaitStatus, error) {
	c.mu.Lock() // until the pid, which is free after the wait, is forgotten
	defer c.mu.Unlock()
	var ws syscall.WaitStatus
	err := retry(func() error {
		_, err := syscall.Wait4(pid, &ws, 0, nil)
		return err
	})
	delete(c.own, pid)
	return ws, err
}

// ReapOrphans reaps the children that have ended and that nobody waits for.
// It returns how many it reaped and how many it must leave for a later call.
func (c *Children) ReapOrphans() (reaped, left int) {
	var zombies []int
	for _, pid := range childPIDs() {
		if p, ok := readStat(pid); ok && p.zombie {
			zombies = append(zombies, pid)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	begun := c.forked + 1 // the earliest fork that isn't over
	for number := range c.forks {
		begun = min(begun, number)
	}
	seen := map[int]uint64{}
	for _, pid := range zombies {
		since, ok := c.orphans[pid]
		if !ok {
			since = c.forked
		}
		switch {
		case c.own[pid]:
		case since < begun:
			if got, _ := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); got == pid {
				reaped++
			}
		default:
			seen[pid] = since
		}
	}
	c.orphans = seen
	return reaped, len(seen)
}

// ServeOrphans reaps orphans when they end, until ctx ends.
func (c *Children) ServeOrphans(ctx context.Context) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	defer signal.Stop(ended)
	for {
		if _, left := c.ReapOrphans(); left == 0 {
			select {
			case <-ctx.Done():
				return
			case <-ended:
			}
		}
		// Most that end aren't orphans, and an orphan can wait: look a few
		// times a second, not a thousand times.
		select {
		case <-ctx.Done():
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// BecomeSubreaper makes this process the parent of every descendant that
// loses its own (PR_SET_CHILD_SUBREAPER, prctl(2)). It must reap them.
func BecomeSubreaper() error {
	const prSetChildSubreaper = 36
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); e != 0 {
		return fmt.Errorf("become subreaper: %w", e)
	}
	return nil
}

// childPIDs are the children of this process, from the lists that the kernel
// keeps for each thread, or by a walk where it keeps none.
func childPIDs() []int {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil
	}
	var pids []int
	for _, t := range tasks {
		data, err := os.ReadFile("/proc/self/task/" + t.Name() + "/children")
		if err != nil {
			if _, err := os.Stat("/proc/self/task/" + t.Name()); err != nil {
				continue // the thread has ended
			}
			return childPIDsByWalk()
		}
		for _, f := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func childPIDsByWalk() []int {
	self := os.Getpid()
	var pids []int
	for _, p := range readTable(MarkerVar).procs {
		if p.ppid == self {
			pids = append(pids, p.pid)
		}
	}
	return pids
}
