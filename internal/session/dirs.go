package session

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
)

// Dirs are the two places where hpcexec keeps state, both absolute.
type Dirs struct {
	Home    string // small files, on the home that all nodes share
	Scratch string // overlays, snapshots and images
}

// FindDirs is LookDirs, and makes Home where it is missing.
func FindDirs(getenv func(string) string) (Dirs, error) {
	d, err := LookDirs(getenv)
	if err != nil {
		return d, err
	}
	if err := os.MkdirAll(d.Home, 0o700); err != nil {
		return d, hpcexec.Errorf(hpcexec.ErrUnavailable, "state directory: %w", err).
			WithHint("set HPCEXEC_HOME to a directory that you can write")
	}
	return d, nil
}

// LookDirs finds the directories of a user from an environment: Home is
// HPCEXEC_HOME, else XDG_STATE_HOME/hpcexec, else ~/.local/state/hpcexec;
// Scratch is HPCEXEC_SCRATCH, else SCRATCH/hpcexec, else /scratch/USER/hpcexec
// where that is writable, else Home. It makes nothing.
func LookDirs(getenv func(string) string) (Dirs, error) {
	var d Dirs
	home := getenv("HOME")
	switch {
	case getenv("HPCEXEC_HOME") != "":
		d.Home = getenv("HPCEXEC_HOME")
	case getenv("XDG_STATE_HOME") != "":
		d.Home = filepath.Join(getenv("XDG_STATE_HOME"), "hpcexec")
	case home != "":
		d.Home = filepath.Join(home, ".local", "state", "hpcexec")
	default:
		return d, hpcexec.Errorf(hpcexec.ErrInvalid, "neither HOME nor HPCEXEC_HOME is set").
			WithHint("set HPCEXEC_HOME to a directory on a file system that all nodes share")
	}
	user := getenv("USER")
	switch {
	case getenv("HPCEXEC_SCRATCH") != "":
		d.Scratch = getenv("HPCEXEC_SCRATCH")
	case getenv("SCRATCH") != "":
		d.Scratch = filepath.Join(getenv("SCRATCH"), "hpcexec")
	case user != "" && writable(filepath.Join("/scratch", user)):
		d.Scratch = filepath.Join("/scratch", user, "hpcexec")
	default:
		d.Scratch = d.Home
	}
	for _, p := range []*string{&d.Home, &d.Scratch} {
		if !filepath.IsAbs(*p) {
			return d, hpcexec.Errorf(hpcexec.ErrInvalid, "%s is not an absolute path", *p).
				WithHint("HPCEXEC_HOME and HPCEXEC_SCRATCH must be absolute: other nodes use them too")
		}
		*p = filepath.Clean(*p)
	}
	return d, nil
}

// Overlays is the directory of the overlays, one directory each.
func (d Dirs) Overlays() string { return filepath.Join(d.Scratch, "overlays") }

// Snapshots is the root of the snapshot store.
func (d Dirs) Snapshots() string { return filepath.Join(d.Scratch, "snapshots") }

// Sessions has the records of the sessions.
func (d Dirs) Sessions() string { return filepath.Join(d.Home, "sessions") }

// Run has what became of each session's latest start, and the pointers to
// the nodes' runtime directories.
func (d Dirs) Run() string { return filepath.Join(d.Home, "run") }

// Logs has the supervisors' logs.
func (d Dirs) Logs() string { return filepath.Join(d.Home, "logs") }

// writable says whether a directory is there and can be written: by its mode,
// since a probe file would be one more thing to leave behind.
func writable(dir string) bool {
	fi, err := os.Stat(dir)
	return err == nil && fi.IsDir() && unix.Access(dir, unix.W_OK|unix.X_OK) == nil
}
