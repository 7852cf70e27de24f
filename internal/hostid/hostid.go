// Package hostid tells machines, boots and processes apart, so that a file on
// a shared file system can say who wrote it and a reader on any node can tell
// whether that one is still there.
//
// A host name is for people: containers and whole clusters share them. A boot
// id isn't enough either: the containers of one machine share it. So an ID has
// the start time of PID 1 and the process namespace as well.
package hostid

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// An ID is one boot of one machine, or one life of one container, seen by the
// processes in it: those that have the same ID see each other's process ids.
type ID struct {
	// Host is the host name. It takes no part in Same.
	Host string `json:"host"`

	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string `json:"boot_id"`

	// InitStart is the start time of PID 1 in clock ticks after the boot, 0
	// where /proc hides other users' processes (mount option hidepid).
	InitStart uint64 `json:"init_start"`

	// PIDNS is the inode number of the process namespace, 0 if not known.
	PIDNS uint64 `json:"pid_ns,omitempty"`
}

// Self is the ID of where this process runs.
func Self() (ID, error) {
	host, err := os.Hostname()
	if err != nil {
		return ID{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ID{}, err
	}
	id := ID{Host: host, BootID: strings.TrimSpace(string(boot))}
	if id.BootID == "" {
		return ID{}, errors.New("the boot id in /proc is empty")
	}
	if start, err := ProcStart(1); err == nil {
		id.InitStart = start
	}
	var st syscall.Stat_t
	if err := syscall.Stat("/proc/self/ns/pid", &st); err == nil {
		id.PIDNS = st.Ino
	}
	return id, nil
}

// Same says whether two IDs are the same boot, so that process ids of one mean
// something to the other. Host names take no part: they change in mid-life.
func (id ID) Same(other ID) bool {
	return id.BootID != "" && id.BootID == other.BootID && id.InitStart == other.InitStart && id.PIDNS == other.PIDNS
}

// Hash is a short form for file names: 16 hexadecimal digits, the same for IDs
// that are Same.
func (id ID) Hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d/%d", id.BootID, id.InitStart, id.PIDNS))
	return hex.EncodeToString(sum[:8])
}

// String is HOST/BOOT/INIT-START/NAMESPACE. [Parse] reads it.
func (id ID) String() string {
	return fmt.Sprintf("%s/%s/%d/%d", id.Host, id.BootID, id.InitStart, id.PIDNS)
}

// Parse reads what [ID.String] wrote.
func Parse(s string) (ID, error) {
	f := strings.Split(s, "/")
	if len(f) != 4 || f[1] == "" {
		return ID{}, fmt.Errorf("host id %q is not HOST/BOOT/START/NAMESPACE", s)
	}
	start, err1 := strconv.ParseUint(f[2], 10, 64)
	ns, err2 := strconv.ParseUint(f[3], 10, 64)
	if err1 != nil || err2 != nil {
		return ID{}, fmt.Errorf("host id %q has a field that is no number", s)
	}
	return ID{Host: f[0], BootID: f[1], InitStart: start, PIDNS: ns}, nil
}

// A Proc is one life of a process id on one boot.
type Proc struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after the boot; 0 is not known
}

// SelfProc is this process.
func SelfProc() (Proc, error) { return Find(os.Getpid()) }

// Find is the process that has the id pid now. The error matches
// fs.ErrNotExist where there is none.
func Find(pid int) (Proc, error) {
	start, err := ProcStart(pid)
	return Proc{PID: pid, Start: start}, err
}

// Alive says whether the process still runs. It only makes sense where Self is
// Same as it was for whoever made the Proc. A process id that another process
// has by now isn't alive, a zombie isn't either. In doubt (/proc can't be read)
// the answer is yes.
func (p Proc) Alive() bool {
	if p.PID <= 0 {
		return false
	}
	st, err := readStat(p.PID)
	if err != nil {
		// Other users' processes may be hidden in /proc; a signal tells.
		return !errors.Is(syscall.Kill(p.PID, 0), syscall.ESRCH)
	}
	if st.state == 'Z' || st.state == 'X' {
		return false
	}
	return p.Start == 0 || p.Start == st.start
}

// String is PID:START. [ParseProc] reads it.
func (p Proc) String() string { return fmt.Sprintf("%d:%d", p.PID, p.Start) }

// ParseProc reads what [Proc.String] wrote.
func ParseProc(s string) (Proc, error) {
	a, b, ok := strings.Cut(s, ":")
	pid, err1 := strconv.Atoi(a)
	start, err2 := strconv.ParseUint(b, 10, 64)
	if !ok || err1 != nil || err2 != nil || pid <= 0 {
		return Proc{}, fmt.Errorf("process %q is not PID:START", s)
	}
	return Proc{PID: pid, Start: start}, nil
}

// ProcStart is the start time of a process in clock ticks after the boot. The
// error matches fs.ErrNotExist where there is no such process.
func ProcStart(pid int) (uint64, error) {
	st, err := readStat(pid)
	return st.start, err
}

// stat is what is used of /proc/PID/stat; see proc_pid_stat(5).
type stat struct {
	state byte
	start uint64
}

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, syscall.ESRCH) { // it ended between open and read
		return stat{}, fmt.Errorf("process %d: %w", pid, fs.ErrNotExist)
	}
	if err != nil {
		return stat{}, err
	}
	st, err := parseStat(data)
	if err != nil {
		return stat{}, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	return st, nil
}

// parseStat reads the content of /proc/PID/stat. The name of the program, the
// second field, is in parentheses and may have anything in it, parentheses and
// newlines included: the fields are counted from the last ')'.
func parseStat(data []byte) (stat, error) {
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return stat{}, errors.New("no ')' in it")
	}
	f := bytes.Fields(data[i+1:])
	const state, start = 3 - 3, 22 - 3 // the manual counts from 1
	if len(f) <= start || len(f[state]) != 1 {
		return stat{}, errors.New("too few fields")
	}
	n, err := strconv.ParseUint(string(f[start]), 10, 64)
	if err != nil {
		return stat{}, errors.New("the start time is no number")
	}
	return stat{state: f[state][0], start: n}, nil
}
