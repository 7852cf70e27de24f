package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/hpcexec/hpcexec"
)

// A cause is what is behind a problem, as far as it matters to what is to be
// done.
type cause byte

const (
	causeOther cause = iota
	causeInvalid
	causeSpace
	causeQuota
	causeReadOnly
)

// causeOf finds the cause of an error.
func causeOf(err error) cause {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return causeSpace
	case errors.Is(err, syscall.EDQUOT):
		return causeQuota
	case errors.Is(err, syscall.EROFS):
		return causeReadOnly
	case errors.Is(err, hpcexec.ErrInvalid):
		return causeInvalid
	}
	return causeOther
}

// stops says whether the same would happen to every other file.
func (c cause) stops() bool { return c == causeSpace || c == causeQuota || c == causeReadOnly }

// problemOf makes a problem of an error.
func problemOf(class byte, path string, err error) problem {
	return problem{class: class, cause: causeOf(err), path: path, text: reason(err), hint: hpcexec.Hint(err)}
}

// reason is an error without the names in it, which may be temporary ones.
func reason(err error) string {
	var errno syscall.Errno
	var typed *hpcexec.Error
	if !errors.As(err, &typed) && errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// error is the problem as an error. name is how people know the end of the
// copy where it is.
func (p *problem) error(name string) error {
	where := name
	if p.path != "" {
		where = p.path
	}
	e := hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: %s", where, p.text)
	switch p.cause {
	case causeInvalid:
		e = hpcexec.Errorf(hpcexec.ErrInvalid, "%s: %s", where, p.text)
	case causeSpace:
		e = e.WithHint("make room there, then run the same command again: it goes on where it was")
	case causeQuota:
		e = e.WithHint("your quota there is used up: remove files or ask for more, then run the same command again")
	case causeReadOnly:
		e = e.WithHint("copy to a directory that can be written")
	}
	if p.hint != "" {
		e = e.WithHint("%s", p.hint)
	}
	return e
}

// lost is the error of a stream that has ended before the copy.
func lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) || errors.Is(err, fs.ErrClosed) {
		err = errCut
	}
	return hpcexec.Errorf(hpcexec.ErrUnavailable, "%w", err)
}

var errCut = errors.New("the connection was lost during the copy")

func invalid(format string, args ...any) *hpcexec.Error {
	return hpcexec.Errorf(hpcexec.ErrInvalid, format, args...)
}

var errChanged = fmt.Errorf("it became shorter while it was copied")
