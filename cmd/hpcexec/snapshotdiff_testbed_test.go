//go:build testbed

package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// TestE2ESnapshotDiff: what a session and its fork did to files of the image
// is told right; what is needed isn't pruned.
func TestE2ESnapshotDiff(t *testing.T) {
	one, two := newSession(t, "-1"), newSession(t, "-2")
	var made []string
	create := func(name string) string {
		id := strings.TrimSpace(hpc(t, "snapshot", "create", name))
		made = append(made, id)
		return id
	}
	t.Cleanup(func() {
		on(t, "login", "hpcexec", "session", "rm", "--yes", two)
		on(t, "login", "hpcexec", "session", "rm", "--yes", one)
		slices.Reverse(made)
		on(t, "login", append([]string{"hpcexec", "snapshot", "rm", "--yes"}, made...)...)
	})
	type diff struct {
		Changes []struct{ Path, Change, Type string }
	}
	changes := func(args ...string) string {
		t.Helper()
		var d diff
		text := hpc(t, append([]string{"snapshot", "diff", "--json"}, args...)...)
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Fatalf("snapshot diff --json: got %q: %v", text, err)
		}
		var list []string
		for _, c := range d.Changes {
			// The session's own home and what is in the directory moved.
			if c.Path != "/session" && strings.Count(c.Path, "/") < 4 {
				list = append(list, c.Change+" "+c.Path)
			}
		}
		return strings.Join(list, ", ")
	}
	hpc(t, "exec", "-s", one, "--image", baseImage, "--", "sh", "-c",
		"echo hello >/notes; rm /etc/debian_version; echo x >>/etc/issue; mv /usr/share/perl5 /usr/share/moved")
	a := create(one)
	want := "removed /etc/debian_version, changed /etc/issue, added /notes, added /usr/share/moved, removed /usr/share/perl5"
	if got := changes(a); got != want {
		t.Errorf("snapshot diff ID: got %q, want %q", got, want)
	}
	hpc(t, "snapshot", "fork", a, two)
	hpc(t, "exec", "-s", two, "--", "sh", "-c", "echo more >>/notes; rm -rf /usr/share/moved; mkdir /usr/share/moved")
	b := create(two)
	got := changes(a, b)
	if got != "changed /notes" {
		t.Errorf("snapshot diff ID ID2: got %q, want /notes, and what was in the directory deeper down", got)
	}
	if live := changes(a, two); live != got {
		t.Errorf("snapshot diff ID NAME: got %q, want %q as from its snapshot", live, got)
	}
	if text := hpc(t, "snapshot", "diff", a, b); !strings.Contains(text, "/usr/share/moved/Debconf") {
		t.Errorf("snapshot diff: got %q, want what lay in the opaque directory", text)
	}
	if text := hpc(t, "snapshot", "verify", a, b); strings.Count(text, "is sound") != 2 {
		t.Errorf("snapshot verify: got %q, want two that are sound", text)
	}
	var pruned struct{ Removed, Needed []string }
	text := hpc(t, "snapshot", "prune", "--keep", "0", "--dry-run", "--json")
	if err := json.Unmarshal([]byte(text), &pruned); err != nil || !slices.Contains(pruned.Needed, a) || !slices.Contains(pruned.Removed, b) {
		t.Errorf("snapshot prune --dry-run: got %s %v, want %s needed and %s to go", text, err, a, b)
	}
}
