package apptainer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Proc is a process of this machine, told apart from a later one with the
// same pid by its start time.
type Proc struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`          // clock ticks since boot, field 22 of /proc/PID/stat
	Name  string `json:"name,omitempty"` // the kernel's short name, such as "squashfuse_ll"
}

// Alive says whether the process still runs. A zombie doesn't: where PID 1
// reaps nothing it stays for ever, and holds nothing.
func (p Proc) Alive() bool {
	if p.PID <= 0 {
		return false
	}
	st, err := readStat(p.PID)
	return err == nil && st.start == p.Start && st.state != 'Z' && st.state != 'X'
}

// signal sends sig to the process and to no other: the pidfd is opened first,
// the start time compared then, so a pid that was reused isn't hit. A process
// that is gone is no error.
func (p Proc) signal(sig unix.Signal) error {
	fd, err := p.open()
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// open gives a pidfd of a process that is alive, or -1.
func (p Proc) open() (int, error) {
	if p.PID <= 0 {
		return -1, nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	if !p.Alive() {
		unix.Close(fd)
		return -1, nil
	}
	return fd, nil
}

// waitGone waits until the process has ended, a zombie counting as ended, and
// says whether it has. It returns false when d or ctx is over. A pidfd becomes
// readable at the end of the process even if nobody reaps it.
func (p Proc) waitGone(ctx context.Context, d time.Duration) bool {
	fd, err := p.open()
	if fd < 0 {
		return err == nil || !p.Alive()
	}
	defer unix.Close(fd)
	deadline := time.Now().Add(d)
	for {
		left := time.Until(deadline)
		if left <= 0 || ctx.Err() != nil {
			return !p.Alive()
		}
		// In slices, so that the end of ctx is noticed.
		ms := int(min(left, 50*time.Millisecond).Milliseconds()) + 1
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, ms)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return !p.Alive()
		}
	}
}

// stat is what we use of /proc/PID/stat, see proc_pid_stat(5).
type stat struct {
	comm             string
	state            byte
	ppid, pgrp, sess int
	start            uint64
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

// parseStat parses the one line of /proc/PID/stat. The name is between the
// first '(' and the last ')', it may hold both and spaces.
func parseStat(b []byte) (stat, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return stat{}, errors.New("stat line has no name")
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, errors.New("stat line is short")
	}
	st := stat{comm: string(b[open+1 : end]), state: f[0][0]}
	var err [4]error
	st.ppid, err[0] = strconv.Atoi(f[1])
	st.pgrp, err[1] = strconv.Atoi(f[2])
	st.sess, err[2] = strconv.Atoi(f[3])
	st.start, err[3] = strconv.ParseUint(f[19], 10, 64)
	return st, errors.Join(err[:]...)
}

// procOf describes a process that runs now.
func procOf(pid int) (Proc, stat, error) {
	st, err := readStat(pid)
	if err != nil {
		return Proc{}, stat{}, err
	}
	return Proc{PID: pid, Start: st.start, Name: st.comm}, st, nil
}

// ownPIDs lists the processes of our uid. /proc shows a process of a user
// namespace with the uid it has out here, so those in containers count.
func ownPIDs() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	uid := uint32(os.Getuid())
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		// A non-dumpable process shows as root's here; its real uid is in
		// status. Those (the setuid starter) are looked at a second time.
		var st unix.Stat_t
		if unix.Lstat("/proc/"+name, &st) != nil || st.Uid != uid && (st.Uid != 0 || statusUID(pid) != uid) {
			continue
		}
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids, nil
}

// statusUID is the real uid of a process, or 0.
func statusUID(pid int) uint32 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				n, _ := strconv.ParseUint(f[0], 10, 32)
				return uint32(n)
			}
		}
	}
	return 0
}

// cmdline is the argv of a process, or its title where it set one.
func cmdline(pid int) []string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
}

// children lists the child processes of pid. The kernel's own list is used
// where it is compiled in, else all of /proc is looked through.
func children(pid int) []int {
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	var out []int
	for _, file := range tasks {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	if len(tasks) > 0 {
		return out
	}
	pids, _ := ownPIDs()
	for _, p := range pids {
		if st, err := readStat(p); err == nil && st.ppid == pid {
			out = append(out, p)
		}
	}
	return out
}

// environHas says whether a process was started with an environment entry. An
// environment that can't be read has nothing.
func environHas(pid int, entry string) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for e := range bytes.SplitSeq(b, []byte{0}) {
		if string(e) == entry {
			return true
		}
	}
	return false
}
