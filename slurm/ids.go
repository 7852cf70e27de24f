package slurm

import (
	"strconv"
	"strings"

	"github.com/hpcexec/hpcexec"
)

// A JobID names a job, or a part of one, in any form that Slurm's programs
// print. It is comparable, so it can be a map key.
//
//	105            a job
//	105;testbed    a job on a cluster with a name (sbatch -M)
//	62_0           task 0 of array 62
//	62_[1-5%2]     tasks 1 to 5 of array 62 that wait, two at a time
//	46+1           component 1 of the heterogeneous job 46
//	180.0          step 0 of job 180; also 180.batch, 62_0.extern, 46+1.0
type JobID struct {
	// Job is the number before everything else. The task of an array has
	// another number of its own, which squeue's %A shows.
	Job uint64

	Part  Part   // what Index and Tasks mean
	Index uint32 // the task of an array or the component of a het job
	Tasks string // the tasks that wait, as Slurm wrote them, without brackets: "1-5%2"

	Step    string // "0", "batch", "extern", "interactive"; empty: the whole job
	Cluster string
}

// A Part says which part of a job a JobID names.
type Part uint8

const (
	Whole     Part = iota // the whole job
	Task                  // one task of an array
	TaskSet               // several tasks of an array that wait
	Component             // one component of a het job
)

// ParseJobID reads a job id in any of its forms.
func ParseJobID(s string) (JobID, error) {
	bad := func() (JobID, error) {
		return JobID{}, hpcexec.Errorf(hpcexec.ErrInvalid, "job id %q is not like 105, 62_0, 62_[1-5], 46+1 or 105.0", s)
	}
	var id JobID
	rest, cluster, hasCluster := strings.Cut(s, ";")
	if hasCluster && !plainWord(cluster) {
		return bad()
	}
	id.Cluster = cluster

	// No step where a task set ends it: the dots in its brackets say "cut short".
	if i := strings.LastIndexByte(rest, '.'); i >= 0 && !strings.HasSuffix(rest, "]") {
		if id.Step = rest[i+1:]; !plainWord(id.Step) {
			return bad()
		}
		rest = rest[:i]
	}
	number, part := rest, ""
	if i := strings.IndexAny(rest, "_+"); i >= 0 {
		number, part = rest[:i], rest[i:]
	}
	var ok bool
	if id.Job, ok = number64(number); !ok || id.Job == 0 {
		return bad()
	}
	switch {
	case part == "":
	case strings.HasPrefix(part, "_[") && strings.HasSuffix(part, "]") && len(part) > 3:
		id.Part, id.Tasks = TaskSet, part[2:len(part)-1]
		for _, c := range id.Tasks {
			// "..." stands at the end of a list that squeue cut short.
			if (c < '0' || c > '9') && !strings.ContainsRune(",-%:.", c) {
				return bad()
			}
		}
	default:
		id.Part = Task
		if part[0] == '+' {
			id.Part = Component
		}
		n, ok := number64(part[1:])
		if !ok || n > 1<<32-1 {
			return bad()
		}
		id.Index = uint32(n)
	}
	return id, nil
}

// number64 reads a number written the one way that Slurm writes it: digits
// without a sign or leading zeros, so that a JobID prints as it was read.
func number64(s string) (uint64, bool) {
	if s == "" || len(s) > 1 && s[0] == '0' || s[0] < '0' || s[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}

func plainWord(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-') {
			return false
		}
	}
	return s != ""
}

// String gives the id as Slurm's programs take it, with the cluster's name.
func (id JobID) String() string {
	s := id.local()
	if id.Cluster != "" {
		s += ";" + id.Cluster
	}
	return s
}

// local is the id without the cluster's name, which scancel and srun don't take.
func (id JobID) local() string {
	if id.Job == 0 {
		return ""
	}
	s := strconv.FormatUint(id.Job, 10)
	switch id.Part {
	case Task:
		s += "_" + strconv.FormatUint(uint64(id.Index), 10)
	case TaskSet:
		s += "_[" + id.Tasks + "]"
	case Component:
		s += "+" + strconv.FormatUint(uint64(id.Index), 10)
	}
	if id.Step != "" {
		s += "." + id.Step
	}
	return s
}

// IsZero says that id names no job.
func (id JobID) IsZero() bool { return id.Job == 0 }

// Whole is the id of the whole job: without task, component, step and cluster.
func (id JobID) Whole() JobID { return JobID{Job: id.Job} }

// MarshalText and UnmarshalText make an id a string in JSON.
func (id JobID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what MarshalText writes; empty is the zero JobID.
func (id *JobID) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*id = JobID{}
		return nil
	}
	v, err := ParseJobID(string(b))
	if err != nil {
		return err
	}
	*id = v
	return nil
}

// Each gives the numbers of the tasks that a TaskSet names, in order, and how
// many may run at a time (0: all). ok is false where Slurm cut the list short,
// or where it has more than a million tasks.
func (id JobID) Each() (tasks []uint32, limit int, ok bool) {
	list, lim, has := strings.Cut(id.Tasks, "%")
	if has {
		n, good := number64(lim)
		if !good || n > 1<<20 {
			return nil, 0, false
		}
		limit = int(n)
	}
	for _, r := range strings.Split(list, ",") {
		r, step, hasStep := strings.Cut(r, ":")
		by := uint64(1)
		if hasStep {
			var good bool
			if by, good = number64(step); !good || by == 0 {
				return nil, 0, false
			}
		}
		first, last, isRange := strings.Cut(r, "-")
		if !isRange {
			last = first
		}
		a, ok1 := number64(first)
		b, ok2 := number64(last)
		if !ok1 || !ok2 || b < a || b > 1<<32-1 || (b-a)/by+uint64(len(tasks)) >= 1<<20 {
			return nil, 0, false
		}
		for ; a <= b; a += by {
			tasks = append(tasks, uint32(a))
		}
	}
	return tasks, limit, len(tasks) > 0
}
