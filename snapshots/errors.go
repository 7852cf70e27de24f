package snapshots

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	hpcexec "github.com/hpcexec/hpcexec"
)

// storeError gives an error of the store's file system its kind and a hint.
func storeError(root string, err error) error {
	var known *hpcexec.Error
	if errors.As(err, &known) {
		return err
	}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return full(root, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ESTALE):
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "snapshot store %s: %w", root, err).
			WithHint("the store must be a directory of yours that you can write to")
	}
	return fmt.Errorf("snapshot store %s: %w", root, err)
}

func full(root string, err error) error {
	return hpcexec.Errorf(hpcexec.ErrUnavailable, "snapshot store %s: %w", root, &classError{ErrFull, err}).
		WithHint("delete something, or remove old snapshots: hpcexec snapshot prune")
}

// A classError adds a class to an error without a word about it in the text,
// since the system's own text says it already.
type classError struct{ class, err error }

func (e *classError) Error() string   { return e.err.Error() }
func (e *classError) Unwrap() []error { return []error{e.class, e.err} }
