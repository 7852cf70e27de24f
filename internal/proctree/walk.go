package proctree

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// A Walker walks /proc, once for all who ask at the same time. The zero value
// is ready; it is safe for concurrent use.
type Walker struct {
	// Var is the variable whose value is the marker; empty is [MarkerVar].
	// It must not change once the Walker is used.
	Var string

	walking sync.Mutex // held during a walk, so that there is one at a time

	mu   sync.Mutex
	next *walk // has not begun, so whoever asks now may share it
}

type walk struct {
	done  chan struct{}
	table table
}

// look returns the processes as they are at some moment after its call.
func (w *Walker) look() table {
	w.mu.Lock()
	c, lead := w.next, false
	if c == nil {
		c, lead = &walk{done: make(chan struct{})}, true
		w.next = c
	}
	w.mu.Unlock()
	if !lead {
		<-c.done
		return c.table
	}

	w.walking.Lock()
	w.mu.Lock()
	w.next = nil // what happens from now on may be missed
	w.mu.Unlock()
	c.table = readTable(cmp.Or(w.Var, MarkerVar))
	w.walking.Unlock()
	close(c.done)
	return c.table
}

// A process as /proc shows it.
type process struct {
	ident
	ppid, pgrp, sid int
	zombie          bool
	marker          string
	detached        bool // it left its session and its environment behind, both
}

// A table has the processes of one walk.
type table struct {
	procs    []process
	children map[int][]int // indexes into procs, by ppid
}

// members finds a tree: the group, the session, the marked, and whoever
// descends from one of these without being detached.
func (t table) members(tree Tree) []process {
	if tree == (Tree{}) {
		return nil
	}
	self := os.Getpid()
	var found []process
	seen := make(map[int]bool)
	var add func(i int)
	add = func(i int) {
		p := t.procs[i]
		if seen[i] || p.pid == self {
			return
		}
		seen[i] = true
		if !p.zombie {
			found = append(found, p)
		}
		for _, c := range t.children[p.pid] {
			if !t.procs[c].detached {
				add(c)
			}
		}
	}
	for i, p := range t.procs {
		group := tree.PGID > 1 && (p.pgrp == tree.PGID || p.sid == tree.PGID || p.pid == tree.PGID)
		if group || tree.Marker != "" && p.marker == tree.Marker {
			add(i)
		}
	}
	return found
}

func readTable(marker string) table {
	t := table{children: map[int][]int{}}
	dir, err := os.Open("/proc")
	if err != nil {
		return t // no /proc: the group is all there is
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var env []byte
	var unclear []int // indexes into t.procs
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p, ok := readStat(pid)
		if !ok {
			continue
		}
		if !p.zombie {
			env = p.look(marker, env)
			if len(env) == 0 && p.pgrp != 0 { // kernel threads have neither
				unclear = append(unclear, len(t.procs))
			}
		}
		t.children[p.ppid] = append(t.children[p.ppid], len(t.procs))
		t.procs = append(t.procs, p)
	}
	t.lookAgain(marker, unclear, env)
	return t
}

// look reads the environment of a process, with a buffer to use, and what it
// says of it.
func (p *process) look(marker string, buf []byte) (env []byte) {
	env = readAll("/proc/"+strconv.Itoa(p.pid)+"/environ", buf[:0])
	p.marker = markerIn(env, marker)
	p.detached = p.pid == p.sid && len(env) > 0 && p.marker == "" && markerIn(env, MarkerVar) == ""
	return env
}

// lookAgain looks again at processes that showed no environment. Few have
// none, and one in the middle of execve(2) shows none for some microseconds:
// who relied on one look would miss a process that runs a program after the
// other.
func (t table) lookAgain(marker string, unclear []int, buf []byte) {
	uid := os.Geteuid()
	unclear = slices.DeleteFunc(unclear, func(i int) bool {
		var st syscall.Stat_t
		err := syscall.Stat("/proc/"+strconv.Itoa(t.procs[i].pid), &st)
		return err != nil || uid != 0 && int(st.Uid) != uid // nobody shows us his
	})
	for pause := 50 * time.Microsecond; len(unclear) > 0 && pause < 2*time.Millisecond; pause *= 2 {
		time.Sleep(pause)
		unclear = slices.DeleteFunc(unclear, func(i int) bool {
			now, ok := readStat(t.procs[i].pid)
			if !ok || now.ident != t.procs[i].ident || now.zombie {
				return true
			}
			buf = t.procs[i].look(marker, buf)
			return len(buf) > 0
		})
	}
}

// markerIn finds the marker, the value of a variable, in an environment of
// entries that end in NUL.
func markerIn(env []byte, name string) string {
	for len(env) > 0 {
		entry, rest, _ := bytes.Cut(env, []byte{0})
		if v, ok := bytes.CutPrefix(entry, []byte(name)); ok && len(v) > 0 && v[0] == '=' {
			return string(v[1:])
		}
		env = rest
	}
	return ""
}

func readStat(pid int) (process, bool) {
	var buf [512]byte
	data := readAll("/proc/"+strconv.Itoa(pid)+"/stat", buf[:0])
	return parseStat(data)
}

// parseStat reads a line of /proc/PID/stat, as proc_pid_stat(5) describes it:
//
//	PID (NAME) STATE PPID PGRP SESSION … STARTTIME …
//	 1     2     3    4    5      6          22
//
// The name may have spaces and parentheses, the fields after it can't.
func parseStat(data []byte) (p process, ok bool) {
	head, _, ok1 := bytes.Cut(data, []byte(" ("))
	end := bytes.LastIndexByte(data, ')')
	if !ok1 || end < 0 {
		return process{}, false
	}
	f := bytes.Fields(data[end+1:])
	if len(f) < 20 {
		return process{}, false
	}
	var err [5]error
	p.pid, err[0] = strconv.Atoi(string(head))
	p.ppid, err[1] = strconv.Atoi(string(f[1]))
	p.pgrp, err[2] = strconv.Atoi(string(f[2]))
	p.sid, err[3] = strconv.Atoi(string(f[3]))
	p.start, err[4] = strconv.ParseUint(string(f[19]), 10, 64)
	for _, e := range err {
		if e != nil {
			return process{}, false
		}
	}
	// X is what a process is for the instant after its parent took note.
	p.zombie = f[0][0] == 'Z' || f[0][0] == 'X'
	return p, true
}

// readAll appends a file's content to buf; what can't be read is empty. It
// makes three system calls for a small file, where os.ReadFile makes six, and
// a walk reads thousands.
func readAll(path string, buf []byte) []byte {
	var fd int
	err := retry(func() (err error) {
		fd, err = syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return buf
	}
	defer syscall.Close(fd)
	for {
		if cap(buf)-len(buf) < 256 {
			buf = append(buf, make([]byte, max(4096, len(buf)))...)[:len(buf)]
		}
		var n int
		err := retry(func() (err error) {
			n, err = syscall.Read(fd, buf[len(buf):cap(buf)])
			return err
		})
		if err != nil || n <= 0 {
			return buf
		}
		buf = buf[:len(buf)+n]
	}
}

func retry(f func() error) error {
	for {
		if err := f(); err != syscall.EINTR {
			return err
		}
	}
}
