package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	hpcexec "github.com/hpcexec/hpcexec"
)

var (
	// ErrNotWritable: the file system, or its owner, doesn't let us write.
	ErrNotWritable = errors.New("not writable")

	// ErrFull: no space or no inodes left, on the disk or in the quota.
	ErrFull = errors.New("no space left")

	// ErrInUse: somebody else holds the lease. An [InUseError] says who.
	ErrInUse = errors.New("overlay in use")
)

// An InUseError says who holds an overlay. It matches ErrInUse, and, as
// Acquire returns it, hpcexec.ErrUnavailable.
type InUseError struct {
	Dir    string
	Holder Holder

	// Orphans: the holder itself is dead, and processes that it started and
	// that write to the overlay are not. They are in Holder.Helpers.
	Orphans bool

	// Why says what keeps the lease from being broken.
	Why string
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("overlay %s is in use by %s: %s", e.Dir, e.Holder, e.Why)
}

// Unwrap makes errors.Is match ErrInUse.
func (e *InUseError) Unwrap() error { return ErrInUse }

// inUse makes the error that Acquire returns.
func inUse(e *InUseError) error {
	h := e.Holder
	hint := "stop it first"
	switch {
	case e.Orphans:
		hint = fmt.Sprintf("end the processes %s on %s first", procs(h), h.Host.Host)
	case h.Session != "":
		hint = fmt.Sprintf("hpcexec session stop %s, or wait until it has ended", h.Session)
	case h.Job != "":
		hint = fmt.Sprintf("wait until job %s has ended", h.Job)
	default:
		hint = fmt.Sprintf("end process %d on %s first", h.Proc.PID, h.Host.Host)
	}
	return &hpcexec.Error{Kind: hpcexec.ErrUnavailable, Text: e.Error(), Hint: hint, Err: e}
}

// String names the holder for a person: "session train on gpu1, job 17, pid
// 4711, since 2026-01-02 15:04:05 UTC".
func (h Holder) String() string {
	var b strings.Builder
	if h.Session != "" {
		fmt.Fprintf(&b, "session %s on ", h.Session)
	}
	b.WriteString(h.Host.Host)
	if h.Job != "" {
		fmt.Fprintf(&b, ", job %s", h.Job)
	}
	fmt.Fprintf(&b, ", pid %d, since %s", h.Proc.PID, h.Since.UTC().Format("2006-01-02 15:04:05 MST"))
	return b.String()
}

func procs(h Holder) string {
	var list []string
	for _, p := range h.Helpers {
		list = append(list, fmt.Sprint(p.PID))
	}
	return strings.Join(list, ", ")
}

func existsError(dir string) error {
	return hpcexec.Errorf(hpcexec.ErrInvalid, "overlay %s: %w", dir, fs.ErrExist).
		WithHint("choose another name, or remove that one")
}

// diskError gives an error of the file system its class and a hint.
func diskError(dir string, err error) error {
	var known *hpcexec.Error
	if errors.As(err, &known) {
		return err
	}
	class, hint := error(nil), ""
	switch {
	case errors.Is(err, syscall.ENOSPC):
		class, hint = ErrFull, "the file system has no space or no inodes left: delete something, or choose another scratch directory by HPCEXEC_SCRATCH"
	case errors.Is(err, syscall.EDQUOT):
		class, hint = ErrFull, "your quota of space or of files is used up: delete something, or choose another scratch directory by HPCEXEC_SCRATCH"
	case errors.Is(err, syscall.EROFS):
		class, hint = ErrNotWritable, "the file system is read-only here: choose another scratch directory by HPCEXEC_SCRATCH"
	case errors.Is(err, fs.ErrPermission):
		class, hint = ErrNotWritable, "choose a scratch directory of your own by HPCEXEC_SCRATCH"
	case errors.Is(err, errors.ErrUnsupported):
		class, hint = ErrNotWritable, "the file system lacks what an overlay needs: choose another scratch directory by HPCEXEC_SCRATCH"
	case errors.Is(err, syscall.ESTALE):
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "overlay %s: %w", dir, err).
			WithHint("the file server has lost track of this directory: try again, then ask the administrators to remount it on this node")
	default:
		return fmt.Errorf("overlay %s: %w", dir, err)
	}
	return hpcexec.Errorf(hpcexec.ErrUnavailable, "overlay %s: %w", dir, &classError{class, err}).WithHint("%s", hint)
}

// A classError adds a class to an error without a word about it in the text,
// since the system's own text says it already.
type classError struct{ class, err error }

func (e *classError) Error() string   { return e.err.Error() }
func (e *classError) Unwrap() []error { return []error{e.class, e.err} }
