package snapshots

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
)

func later(d time.Duration) time.Time { return time.Now().Add(d) }

func TestRemove(t *testing.T) {
	s := open(t, Options{})
	a := create(t, s, CreateOptions{})
	b := create(t, s, CreateOptions{Layers: a.Chain()})
	c := create(t, s, CreateOptions{Layers: b.Chain()})
	used := map[string][]string{c.ID: {"train", "eval"}}
	inUse := RemoveOptions{InUse: func(_ context.Context, id string) ([]string, error) {
		if _, err := s.Get(id); !errors.Is(err, ErrNotFound) {
			t.Errorf("asked for users of %s while it can be found: %v", id, err)
		}
		return used[id], nil
	}}
	tests := []struct {
		name, id string
		opts     RemoveOptions
		wantErr  error
		wantText []string
	}{
		{"children", a.ID, inUse, ErrReferenced, []string{b.ID, c.ID}},
		{"child", b.ID, inUse, ErrReferenced, []string{c.ID}},
		{"sessions", c.ID, inUse, ErrReferenced, []string{"session train", "session eval"}},
		{"beginning of an id", c.ID[:8], inUse, ErrNotFound, nil},
		{"none", "aaaaaaaaaaaa", inUse, ErrNotFound, nil},
		{"path", "../../../etc", inUse, ErrNotFound, nil},
		{"last", c.ID, RemoveOptions{}, nil, nil},
		{"then the next", b.ID, inUse, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := s.Remove(t.Context(), tt.id, tt.opts)
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("got %v, want %v", err, tt.wantErr)
			}
			if err == nil {
				return
			}
			if !errors.Is(err, hpcexec.ErrInvalid) || hpcexec.Hint(err) == "" {
				t.Errorf("got %v, want kind ErrInvalid and a hint", err)
			}
			for _, want := range tt.wantText {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want %q in it", err, want)
				}
			}
		})
	}
	if got := fmt.Sprint(ids(t, s)); got != fmt.Sprint([]string{a.ID}) {
		t.Errorf("got %s, want the first only", got)
	}
	if got := names(t, s.Root()); len(got) != 2 {
		t.Errorf("got files %q, want two", got)
	}
}

// TestRemoveUnknownUsers: where it can't be found out who needs it, it stays.
func TestRemoveUnknownUsers(t *testing.T) {
	s := open(t, Options{})
	a := create(t, s, CreateOptions{})
	stop := errors.New("stop")
	err := s.Remove(t.Context(), a.ID, RemoveOptions{InUse: func(context.Context, string) ([]string, error) { return nil, stop }})
	if !errors.Is(err, stop) {
		t.Errorf("got %v, want the error", err)
	}
	os.WriteFile(s.manifest("bbbbbbbbbbbb"), []byte(`{"format":99}`), 0o600)
	if err := s.Remove(t.Context(), a.ID, RemoveOptions{}); err == nil {
		t.Error("removed though a manifest can't be understood")
	}
	os.Remove(s.manifest("bbbbbbbbbbbb"))
	if got := ids(t, s); len(got) != 1 {
		t.Errorf("got %v, want it still there", got)
	}
}

