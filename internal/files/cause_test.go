package files

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/hpcexec/hpcexec"
)

// A full disk at either end is known as what it is, with what to do.
func TestCauses(t *testing.T) {
	tests := []struct {
		err   error
		kind  error
		stops bool
		hint  string
	}{
		{syscall.ENOSPC, hpcexec.ErrUnavailable, true, "make room"},
		{&os.PathError{Op: "write", Path: ".f.tmp", Err: syscall.EDQUOT}, hpcexec.ErrUnavailable, true, "quota"},
		{fmt.Errorf("x: %w", syscall.EROFS), hpcexec.ErrUnavailable, true, "can be written"},
		{syscall.EACCES, hpcexec.ErrUnavailable, false, ""},
		{errors.New("odd"), hpcexec.ErrUnavailable, false, ""},
		{invalid("no").WithHint("do this"), hpcexec.ErrInvalid, false, "do this"},
	}
	for _, tt := range tests {
		p := problemOf(classFatal, "dir/f", tt.err)
		p, err := parseProblem(p.append(nil)) // as it travels
		if err != nil {
			t.Fatal(err)
		}
		got := p.error("train:")
		if !errors.Is(got, tt.kind) || p.cause.stops() != tt.stops || !strings.Contains(hpcexec.Hint(got), tt.hint) {
			t.Errorf("%v: got %v (hint %q, stops %v)", tt.err, got, hpcexec.Hint(got), p.cause.stops())
		}
		if strings.Contains(got.Error(), ".tmp") || !strings.HasPrefix(got.Error(), "dir/f: ") {
			t.Errorf("%v: got %q", tt.err, got)
		}
	}
}
