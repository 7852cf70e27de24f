package snapshots

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
)

// chains makes three snapshots of one session on top of each other, and one of
// another session.
func chains(t *testing.T, s *Store) (a, b, c, other string) {
	t.Helper()
	x := create(t, s, CreateOptions{Session: "one"})
	y := create(t, s, CreateOptions{Session: "one", Layers: x.Chain()})
	z := create(t, s, CreateOptions{Session: "one", Layers: y.Chain()})
	o := create(t, s, CreateOptions{Session: "two"})
	return x.ID, y.ID, z.ID, o.ID
}

func TestPrune(t *testing.T) {
	tests := []struct {
		name    string
		opts    PruneOptions
		inUse   int // the session's base: of the four
		want    []int
		needed  []int
		wantErr error
	}{
		{"nothing said", PruneOptions{}, -1, nil, nil, hpcexec.ErrInvalid},
		{"negative", PruneOptions{Keep: -1, Older: time.Hour}, -1, nil, nil, hpcexec.ErrInvalid},
		{"parents of the newest stay", PruneOptions{Keep: 1}, -1, nil, []int{1, 0}, nil},
		{"all are young", PruneOptions{Older: time.Hour}, -1, nil, nil, nil},
		{"a chain goes whole", PruneOptions{Older: time.Nanosecond}, -1, []int{2, 1, 0, 3}, nil, nil},
		{"the base of a session stays", PruneOptions{Older: time.Nanosecond}, 1, []int{2, 3}, []int{1, 0}, nil},
		{"number and age", PruneOptions{Keep: 1, Older: time.Hour}, -1, nil, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t, Options{})
			a, b, c, other := chains(t, s)
			all := []string{a, b, c, other}
			tt.opts.InUse = func(_ context.Context, id string) ([]string, error) {
				if tt.inUse >= 0 && id == all[tt.inUse] {
					return []string{"train"}, nil
				}
				return nil, nil
			}
			pick := func(list []int) []string {
				ids := []string{}
				for _, i := range list {
					ids = append(ids, all[i])
				}
				slices.Sort(ids)
				return ids
			}
			idsOf := func(list []Snapshot) []string {
				ids := []string{}
				for _, snap := range list {
					ids = append(ids, snap.ID)
				}
				slices.Sort(ids)
				return ids
			}
			// First dry: the same answer, and nothing changes.
			for _, dry := range []bool{true, false} {
				tt.opts.DryRun = dry
				p, err := s.Prune(t.Context(), tt.opts)
				if !errors.Is(err, tt.wantErr) {
					t.Fatalf("dry run %v: got %v, want %v", dry, err, tt.wantErr)
				}
				if got, want := idsOf(p.Removed), pick(tt.want); !slices.Equal(got, want) {
					t.Errorf("dry run %v: got %q removed, want %q", dry, got, want)
				}
				// In a session's chain the base is needed by the session and
				// what is beneath it by the base.
				if got, want := idsOf(p.Needed), pick(tt.needed); !slices.Equal(got, want) {
					t.Errorf("dry run %v: got %q needed, want %q", dry, got, want)
				}
				left := len(all)
				if !dry {
					left -= len(tt.want)
				}
				if got := ids(t, s); len(got) != left {
					t.Errorf("dry run %v: got %d left, want %d", dry, len(got), left)
				}
			}
		})
	}
}

// TestPruneCrash: wherever it ends, no snapshot lacks a layer, and a second run
// ends the work.
func TestPruneCrash(t *testing.T) {
	stop := errors.New("crash")
	for n := 1; ; n++ {
		s := open(t, Options{})
		chains(t, s)
		calls := 0
		s.opts.step = func(string) error {
			if calls++; calls >= n {
				return stop
			}
			return nil
		}
		_, err := s.Prune(t.Context(), PruneOptions{Older: time.Nanosecond})
		s.opts.step = nil
		if err == nil {
			if n < 10 {
				t.Errorf("got %d steps, want some for each snapshot", n)
			}
			break
		}
		if !errors.Is(err, stop) {
			t.Fatalf("step %d: got %v, want the crash", n, err)
		}
		if _, err := s.sweep(t.Context(), time.Now().Add(2*hiddenAge)); err != nil {
			t.Fatal(err)
		}
		for _, id := range ids(t, s) {
			if _, err := s.Layers(id); err != nil {
				t.Errorf("step %d: %v", n, err)
			}
		}
		if _, err := s.Prune(t.Context(), PruneOptions{Older: time.Nanosecond}); err != nil {
			t.Errorf("step %d: a second run: %v", n, err)
		}
		if left := fmt.Sprint(names(t, s.Root())); left != "[]" {
			t.Errorf("step %d: got %s left after a second run, want nothing", n, left)
		}
	}
}

// TestPruneKeepsDamaged: what is damaged is for a person to look at.
func TestPruneKeepsDamaged(t *testing.T) {
	old := time.Now().Add(-time.Hour)
	list := []Snapshot{{ID: "a", Problem: "its data is missing"}, {ID: "b", Created: old}, {ID: "c", Created: time.Now()}}
	got := candidates(list, 0, time.Now().Add(-time.Minute))
	if len(got) != 1 || got[0].ID != "b" {
		t.Errorf("got %v, want b alone", got)
	}
}
