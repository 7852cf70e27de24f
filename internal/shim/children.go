package shim

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hpcexec/hpcexec/internal/proctree"
	"github.com/hpcexec/hpcexec/internal/wire"
)

// status counts what runs.
func (s *server) status() *wire.Status {
	s.mu.Lock()
	foreground := map[string]bool{}
	st := &wire.Status{}
	for cmd := range s.commands {
		if cmd.conn != nil {
			foreground[cmd.id] = true
			st.Running++
		}
	}
	s.mu.Unlock()
	st.Background = len(leftovers(foreground))
	st.LastActivity = time.Unix(0, s.active.Load()).UTC()
	st.PID, st.UID, st.Connections = os.Getpid(), os.Getuid(), int(s.connected.Load())
	return st
}

// endLeftovers ends the processes that no command in s.commands answers for
// with SIGTERM, and what is there after the grace time with SIGKILL. The
// commands have been cancelled; it gives them the same time.
func (s *server) endLeftovers() {
	s.mu.Lock()
	running := map[string]bool{} // these are ended by Local
	for cmd := range s.commands {
		running[cmd.id] = true
	}
	s.mu.Unlock()
	asked := map[process]bool{}
	deadline := time.Now().Add(s.opts.Grace)
	for time.Now().Before(deadline) {
		left := leftovers(running)
		for _, p := range left {
			if !asked[p] {
				p.signal(syscall.SIGTERM)
				p.signal(syscall.SIGCONT)
				asked[p] = true
			}
		}
		if len(left) == 0 {
			break
		}
		time.Sleep(pollPause)
	}
	limit := time.Until(deadline) + killLimit
	s.await(waited(&s.work), limit, "commands")
	for end := time.Now().Add(killLimit); ; time.Sleep(pollPause) {
		left := leftovers(nil)
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			s.log.Warn("left behind", "what", "processes", "count", len(left))
			return
		}
		for _, p := range left {
			p.signal(syscall.SIGKILL)
		}
	}
}

// pollPause is the time between two looks at processes that are to end.
const pollPause = 5 * time.Millisecond

// A process is one for ever: a pid is used again, but not with the same start
// time (clock ticks since boot).
type process struct {
	pid   int
	start string
}

// leftovers are the living descendants of this process but those of commands
// with the ids. A subreaper inherits what loses its parent, so each of its
// children is the root of a tree that is one command's, and has its marker.
func leftovers(ids map[string]bool) []process {
	var found []process
	var walk func(pid int)
	walk = func(pid int) {
		if p, ok := findProcess(pid); ok {
			found = append(found, p)
		}
		for _, child := range childrenOf(pid) {
			walk(child)
		}
	}
	for _, pid := range childrenOf(os.Getpid()) {
		if len(ids) == 0 || !ids[marker(pid)] {
			walk(pid)
		}
	}
	return found
}

// childrenOf has the children of a process, of all its threads (the file
// children of proc(5)).
func childrenOf(pid int) []int {
	dir := "/proc/" + strconv.Itoa(pid) + "/task/"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var pids []int
	for _, t := range tasks {
		data, err := os.ReadFile(dir + t.Name() + "/children")
		if err != nil {
			if _, err := os.Stat(dir + t.Name()); err == nil {
				return childrenByWalk(pid) // a kernel without such files
			}
			continue // the thread has ended
		}
		for _, f := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func childrenByWalk(parent int) []int {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range procs {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f := stat(pid); len(f) > 1 && f[1] == strconv.Itoa(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// stat has the fields of /proc/PID/stat from the state on, which is the third
// of proc(5); nil when there is no such process.
func stat(pid int) []string {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	// The name before it, in parentheses, may hold anything.
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
}

// findProcess finds a process that isn't a zombie.
func findProcess(pid int) (process, bool) {
	const state, start = 0, 19
	f := stat(pid)
	if len(f) <= start || f[state] == "Z" || f[state] == "X" {
		return process{}, false
	}
	return process{pid, f[start]}, true
}

// signal reaches the process, and never another one that got its pid.
func (p process) signal(sig syscall.Signal) {
	proc, err := os.FindProcess(p.pid) // holds on to the process, where the kernel can
	if err != nil {
		return
	}
	defer proc.Release()
	if now, ok := findProcess(p.pid); ok && now == p {
		proc.Signal(sig)
	}
}

// marker is the id of the command that a process belongs to.
func marker(pid int) string {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return ""
	}
	for e := range strings.SplitSeq(string(data), "\x00") {
		if v, ok := strings.CutPrefix(e, proctree.MarkerVar+"="); ok {
			return v
		}
	}
	return ""
}
