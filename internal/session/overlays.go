package session

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/overlay"
)

// An OverlayInfo is what is known of one overlay.
type OverlayInfo struct {
	Session string         `json:"session"` // empty: no session has it
	Path    string         `json:"path"`
	Kind    string         `json:"kind"`
	Created time.Time      `json:"created,omitzero"`
	Holder  *OverlayHolder `json:"holder"` // null: nobody writes
	Problem string         `json:"problem,omitempty"`

	Bytes      int64 `json:"bytes"` // on disk, as quotas count them
	Apparent   int64 `json:"apparent_bytes"`
	Inodes     int64 `json:"inodes"`
	Unreadable int64 `json:"unreadable,omitempty"` // directories that couldn't be listed
}

// An OverlayHolder is who holds an overlay's lease.
type OverlayHolder struct {
	Host  string    `json:"host"`
	PID   int       `json:"pid"`
	JobID string    `json:"job_id"`
	Since time.Time `json:"since"`
	Beat  time.Time `json:"beat"` // the last sign of life, by the holder's clock
	Dead  bool      `json:"dead"` // known to be gone; only its own host can tell
}

// Overlays lists the overlays of this user, by path, and what each holds. One
// that can't be read is among them and says why.
func (m *Manager) Overlays(ctx context.Context) ([]OverlayInfo, error) {
	owner, err := m.overlayOwners()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(m.Dirs.Overlays())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "overlays: %w", err)
	}
	list := []OverlayInfo{}
	for _, e := range entries {
		if !e.IsDir() || overlay.IsLeftover(e.Name()) {
			continue
		}
		path := filepath.Join(m.Dirs.Overlays(), e.Name())
		m.say(Progress{Stage: "usage", Text: "counting what " + path + " holds"})
		info, err := overlayInfo(ctx, path)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, fs.ErrNotExist) {
			if _, gone := os.Lstat(path); errors.Is(gone, fs.ErrNotExist) {
				continue // removed meanwhile
			}
		}
		if err != nil {
			info.Problem = err.Error()
		}
		info.Session = owner[path]
		list = append(list, info)
	}
	return list, nil
}

// overlayOwners says which session has which overlay. A record that can't be
// read is an error: its overlay would look like one that nobody has.
func (m *Manager) overlayOwners() (map[string]string, error) {
	names, err := m.Dirs.Names()
	if err != nil {
		return nil, err
	}
	owner := map[string]string{}
	for _, name := range names {
		rec, err := m.Dirs.Load(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case rec.OverlayPath != "":
			owner[rec.OverlayPath] = name
		}
	}
	return owner, nil
}

func overlayInfo(ctx context.Context, path string) (OverlayInfo, error) {
	info := OverlayInfo{Path: path}
	o, err := overlay.Open(path)
	if err != nil {
		return info, err
	}
	info.Kind, info.Created = o.Meta().Kind, o.Meta().Created
	st, err := o.Status()
	if err != nil {
		return info, err
	}
	if st.Held {
		h := st.Holder
		info.Holder = &OverlayHolder{Host: h.Host.Host, PID: h.Proc.PID, JobID: h.Job, Since: h.Since, Beat: st.At, Dead: st.Dead}
	}
	u, err := o.Usage(ctx)
	info.Bytes, info.Apparent, info.Inodes, info.Unreadable = u.Bytes, u.Apparent, u.Inodes, u.Unreadable
	return info, err
}
