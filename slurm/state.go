package slurm

import (
	"strings"
	"time"
)

// A State is a job's state in Slurm's words. Words that aren't among the
// constants are kept as they came; they neither run nor have ended.
type State string

// The states of squeue and sacct, and two of our own.
const (
	Pending     State = "PENDING"
	Configuring State = "CONFIGURING" // has its nodes, which are being made ready
	Running     State = "RUNNING"
	Suspended   State = "SUSPENDED"
	Stopped     State = "STOPPED"
	Completing  State = "COMPLETING" // over, its nodes are being cleaned up
	Requeued    State = "REQUEUED"
	RequeueHold State = "REQUEUE_HOLD"
	SpecialExit State = "SPECIAL_EXIT"

	Completed   State = "COMPLETED"
	Cancelled   State = "CANCELLED"
	Failed      State = "FAILED"
	Timeout     State = "TIMEOUT"
	NodeFail    State = "NODE_FAIL"
	Preempted   State = "PREEMPTED"
	BootFail    State = "BOOT_FAIL"
	Deadline    State = "DEADLINE"
	OutOfMemory State = "OUT_OF_MEMORY"
	Revoked     State = "REVOKED"

	// Unknown: the controller couldn't be asked. It says nothing of the job.
	Unknown State = "UNKNOWN"

	// Gone: the controller answered that it knows no such job, and there is
	// no record of it in the accounting: it has ended, how isn't known.
	Gone State = "GONE"
)

// ParseState reads a state as squeue, scontrol and sacct print it. sacct adds
// who cancelled a job ("CANCELLED by 2001") and may add a "+".
func ParseState(s string) State {
	word, _, _ := strings.Cut(strings.TrimSpace(s), " ")
	word = strings.ToUpper(strings.TrimRight(word, "+"))
	if word == "" {
		return Unknown
	}
	return State(word)
}

// Ended says that the job is over for good and holds nothing any more.
// COMPLETING isn't: its nodes aren't free yet.
func (s State) Ended() bool {
	switch s {
	case Completed, Cancelled, Failed, Timeout, NodeFail, Preempted, BootFail, Deadline, OutOfMemory, Revoked, Gone:
		return true
	}
	return false
}

// Waiting says that the job is in the queue and may start later.
func (s State) Waiting() bool {
	switch s {
	case Pending, Configuring, Requeued, RequeueHold, SpecialExit, "REQUEUE_FED", "RESV_DEL_HOLD":
		return true
	}
	return false
}

// Words says what a state means, as a phrase that follows "the job".
func (s State) Words() string {
	switch s {
	case Pending:
		return "waits in the queue"
	case Configuring:
		return "has its nodes, which are being made ready"
	case Running:
		return "runs"
	case Suspended:
		return "is suspended: another job has its nodes for now"
	case Stopped:
		return "is stopped by a signal"
	case Completing:
		return "is over, its nodes are being cleaned up"
	case Requeued, RequeueHold, SpecialExit:
		return "was put back in the queue"
	case Completed:
		return "ended"
	case Cancelled:
		return "was cancelled"
	case Failed:
		return "failed"
	case Timeout:
		return "reached its time limit"
	case NodeFail:
		return "ended because a node failed"
	case Preempted:
		return "was ended in favour of a job of higher priority"
	case BootFail:
		return "ended because its nodes couldn't be started"
	case Deadline:
		return "reached its deadline"
	case OutOfMemory:
		return "ran out of memory"
	case Revoked:
		return "was revoked: it runs on another cluster of the federation"
	case Unknown:
		return "may be in any state: the controller can't be asked"
	case Gone:
		return "has ended; the controller knows nothing of it any more"
	}
	return "is in state " + string(s)
}

// A Status is what is known of a job at one moment.
type Status struct {
	ID    JobID
	Raw   uint64 // the number of its own that a task or component has
	State State

	// Reason is Slurm's word for why it waits, or how it ended; Why is what
	// that means.
	Reason string
	Why    Explanation

	Name, Comment, User     string
	Account, Partition, QOS string
	Token                   string   // of a job of ours; else empty
	Nodes                   []string // that it has or had

	Submitted time.Time
	Started   time.Time // zero while it waits
	Expected  time.Time // while it waits: when the controller means to start it
	Ended     time.Time // zero until then
	EndsBy    time.Time // while it runs: when its time limit ends it
	Limit     time.Duration

	// ExitCode and Signal are those of the batch script; ExitKnown says
	// whether they are known.
	ExitCode, Signal int
	ExitKnown        bool

	GRES string    // asked for on each node, as squeue shows it
	From string    // the program that knew: "squeue", "sacct", "scontrol"; empty: none
	AsOf time.Time // when it was asked, by our clock
}

// Ours says whether the job carries the tag of hpcexec.
func (s Status) Ours() bool { return s.Token != "" }

// setTimes gives Slurm's start and end their meanings, which depend on the
// state: of a pending job they are a forecast.
func (s *Status) setTimes(start, end time.Time) {
	switch {
	case s.State.Waiting():
		s.Expected = start
	case s.State.Ended():
		s.Started, s.Ended = start, end
	case s.State == Completing:
		s.Started = start
	default:
		s.Started, s.EndsBy = start, end
	}
}
