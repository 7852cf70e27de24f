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
type Children struct {
	mu  sync.RWMutex // held for reading from a fork until the child is in own
	own sync.Map     // int -> nothing
}

// Start calls fork and notes the child that it returns as one that will be
// waited for with Reap.
func (c *Children) Start(fork func() (pid int, err error)) (pid int, err error) {
	c.mu.RLock() // a child that ends at once isn't taken for an orphan
	defer c.mu.RUnlock()
	if pid, err = fork(); err == nil {
		c.own.Store(pid, nil)
	}
	return pid, err
}

// Reap waits for a child that Start noted.
func (c *Children) Reap(pid int) (syscall.WaitStatus, error) {
	c.mu.RLock() // until the pid, which is free now, is forgotten
	defer c.mu.RUnlock()
	var ws syscall.WaitStatus
	err := retry(func() error {
		_, err := syscall.Wait4(pid, &ws, 0, nil)
		return err
	})
	c.own.Delete(pid)
	return ws, err
}

// ReapOrphans reaps the children that have ended and that nobody waits for,
// and returns how many it reaped.
func (c *Children) ReapOrphans() int {
	n := 0
	for _, pid := range childPIDs() {
		c.mu.Lock()
		if _, own := c.own.Load(pid); !own {
			if got, _ := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); got == pid {
				n++
			}
		}
		c.mu.Unlock()
	}
	return n
}

// ServeOrphans reaps orphans when they end, until ctx ends.
func (c *Children) ServeOrphans(ctx context.Context) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	defer signal.Stop(ended)
	for {
		c.ReapOrphans()
		select {
		case <-ctx.Done():
			return
		case <-ended:
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
