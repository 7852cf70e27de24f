package hpcexec

import (
	"errors"
	"fmt"
)

// The kinds of failure, each with what to do about it. An error of hpcexec
// matches exactly one of them with errors.Is, unless it is the caller's own
// cancellation.
var (
	// ErrInvalid: the request is wrong and nothing ran. Change it.
	ErrInvalid = errors.New("invalid request")

	// ErrUnavailable: the place can't be reached or can't run this now, and
	// nothing ran. It is safe to retry.
	ErrUnavailable = errors.New("place not available")

	// ErrNeedsLogin: a password or a second factor is asked for. A person
	// must log in; it is never retried.
	ErrNeedsLogin = errors.New("login needed")

	// ErrAllocationGone: the Slurm job that was the place has ended.
	ErrAllocationGone = errors.New("allocation gone")

	// ErrUnknownEnd: the command started and its end is not known. It must
	// not be repeated blindly.
	ErrUnknownEnd = errors.New("end of the command is not known")

	// ErrDenied: a policy forbids it.
	ErrDenied = errors.New("denied by policy")
)

// kinds has the names that the JSON contract uses in error.type.
var kinds = []struct {
	err  error
	name string
}{
	{ErrInvalid, "invalid"},
	{ErrUnavailable, "unavailable"},
	{ErrNeedsLogin, "needs_login"},
	{ErrAllocationGone, "allocation_gone"},
	{ErrUnknownEnd, "unknown_end"},
	{ErrDenied, "denied"},
}

// KindName is the name of an error's kind in the JSON contract: "invalid",
// "unavailable", "needs_login", "allocation_gone", "unknown_end", "denied", or
// "internal" for an error that has none of these kinds.
func KindName(err error) string {
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.name
		}
	}
	return "internal"
}

// KindByName is the kind with a name that KindName gives, or nil.
func KindByName(name string) error {
	for _, k := range kinds {
		if k.name == name {
			return k.err
		}
	}
	return nil
}

// An Error is a failure of a known kind, with its subject and what to do.
type Error struct {
	Kind error  // one of the Err variables of this package
	Text string // the whole text, cause included: "image /x.sif: no such file"
	Hint string // what to type or whom to ask; may be empty
	Err  error  // the cause, for errors.Is and errors.As; may be nil
}

func (e *Error) Error() string { return e.Text }

// Unwrap makes errors.Is match both the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// Errorf makes an Error of a kind. The verb %w wraps a cause, as with
// fmt.Errorf.
func Errorf(kind error, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Text: err.Error(), Err: errors.Unwrap(err)}
}

// WithHint returns e with a hint: what to type, or whom to ask.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// Hint is the hint of the outermost Error in err's chain that has one.
func Hint(err error) string {
	var e *Error
	for errors.As(err, &e) {
		if e.Hint != "" {
			return e.Hint
		}
		if e.Err == nil {
			return ""
		}
		err = e.Err
	}
	return ""
}