// TestRemoveKilled: killed before any step, the snapshot is there or not, and
// the sweep makes one or the other of what is between.
func TestRemoveKilled(t *testing.T) {
	for step, gone := range map[string]bool{"hide": false, "decide": false, "remove data": true, "remove manifest": true} {
		t.Run(step, func(t *testing.T) {
			s := open(t, Options{})
			a := create(t, s, CreateOptions{})
			b := create(t, s, CreateOptions{})
			runKilled(t, s, "remove", a.ID, step)
			if _, err := s.sweep(t.Context(), later(2*hiddenAge)); err != nil {
				t.Fatal(err)
			}
			want := []string{a.ID, b.ID}
			if gone {
				want = want[1:]
			}
			if got := ids(t, s); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("got %v, want %v", got, want)
			}
			if left := names(t, s.Root()); len(left) != 2*len(want) {
				t.Errorf("got files %q, want two for each of %d", left, len(want))
			}
			for _, id := range want {
				if err := s.Verify(t.Context(), id, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestHiddenChild: a removal that isn't decided is waited for: the young name
// isn't touched.
func TestHiddenChild(t *testing.T) {
	s := open(t, Options{})
	a := create(t, s, CreateOptions{})
	runKilled(t, s, "remove", a.ID, "decide")
	if _, err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, s); len(got) != 0 {
		t.Errorf("got %v, want it hidden for now", got)
	}
	if got := names(t, s.Root()); len(got) != 2 {
		t.Errorf("got files %q, want both kept", got)
	}
}

// TestRemoveAgainstCreate: in a race of making a child and removing the parent,
// no child is left without its parent.
func TestRemoveAgainstCreate(t *testing.T) {
	for _, at := range []string{"pack", "manifest", "look again"} { // of the child
		for _, until := range []string{"hide", "decide", "remove data", ""} { // of the removal
			t.Run(at+" "+until, func(t *testing.T) {
				base := open(t, Options{})
				a := create(t, base, CreateOptions{})
				paused, resume, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
				remover, err := Open(base.Root(), Options{step: func(name string) error {
					if name == until {
						close(paused)
						<-resume
					}
					return nil
				}})
				if err != nil {
					t.Fatal(err)
				}
				var removed error
				creator, err := Open(base.Root(), Options{step: func(name string) error {
					if name == at {
						go func() {
							defer close(ended)
							removed = remover.Remove(t.Context(), a.ID, RemoveOptions{})
						}()
						select {
						case <-paused:
						case <-ended:
						}
					}
					return nil
				}})
				if err != nil {
					t.Fatal(err)
				}
				_, created := creator.Create(t.Context(), CreateOptions{Upper: upper(t), Layers: a.Chain()})
				close(resume)
				<-ended
				if removed == nil && created == nil {
					t.Error("the child was made and its parent removed")
				}
				for _, id := range ids(t, base) {
					if _, err := base.Layers(id); err != nil {
						t.Errorf("%s is left without its layers: %v", id, err)
					}
				}
			})
		}
	}
}

// TestSweep: what may be in use stays, what is old goes, other files stay.
func TestSweep(t *testing.T) {
	s := open(t, Options{})
	a := create(t, s, CreateOptions{})
	put := func(name string, age time.Duration) {
		p := filepath.Join(s.Root(), name)
		os.WriteFile(p, []byte("x"), 0o600)
		old := time.Now().Add(-age)
		os.Chtimes(p, old, old)
	}
	c := creator{s: s, id: newID()}
	mine, err := c.tempName()
	if err != nil {
		t.Fatal(err)
	}
	put(filepath.Base(mine), time.Hour)
	put(".new.bbbbbbbbbbbb.0123456789abcdef.1-1.sqfs", time.Hour)           // another node's
	put(".new.cccccccccccc.0123456789abcdef.1-1.sqfs", orphanAge+time.Hour) // old
	put("dddddddddddd.sqfs", time.Hour)                                     // its manifest is being written
	put("eeeeeeeeeeee.sqfs", orphanAge+time.Hour)                           // it never was
	put(".tmp.x.f", orphanAge+time.Hour)
	put("README", orphanAge+time.Hour)
	put("notanid.sqfs", orphanAge+time.Hour)
	os.Chtimes(s.data(a.ID), time.Unix(0, 0), time.Unix(0, 0))
	n, err := s.Sweep(t.Context())
	if n != 3 || err != nil {
		t.Errorf("got %d %v, want 3 removed", n, err)
	}
	got := strings.Join(names(t, s.Root()), " ")
	for _, want := range []string{filepath.Base(mine), ".new.bbbb", "dddddddddddd.sqfs", "README", "notanid.sqfs", a.ID + ".sqfs", a.ID + ".json"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s, want %s kept", got, want)
		}
	}
	for _, gone := range []string{".new.cccc", "eeee", ".tmp."} {
		if strings.Contains(got, gone) {
			t.Errorf("got %s, want %s removed", got, gone)
		}
	}
}
