package session

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/snapshots"
)

// keep makes a snapshot of a small directory.
func keep(t *testing.T, m *Manager, image string, files ...string) snapshots.Snapshot {
	t.Helper()
	upper := t.TempDir()
	for _, f := range files {
		write(t, filepath.Join(upper, f), f)
	}
	store, err := m.Store()
	if err != nil {
		t.Fatal(err)
	}
	snap, err := store.Create(t.Context(), snapshots.CreateOptions{Upper: upper, Session: "s", Image: snapshots.Image{Path: image}})
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func TestDiff(t *testing.T) {
	m := &Manager{Dirs: Dirs{Home: t.TempDir(), Scratch: t.TempDir()}}
	image := t.TempDir()
	write(t, filepath.Join(image, "base"), "base")
	a := keep(t, m, image, "x")
	b := keep(t, m, image, "x", "y")
	other := keep(t, m, "/other.sif", "x")

	bare := &Record{Name: "bare", Options: Options{Place: "local"}}
	sess := &Record{Name: "sess", Options: Options{Place: "local", Image: image}, Base: b.ID, OverlayPath: filepath.Join(m.Dirs.Overlays(), "sess")}
	for _, rec := range []*Record{bare, sess} {
		if err := m.Dirs.save(rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.makeOverlay(sess); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(sess.OverlayPath, "layer/upper/base"), "changed")
	same := &Record{Name: a.ID, Options: Options{Place: "local", Image: image}}

	tests := []struct {
		name, id, to string
		want         []string
		wantText     string
	}{
		{"alone", a.ID, "", []string{"/x"}, ""},
		{"two", a.ID, b.ID[:8], []string{"/y"}, ""},
		{"session", a.ID, "sess", []string{"/base", "/session", "/y"}, ""},
		{"another image", a.ID, other.ID, nil, "belongs to image"},
		{"bare session", a.ID, "bare", nil, "has no overlay"},
		{"nothing", a.ID, "nope", nil, "neither a snapshot nor a session"},
		{"the image is gone", other.ID, "", []string{"/x"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := m.Diff(t.Context(), tt.id, tt.to)
			if tt.wantText != "" {
				if !errors.Is(err, hpcexec.ErrInvalid) || !strings.Contains(err.Error(), tt.wantText) || hpcexec.Hint(err) == "" {
					t.Fatalf("got %v, want ErrInvalid with %q and a hint", err, tt.wantText)
				}
				return
			}
			var got []string
			for _, ch := range c.Changes {
				got = append(got, ch.Path)
			}
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("got %q %v, want %q", got, err, tt.want)
			}
			if gone := tt.id == other.ID; gone != (c.ImageProblem != "") {
				t.Errorf("got image problem %q, want one: %v", c.ImageProblem, gone)
			}
		})
	}
	// A session may be named like a snapshot.
	if err := m.Dirs.save(same); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Diff(t.Context(), b.ID, a.ID); !errors.Is(err, hpcexec.ErrInvalid) || !strings.Contains(err.Error(), "is a session, and") {
		t.Errorf("both: got %v, want an error that says so", err)
	}
}

// TestPruneUnknown: a session that can't be read may start from any snapshot.
func TestPruneUnknown(t *testing.T) {
	m := &Manager{Dirs: Dirs{Home: t.TempDir(), Scratch: t.TempDir()}}
	a := keep(t, m, "/i.sif", "x")
	b := keep(t, m, "/i.sif", "y")
	if err := m.Dirs.save(&Record{Name: "one", Base: b.ID, Options: Options{Place: "local"}}); err != nil {
		t.Fatal(err)
	}
	broken := m.Dirs.recordPath("two")
	write(t, broken, `{"format": 99}`)
	for _, dry := range []bool{true, false} {
		if p, err := m.PruneSnapshots(t.Context(), Prune{Older: time.Nanosecond, DryRun: dry}); err == nil || len(p.Removed) != 0 {
			t.Errorf("dry run %v: got %v %v, want an error and nothing removed", dry, p, err)
		}
	}
	os.Remove(broken)
	p, err := m.PruneSnapshots(t.Context(), Prune{Older: time.Nanosecond})
	if err != nil || len(p.Removed) != 1 || p.Removed[0].ID != a.ID || len(p.Needed) != 1 || p.Needed[0].ID != b.ID {
		t.Errorf("got %v %v, want %s removed and %s needed", p, err, a.ID, b.ID)
	}
}

func TestVerifySnapshots(t *testing.T) {
	m := &Manager{Dirs: Dirs{Home: t.TempDir(), Scratch: t.TempDir()}}
	a, b := keep(t, m, "/i.sif", "x"), keep(t, m, "/i.sif", "y")
	data := filepath.Join(m.Dirs.Snapshots(), a.ID+".sqfs")
	bytes, err := os.ReadFile(data)
	if err != nil {
		t.Fatal(err)
	}
	bytes[100] ^= 1
	os.Chmod(data, 0o600)
	os.WriteFile(data, bytes, 0o600)
	got := map[string]bool{}
	err = m.VerifySnapshots(t.Context(), nil, func(id string, err error) {
		got[id] = err == nil
		if err != nil && !errors.Is(err, snapshots.ErrDamaged) {
			t.Errorf("%s: got %v, want ErrDamaged", id, err)
		}
	})
	if err != nil || len(got) != 2 || got[a.ID] || !got[b.ID] {
		t.Errorf("got %v %v, want the second to be sound, the first not", got, err)
	}
}
