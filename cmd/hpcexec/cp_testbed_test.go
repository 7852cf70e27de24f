//go:build testbed && soak

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// describeTree lists a tree with types, modes, sizes, times and targets.
const describeTree = `find . ! -name . -printf '%P %y %m %s %T@ %l\n' | sort; find . -type f -exec sha256sum {} + | sort`

// makeTree makes something of everything that can be copied, in $1.
const makeTree = `set -e; rm -rf "$1"; mkdir -p "$1/a/b" "$1/empty" "$1/ro"; cd "$1"
echo hello >a/x; echo deep >a/b/y; echo r >ro/f; ln -s /etc/passwd abs; ln -s ../.. up; ln -s nowhere dangling
printf q >"$(printf 'b\377\n"')"; : >zero; chmod 750 a/b/y; chmod 400 ro/f; chmod 555 ro
truncate -s 50M sparse; printf zz | dd of=sparse bs=1 seek=20000000 conv=notrunc 2>/dev/null
head -c 20000000 /dev/urandom >big; i=0; while [ $i -lt 200 ]; do echo $i >a/b/f$i; i=$((i+1)); done
touch -d '2020-01-02 03:04:05.678901234' a/x`

// copyWork is a directory of the test's own on the login node.
func copyWork(t *testing.T) string {
	t.Helper()
	dir := "/tmp/files-" + strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(t.Name(), "TestE2E"), "/", "-"))
	clean := func() { on(t, "login", "sh", "-c", `chmod -R u+rwx "$1" 2>/dev/null; rm -rf "$1"`, "sh", dir) }
	clean()
	must(t, "login", "mkdir", dir)
	t.Cleanup(clean)
	return dir
}

// summary runs a copy with --json.
func summary(t *testing.T, argv ...string) (copyResult, ran) {
	t.Helper()
	r := on(t, "login", append([]string{"hpcexec", "--json"}, argv...)...)
	var res copyResult
	if err := json.Unmarshal([]byte(r.stdout), &res); err != nil {
		t.Fatalf("%q: got %v", argv, r)
	}
	return res, r
}

// A tree goes to each kind of place and comes back as it was.
func TestE2ECopy(t *testing.T) {
	places := []struct {
		name  string
		start []string // nil: a bare host
	}{
		{"local", []string{"--on", "local", "--image", baseImage}},
		{"bare", []string{"--on", "local"}},
		{"slurm", []string{"--on", "slurm", "--image", baseImage, "--time", "10m"}},
		{"ssh", nil},
	}
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			work := copyWork(t)
			must(t, "login", "sh", "-c", makeTree, "sh", work+"/src")
			want := must(t, "login", "sh", "-c", "cd "+work+"/src; "+describeTree)
			far, in := "ssh:gpu1:", []string{"exec", "--on", "ssh:gpu1", "--"}
			if p.start != nil {
				name := newSession(t, "")
				hpc(t, append([]string{"session", "start", name}, p.start...)...)
				far, in = name+":", []string{"exec", "-s", name, "--"}
			}
			there := func(script string) string {
				t.Helper()
				return hpc(t, append(in, "sh", "-c", script)...)
			}
			t.Cleanup(func() { there("chmod -R u+rwx cp-test; rm -rf cp-test") })
			there("rm -rf cp-test; mkdir cp-test")

			res, r := summary(t, "cp", work+"/src", far+"cp-test")
			if r.code != 0 || res.Files != 207 || res.Links != 3 || res.Error != nil {
				t.Errorf("cp there: got %v", r)
			}
			if got := there("cd cp-test/src && " + describeTree); got != want {
				t.Errorf("there: got\n%s\nwant\n%s", got, want)
			}
			res, r = summary(t, "sync", work+"/src", far+"cp-test/src")
			if r.code != 0 || res.Bytes != 0 || res.Skipped != 210 {
				t.Errorf("sync there: got %v", r)
			}
			res, r = summary(t, "cp", "--verify", far+"cp-test/src/.", work+"/back")
			if r.code != 0 || res.Files != 207 {
				t.Errorf("cp back: got %v", r)
			}
			if got := must(t, "login", "sh", "-c", "cd "+work+"/back; "+describeTree); got != want {
				t.Errorf("back: got\n%s\nwant\n%s", got, want)
			}
			if kb := must(t, "login", "sh", "-c", "du -k "+work+"/back/sparse | cut -f1"); len(kb) > 4 {
				t.Errorf("sparse: got %s KiB, want nearly none", kb)
			}
			there("rm cp-test/src/big; echo more >cp-test/src/a/more")
			res, r = summary(t, "sync", "--delete", "--dry-run", far+"cp-test/src", work+"/back")
			if r.code != 0 || res.Deleted != 1 || res.Files != 1 || len(res.Actions) != 2 {
				t.Errorf("dry run: got %v", r)
			}
			res, r = summary(t, "sync", "--delete", far+"cp-test/src", work+"/back")
			if r.code != 0 || res.Deleted != 1 || res.Files != 1 {
				t.Errorf("sync back: got %v", r)
			}
		})
	}
}

