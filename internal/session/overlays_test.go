package session

import (
	"path/filepath"
	"testing"

	"github.com/hpcexec/hpcexec/overlay"
)

func TestOverlays(t *testing.T) {
	m := &Manager{Dirs: Dirs{Home: t.TempDir(), Scratch: t.TempDir()}}
	if list, err := m.Overlays(t.Context()); err != nil || len(list) != 0 {
		t.Fatalf("before the first: got %v %v, want none", list, err)
	}
	rec := &Record{Name: "mine", Options: Options{Place: "local", Image: "/i.sif"}, OverlayPath: filepath.Join(m.Dirs.Overlays(), "mine@1")}
	if err := m.makeOverlay(rec); err != nil {
		t.Fatal(err)
	}
	if err := m.Dirs.save(rec); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(rec.OverlayPath, "layer/upper/f"), string(make([]byte, 10000)))
	write(t, filepath.Join(m.Dirs.Overlays(), "zbroken", "overlay.json"), "{")
	write(t, filepath.Join(m.Dirs.Overlays(), ".trash.x.gone", "f"), "")
	o, err := overlay.Open(rec.OverlayPath)
	if err != nil {
		t.Fatal(err)
	}
	lease, err := o.Acquire(t.Context(), overlay.AcquireOptions{Session: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	list, err := m.Overlays(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("got %v %v, want two", list, err)
	}
	got := list[0]
	if got.Session != "mine" || got.Path != rec.OverlayPath || got.Kind != overlay.KindDir || got.Apparent < 10000 || got.Bytes < 10000 || got.Inodes < 8 ||
		got.Holder == nil || got.Holder.PID == 0 || got.Holder.Dead || got.Holder.Beat.IsZero() || got.Problem != "" {
		t.Errorf("got %+v %+v, want every member and this process as the holder", got, got.Holder)
	}
	if list[1].Problem == "" || list[1].Session != "" {
		t.Errorf("got %+v, want its problem and no session", list[1])
	}
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	if list, err := m.Overlays(t.Context()); err != nil || list[0].Holder != nil {
		t.Errorf("released: got %+v %v, want no holder", list, err)
	}
	// Whose an overlay is can't be told where a record can't be read.
	write(t, m.Dirs.recordPath("two"), `{"format": 99}`)
	if _, err := m.Overlays(t.Context()); err == nil {
		t.Error("a record that can't be read: got no error, want one")
	}
}
