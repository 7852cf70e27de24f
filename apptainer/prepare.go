package apptainer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
)

// prepare makes the directories that the container needs and checks what
// must be there, so that errors have our words. It says whether the overlay
// is a directory.
func (r *Runtime) prepare(o StartOptions) (overlayIsDir bool, err error) {
	for _, p := range append([]string{o.Overlay}, o.Layers...) {
		if p != "" {
			if err := checkOverlayPath(p); err != nil {
				return false, err
			}
		}
	}
	for _, m := range o.Mounts {
		if _, err := os.Stat(m.Src); err != nil {
			return false, pathError("bind mount", m.Src, err)
		}
	}
	for _, l := range o.Layers {
		if _, err := os.Stat(l); err != nil {
			return false, pathError("layer", l, err)
		}
	}
	if p := o.Payload; p != nil {
		if err := unix.Access(p.Program, unix.X_OK); err != nil {
			return false, pathError("payload", p.Program, err)
		}
	}
	if o.WorkDir != "" {
		if err := os.MkdirAll(o.WorkDir, 0o700); err != nil {
			return false, pathError("work directory", o.WorkDir, err)
		}
	}
	if o.Overlay == "" {
		return false, nil
	}
	st, err := os.Stat(o.Overlay)
	if err != nil {
		return false, pathError("overlay", o.Overlay, err)
	}
	if !st.IsDir() {
		// An ext3 image that can't be written to gives a read-only root.
		if err := unix.Access(o.Overlay, unix.R_OK|unix.W_OK); err != nil {
			return false, pathError("overlay", o.Overlay, err)
		}
		return false, nil
	}
	for _, name := range []string{"upper", "work"} {
		dir := filepath.Join(o.Overlay, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return true, pathError("overlay", dir, err)
		}
		// SingularityCE starts on an upper that it can't write to.
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			return true, pathError("overlay", dir, err)
		}
	}
	if o.Home != "" && o.Home != "/" {
		// What is in upper came from inside a container, links too: no path
		// of it is followed out of the directory.
		root, err := os.OpenRoot(filepath.Join(o.Overlay, "upper"))
		if err != nil {
			return true, pathError("overlay", o.Overlay, err)
		}
		defer root.Close()
		rel := strings.TrimLeft(filepath.Clean(o.Home), "/")
		if _, err := root.Lstat(rel); errors.Is(err, fs.ErrNotExist) {
			if err := root.MkdirAll(rel, 0o755); err != nil {
				return true, pathError("home in overlay", o.Overlay, err)
			}
		}
	}
	return true, nil
}

// pathError says what is wrong with a file that the caller named.
func pathError(what, path string, err error) error {
	reason := err
	var pe *fs.PathError
	if errors.As(err, &pe) {
		reason = pe.Err
	}
	return hpcexec.Errorf(hpcexec.ErrInvalid, "%s %s: %w", what, path, reason).
		WithHint("it must be there, and yours to use, on the node where the session runs")
}
