// Package policy reads the two files that people set hpcexec up with:
//
//	~/.config/hpcexec/config.toml   the user's defaults for new sessions
//	/etc/hpcexec/policy.toml        the site's limits; they only tighten
//
// Both are TOML and read strictly: a key that isn't known is an error that
// names the line, since a limit that is spelt wrong would be none. The policy
// is obeyed by hpcexec; it is no wall against a user who starts programs
// without it, and says so in docs/architecture.md.
package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/hpcexec/hpcexec"
)

// decode reads a file strictly into v. A missing file is fs.ErrNotExist.
func decode(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "%w", err)
	}
	err = toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields().Decode(v)
	var (
		strict *toml.StrictMissingError
		syntax *toml.DecodeError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &strict):
		lines := make([]string, len(strict.Errors))
		for i := range strict.Errors {
			row, _ := strict.Errors[i].Position()
			lines[i] = fmt.Sprintf("%s:%d: unknown key %q", path, row, strings.Join(strict.Errors[i].Key(), "."))
		}
		return hpcexec.Errorf(hpcexec.ErrInvalid, "%s", strings.Join(lines, "\n"))
	case errors.As(err, &syntax):
		row, column := syntax.Position()
		return hpcexec.Errorf(hpcexec.ErrInvalid, "%s:%d:%d: %s", path, row, column, strings.TrimPrefix(syntax.Error(), "toml: "))
	default:
		return hpcexec.Errorf(hpcexec.ErrInvalid, "%s: %s", path, strings.TrimPrefix(err.Error(), "toml: "))
	}
}

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// Duration is a time.Duration that is text such as "90m" in the files. Minus
// one, written "never", stands for no end.
type Duration time.Duration

// UnmarshalText reads a duration above 0, or "never".
func (d *Duration) UnmarshalText(b []byte) error {
	if string(b) == "never" {
		*d = -1
		return nil
	}
	v, err := time.ParseDuration(string(b))
	if err == nil && v <= 0 {
		err = errors.New("it is not above 0")
	}
	if err != nil {
		return fmt.Errorf("duration %q: write it as 90s, 5m or 1h30m", b)
	}
	*d = Duration(v)
	return nil
}
