package atomicfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	hpcexec "github.com/hpcexec/hpcexec"
)

// ErrCorrupt: a file is there and isn't what its name says.
var ErrCorrupt = errors.New("not a state file of hpcexec")

// maxJSON is the most that ReadJSON reads; a state file has a few kilobytes.
const maxJSON = 16 << 20

// header is the member that every JSON file of hpcexec has.
type header struct {
	Format int `json:"format"`
}

// WriteJSON writes v as JSON, as [Write] does. v must encode to an object whose
// member "format" is 1 or more.
func WriteJSON(path string, v any, perm fs.FileMode) error {
	data, err := Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return Write(path, data, perm)
}

// CreateJSON is [Create] for JSON; see [WriteJSON].
func CreateJSON(path string, v any, perm fs.FileMode) error {
	data, err := Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return Create(path, data, perm)
}

// Marshal is the content that WriteJSON writes: indented, with a newline at the
// end. It is an error if v has no format version.
func Marshal(v any) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, err
	}
	var h header
	if err := json.Unmarshal(data, &h); err != nil || h.Format < 1 {
		return nil, fmt.Errorf("%T has no format version", v)
	}
	return append(data, '\n'), nil
}

// ReadJSON reads a file that WriteJSON wrote into v. newest is the newest
// format that the caller understands; older ones are the caller's to convert.
// Members that v doesn't have are ignored, so that a format may grow.
//
// The error matches fs.ErrNotExist where there is no file, ErrCorrupt where it
// isn't whole, and hpcexec.ErrInvalid, with a hint, where its format is newer.
func ReadJSON(path string, v any, newest int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxJSON+1))
	if err != nil {
		return err
	}
	return Unmarshal(path, data, v, newest)
}

// Unmarshal is [ReadJSON] for content that was read already; path is for the
// error text.
func Unmarshal(path string, data []byte, v any, newest int) error {
	if len(data) > maxJSON {
		return fmt.Errorf("%s: %w: more than %d MiB", path, ErrCorrupt, maxJSON>>20)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return fmt.Errorf("%s: %w: it is empty", path, ErrCorrupt)
	}
	var h header
	if err := json.Unmarshal(data, &h); err != nil {
		return fmt.Errorf("%s: %w: %w", path, ErrCorrupt, err)
	}
	switch {
	case h.Format < 1:
		return fmt.Errorf("%s: %w: no format version", path, ErrCorrupt)
	case h.Format > newest:
		return hpcexec.Errorf(hpcexec.ErrInvalid, "%s has format %d, this hpcexec reads up to %d", path, h.Format, newest).
			WithHint("a newer hpcexec wrote it: use that one")
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w: %w", path, ErrCorrupt, err)
	}
	return nil
}
