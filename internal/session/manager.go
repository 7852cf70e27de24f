package session

import (
	"sync"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/slurm"
)

// A Manager is the client's side of sessions: it makes, finds, starts, stops
// and removes them. It is safe for concurrent use, by several processes and on
// several nodes.
type Manager struct {
	Dirs Dirs

	// Exe is the hpcexec binary, absolute, that masters and supervisors are
	// started from. It must be there under the same path on every node.
	Exe string

	// Progress is called with what a start waits for, whenever that
	// changes. It may be nil.
	Progress func(Progress)

	once   sync.Once
	client *slurm.Client
}

// Progress is what a start waits for.
type Progress struct {
	Session string
	Stage   string // "submitted", "pending", "starting", "ready", "stopping", "snapshot", …
	Text    string // one line for people: "job 42 is pending: waiting for GPUs (expected at 14:05)"
	JobID   string
	Done    int64 // of work that can be counted; 0 else
	Total   int64
}

// A Want names a session and says what it should be.
type Want struct {
	// Name of the session; empty: a session of its own, removed after.
	Name string

	// Options that were given; those left empty are the session's, or the
	// defaults.
	Options Options

	// Wait is how long a start may take, queueing included; 0 is without
	// limit. After it the error is a *PendingError.
	Wait time.Duration
}

// A PendingError says that a session didn't start within Want.Wait. The job
// stays in the queue; a later use of the session goes on waiting for it.
type PendingError struct {
	Session string
	JobID   string
	Reason  string // in words
}

func (e *PendingError) Error() string {
	return "session " + e.Session + " is still pending: " + e.Reason
}

// Is makes it an error of kind hpcexec.ErrUnavailable.
func (e *PendingError) Is(target error) bool { return target == hpcexec.ErrUnavailable }

// Info is what is known of a session; `session show --json` prints it.
type Info struct {
	Name      string    `json:"name"`
	State     string    `json:"state"` // "new", "pending", "starting", "ready", "stopping", "stopped", "failed", "unreachable"
	Reason    string    `json:"reason,omitempty"`
	Place     string    `json:"place"`
	Image     string    `json:"image"`
	Overlay   *Layer    `json:"overlay"` // null for a bare session
	JobID     string    `json:"job_id"`
	Node      string    `json:"node"`
	Control   string    `json:"control_path"` // the socket for ssh -S; stable
	Created   time.Time `json:"created"`
	Started   time.Time `json:"started,omitzero"`
	Base      string    `json:"base,omitempty"` // the snapshot under the overlay
	Ephemeral bool      `json:"ephemeral,omitempty"`
	Options   Options   `json:"options"`
}

// Layer is where a session's writable layer is.
type Layer struct {
	Kind string `json:"kind"`
	Path string `json:"path"`
}
