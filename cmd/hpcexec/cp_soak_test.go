//go:build testbed && soak

package main

import (
	"strings"
	"testing"
	"time"
)

// Ctrl-C ends a copy, says what is kept and leaves nothing else; the same
// command goes on.
func TestE2ECopyInterrupted(t *testing.T) {
	work := copyWork(t)
	far := "/tmp/" + strings.TrimPrefix(work, "/tmp/") + "-far"
	t.Cleanup(func() { on(t, "gpu1", "rm", "-rf", far) })
	must(t, "gpu1", "mkdir", "-p", far)
	must(t, "login", "sh", "-c", `head -c 1500000000 /dev/urandom >"$1/big"`, "sh", work)
	for _, ends := range [][2]string{{work + "/big", "ssh:gpu1:" + far}, {"ssh:gpu1:" + far + "/big", work + "/back"}} {
		began := time.Now()
		r := on(t, "login", "timeout", "-s", "INT", "--preserve-status", "1.5", "hpcexec", "cp", ends[0], ends[1])
		if r.code == 0 {
			t.Fatalf("the copy was quicker than the interrupt: %v", time.Since(began))
		}
		if r.code != 130 || !strings.Contains(r.stderr, "is kept: the same command goes on with it") {
			t.Errorf("got %v", r)
		}
		res, r := summary(t, "cp", ends[0], ends[1])
		if r.code != 0 || res.Resumed == 0 {
			t.Errorf("again: got %v, want some resumed", r)
		}
	}
	if sums := must(t, "login", "sh", "-c", "sha256sum <"+work+"/big; sha256sum <"+work+"/back"); strings.Count(sums, sums[:64]) != 2 {
		t.Errorf("got %s", sums)
	}
	if left := must(t, "gpu1", "ls", "-A", far); left != "big\n" {
		t.Errorf("left: got %q", left)
	}
}