// What can't be read is listed, the rest is copied, and the exit code says so.
func TestE2ECopyUnreadable(t *testing.T) {
	work := copyWork(t)
	must(t, "login", "sh", "-c", `cd "$1"; mkdir -p src/locked; echo x >src/fine; echo x >src/secret; echo x >src/locked/f; chmod 0 src/secret src/locked`, "sh", work)
	res, r := summary(t, "cp", work+"/src", "ssh:gpu1:"+work+"-far")
	t.Cleanup(func() { on(t, "gpu1", "sh", "-c", `chmod -R u+rwx "$1"; rm -rf "$1"`, "sh", work+"-far") })
	if r.code != 125 || res.Files != 1 || res.FailedCount != 2 || res.Error == nil || res.Error.Type != "unavailable" {
		t.Errorf("got %v, want exit code 125, 1 file and 2 failed", r)
	}
	for _, f := range res.Failed {
		if f.Reason != "permission denied" || f.Path != "secret" && f.Path != "locked" {
			t.Errorf("failed: got %+v", f)
		}
	}
	r = on(t, "login", "hpcexec", "cp", work+"/src", "ssh:gpu1:"+work+"-far")
	for _, want := range []string{"hpcexec: secret: permission denied\n", "hpcexec: locked: permission denied\n", "2 paths"} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("stderr: got %q, want %q in it", r.stderr, want)
		}
	}
}

// A full disk, at either end, is an error with a hint and leaves no half file.
func TestE2ECopyNoSpace(t *testing.T) {
	work := copyWork(t)
	must(t, "login", "sh", "-c", `head -c 30000000 /dev/zero | tr '\0' x >"$1/big"`, "sh", work)
	small := work + "-small"
	for _, node := range []string{"login", "gpu1"} {
		t.Run(node, func(t *testing.T) {
			t.Cleanup(func() { on(t, node+":root", "sh", "-c", `umount "$1"; rmdir "$1"`, "sh", small) })
			must(t, node+":root", "sh", "-c", `mkdir "$1" && mount -t tmpfs -o size=4m,mode=1777 none "$1"`, "sh", small)
			argv := []string{"hpcexec", "cp", "ssh:login:" + work + "/big", small}
			if node != "login" {
				argv = []string{"hpcexec", "cp", work + "/big", "ssh:" + node + ":" + small}
			}
			r := on(t, "login", argv...)
			if r.code != 125 || !strings.Contains(r.stderr, "no space left on device") || !strings.Contains(r.stderr, "hint: make room there") {
				t.Errorf("got %v", r)
			}
			if left := must(t, node, "sh", "-c", `ls -A "$1"`, "sh", small); left != "" && !strings.HasSuffix(left, ".hpcexec-part\n") {
				t.Errorf("left: got %q, want a part at most", left)
			}
		})
	}
}

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

// From one session to another, through the client.
func TestE2ECopyBetween(t *testing.T) {
	a, b := newSession(t, "-a"), newSession(t, "-b")
	hpc(t, "exec", "-s", a, "--on", "local", "--image", baseImage, "--", "sh", "-c", "mkdir d; head -c 20000000 /dev/urandom >d/big; echo x >d/small")
	hpc(t, "exec", "-s", b, "--on", "local", "--image", baseImage, "--", "true")
	hpc(t, "cp", a+":d", b+":")
	want := hpc(t, "exec", "-s", a, "--", "sha256sum", "d/big", "d/small")
	if got := hpc(t, "exec", "-s", b, "--", "sha256sum", "d/big", "d/small"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Many copies at once over one master.
func TestE2ECopyParallel(t *testing.T) {
	work := copyWork(t)
	must(t, "login", "sh", "-c", `head -c 5000000 /dev/urandom >"$1/f"`, "sh", work)
	r := on(t, "login", "bash", "-c", `cd "$1"; for i in $(seq 20); do hpcexec cp f ssh:gpu1:"$1-$i" & done; for i in $(seq 20); do wait -n || exit 1; done`, "bash", work)
	t.Cleanup(func() { on(t, "gpu1", "sh", "-c", `rm -f "$1"-*`, "sh", work) })
	if r.code != 0 {
		t.Fatalf("got %v", r)
	}
	want := strings.Fields(must(t, "login", "sha256sum", work+"/f"))[0]
	if got := must(t, "gpu1", "sh", "-c", `sha256sum "$1"-* | cut -d' ' -f1 | sort | uniq -c`, "sh", work); strings.TrimSpace(got) != fmt.Sprintf("20 %s", want) {
		t.Errorf("got %s, want 20 %s", got, want)
	}
}
