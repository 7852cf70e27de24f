//go:build testbed

package main

import (
	"encoding/json"
	"testing"
)

// TestE2EOverlays: a running session's overlay has a writer and what was
// written; a stopped one's has no writer.
func TestE2EOverlays(t *testing.T) {
	name := newSession(t, "")
	hpc(t, "exec", "-s", name, "--image", baseImage, "--", "sh", "-c", "head -c 3000000 /dev/urandom >/big")
	type entry struct {
		Session string
		Bytes   int64
		Holder  *struct {
			PID  int
			Dead bool
		}
	}
	look := func() (e entry) {
		t.Helper()
		var all struct{ Overlays []entry }
		text := hpc(t, "overlay", "ls", "--json")
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			t.Fatalf("overlay ls --json: got %q: %v", text, err)
		}
		for _, o := range all.Overlays {
			if o.Session == name {
				return o
			}
		}
		t.Fatalf("overlay ls --json: got %q, want %s in it", text, name)
		return e
	}
	if o := look(); o.Bytes < 3000000 || o.Holder == nil || o.Holder.PID == 0 || o.Holder.Dead {
		t.Errorf("running: got %+v, want 3 MB and a writer", o)
	}
	hpc(t, "session", "stop", name)
	if o := look(); o.Bytes < 3000000 || o.Holder != nil {
		t.Errorf("stopped: got %+v, want 3 MB and no writer", o)
	}
}
