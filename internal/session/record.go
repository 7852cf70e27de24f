package session

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/apptainer"
	"github.com/hpcexec/hpcexec/internal/atomicfile"
	"github.com/hpcexec/hpcexec/internal/hostid"
)

// recordFormat is the version of sessions/NAME.json and run/NAME.json. A file
// of a later one is refused, so that an old binary never damages it.
const recordFormat = 1

// A Record is what sessions/NAME.json holds: what the session is, and the
// start that was asked for last.
type Record struct {
	Format    int       `json:"format"`
	Name      string    `json:"name"`
	Created   time.Time `json:"created"`
	Options   Options   `json:"options"`
	Ephemeral bool      `json:"ephemeral,omitempty"`

	// OverlayPath is the directory of the session's overlay, absolute;
	// empty for a bare session.
	OverlayPath string `json:"overlay_path,omitempty"`

	// Base is the snapshot under the overlay: what the session was forked
	// from, or restored to; empty for the image alone.
	Base string `json:"base,omitempty"`

	// Start is the latest start; nil before the first.
	Start *Start `json:"start,omitempty"`

	// Removing says that the session is being removed with its overlay. Who
	// finds that finishes it.
	Removing bool `json:"removing,omitempty"`
}

// A Start is one start of a session, as the client asked for it.
type Start struct {
	Token  string    `json:"token"` // names this start in the job's comment and in run/NAME.json
	At     time.Time `json:"at"`
	Exe    string    `json:"exe"` // the hpcexec that was started
	Client hostid.ID `json:"client"`

	// Of an allocation.
	JobID   string    `json:"job_id,omitempty"`
	Submit  time.Time `json:"submit,omitzero"`
	Cluster string    `json:"cluster,omitempty"`
}

// A Phase is how far a start has come.
type Phase string

// The phases of a start, in their order. A session whose latest start is
// Stopped, Failed or gone is "stopped" to its user.
const (
	Starting   Phase = "starting"
	Ready      Phase = "ready"
	Restarting Phase = "restarting" // the instance or shim died and is made anew
	Stopping   Phase = "stopping"
	Stopped    Phase = "stopped"
	Failed     Phase = "failed"
)

// A State is what run/NAME.json holds. The supervisor of the start named by
// Token writes it, and nobody else.
type State struct {
	Format int    `json:"format"`
	Token  string `json:"token"`
	Phase  Phase  `json:"phase"`

	Node  hostid.ID   `json:"node"` // where the supervisor is
	Addr  string      `json:"addr"` // what ssh calls the node
	Proc  hostid.Proc `json:"proc"` // the supervisor
	JobID string      `json:"job_id,omitempty"`
	At    time.Time   `json:"at"` // when the phase began

	ShimSocket    string `json:"shim_socket,omitempty"`    // on Node
	ControlSocket string `json:"control_socket,omitempty"` // the supervisor's own, on Node

	// Of a session with an image: what its node runs.
	Runtime  *apptainer.Runtime `json:"runtime,omitempty"`
	Instance string             `json:"instance,omitempty"`

	Shim hostid.Proc `json:"shim,omitzero"` // of a bare session

	Reason string     `json:"reason,omitempty"` // why it stopped, in words
	Error  *ErrorText `json:"error,omitempty"`
}

// ErrorText is an error of the contract as it stands in files and messages.
type ErrorText struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
	Hint string `json:"hint,omitempty"`
}

// errorText writes an error down; Err reads it back.
func errorText(err error) *ErrorText {
	if err == nil {
		return nil
	}
	return &ErrorText{Kind: hpcexec.KindName(err), Text: err.Error(), Hint: hpcexec.Hint(err)}
}

// Err is the error that was written down; nil for a nil ErrorText.
func (e *ErrorText) Err() error {
	if e == nil {
		return nil
	}
	kind := hpcexec.KindByName(e.Kind)
	if kind == nil {
		return errors.New(e.Text)
	}
	return &hpcexec.Error{Kind: kind, Text: e.Text, Hint: e.Hint}
}

func (d Dirs) recordPath(name string) string { return filepath.Join(d.Sessions(), name+".json") }
func (d Dirs) statePath(name string) string  { return filepath.Join(d.Run(), "session-"+name+".json") }
func (d Dirs) lockPath(name string) string   { return filepath.Join(d.Run(), "session-"+name+".lock") }

// Load reads the record of a session. A session that isn't there is an error
// that matches fs.ErrNotExist and hpcexec.ErrInvalid.
func (d Dirs) Load(name string) (*Record, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	var r Record
	if err := readJSON(d.recordPath(name), &r); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "%w", noSession(name)).
				WithHint("`hpcexec session ls` lists them")
		}
		return nil, err
	}
	if r.Format != recordFormat {
		return nil, tooNew(d.recordPath(name), r.Format)
	}
	if r.Name != name {
		return nil, damaged(d.recordPath(name), fmt.Errorf("it is of session %q", r.Name))
	}
	return &r, nil
}

// noSession is the error of a session that isn't there. It matches
// fs.ErrNotExist.
type noSession string

func (n noSession) Error() string        { return fmt.Sprintf("no session %q", string(n)) }
func (n noSession) Is(target error) bool { return target == fs.ErrNotExist }

// save writes a record, durably and in one step.
func (d Dirs) save(r *Record) error {
	r.Format = recordFormat
	if err := os.MkdirAll(d.Sessions(), 0o700); err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "session %q: %w", r.Name, err)
	}
	if err := writeJSON(d.recordPath(r.Name), r); err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "session %q: %w", r.Name, err).
			WithHint("is the file system of %s full or over quota?", d.Home)
	}
	return nil
}

// Names lists the sessions there are, sorted.
func (d Dirs) Names() ([]string, error) {
	entries, err := os.ReadDir(d.Sessions())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "sessions: %w", err)
	}
	var names []string
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if ok && CheckName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// loadState reads what became of a session's latest start; nil where none was
// ever written.
func (d Dirs) loadState(name string) (*State, error) {
	var s State
	switch err := readJSON(d.statePath(name), &s); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case s.Format != recordFormat:
		return nil, tooNew(d.statePath(name), s.Format)
	case s.Token == "" || s.Addr == "" || s.Proc.PID <= 0:
		return nil, damaged(d.statePath(name), errors.New("it doesn't say which process it is of"))
	}
	return &s, nil
}

func (d Dirs) saveState(name string, s *State) error {
	s.Format = recordFormat
	s.At = time.Now().UTC()
	if err := os.MkdirAll(d.Run(), 0o700); err != nil {
		return err
	}
	return writeJSON(d.statePath(name), s)
}

// maxJSON bounds the files that readJSON takes.
const maxJSON = 1 << 20

func readJSON(path string, v any) error {
	// Whatever stands in the file's place must not make this wait.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return err
	case err != nil:
		return damaged(path, err)
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Size() > maxJSON {
		return damaged(path, cmp.Or(err, errors.New("it is not a file of ours")))
	}
	b, err := io.ReadAll(io.LimitReader(f, maxJSON))
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return damaged(path, err)
	}
	return nil
}

func damaged(path string, err error) error {
	return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s is damaged: %w", path, err).
		WithHint("move the file away; the session's overlay is not touched by that")
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(b, '\n'), 0o600)
}

func tooNew(path string, format int) error {
	if format < 1 {
		return damaged(path, errors.New("it has no format"))
	}
	return hpcexec.Errorf(hpcexec.ErrInvalid, "%s has format %d, this hpcexec knows %d", path, format, recordFormat).
		WithHint("use the hpcexec that wrote it, or a newer one")
}
