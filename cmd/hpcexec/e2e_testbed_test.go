//go:build testbed

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// These tests run on the machine that has the testbed, since they also pull
// plugs. hpcexec is bin/hpcexec, which the nodes have in PATH:
//
//	make build cluster-up && go test -tags testbed -run TestE2E ./cmd/hpcexec

const (
	baseImage = "/scratch/images/base.sif"

	// callTime bounds each call, so that what hangs is a failure of its own.
	callTime = 2 * time.Minute
)

// A ran is how a call on the testbed ended.
type ran struct {
	stdout, stderr string
	code           int
	took           time.Duration
}

func (r ran) String() string {
	return fmt.Sprintf("exit code %d after %v\nstdout: %s\nstderr: %s", r.code, r.took.Round(time.Millisecond), r.stdout, r.stderr)
}

// on runs a command on a node, as ada unless the node's name has a user.
func on(t *testing.T, node string, argv ...string) ran {
	t.Helper()
	return onWith(t, node, "", argv...)
}

func onWith(t *testing.T, node, stdin string, argv ...string) ran {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "../../testbed/on", append([]string{node}, argv...)...)
	cmd.WaitDelay = 5 * time.Second
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	began := time.Now()
	err := cmd.Run()
	r := ran{out.String(), errOut.String(), cmd.ProcessState.ExitCode(), time.Since(began)}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("on %s: %q: %v\n%v", node, argv, errors.Join(err, ctx.Err()), r)
	}
	return r
}

// must is on for what has to end with 0; it returns stdout.
func must(t *testing.T, node string, argv ...string) string {
	t.Helper()
	r := on(t, node, argv...)
	if r.code != 0 {
		t.Fatalf("on %s: %q: got %v", node, argv, r)
	}
	return r.stdout
}

// hpc is must for hpcexec on the login node.
func hpc(t *testing.T, argv ...string) string {
	t.Helper()
	return must(t, "login", append([]string{"hpcexec"}, argv...)...)
}

// newSession names a session of the test's own, which is removed after it.
func newSession(t *testing.T, suffix string) string {
	t.Helper()
	name := "e2e-" + strings.ToLower(strings.NewReplacer("/", "-", "_", "-", " ", "-", ":", "-").Replace(strings.TrimPrefix(t.Name(), "TestE2E"))) + suffix
	remove := func() { on(t, "login", "hpcexec", "session", "rm", "--yes", name) }
	remove()
	t.Cleanup(remove)
	return name
}

// show is `session show --json`.
func show(t *testing.T, name string) map[string]any {
	t.Helper()
	var info map[string]any
	text := hpc(t, "session", "show", name, "--json")
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		t.Fatalf("session show --json: got %q: %v", text, err)
	}
	return info
}

// eventually waits until a condition holds, bounded.
func eventually(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		if holds() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// runs says whether a command line runs on any node.
func runs(t *testing.T, commandLine string) bool {
	t.Helper()
	for _, node := range []string{"login", "cpu1", "gpu1", "gpu2"} {
		if on(t, node+":root", "pgrep", "-xf", commandLine).code == 0 {
			return true
		}
	}
	return false
}

func TestE2EMainJob(t *testing.T) {
	name := newSession(t, "")
	r := on(t, "login", "hpcexec", "exec", "-s", name, "--on", "slurm", "--gpus", "a100:1", "--image", baseImage, "--",
		"sh", "-c", "echo $CUDA_VISIBLE_DEVICES; hostname; echo hi >> /notes")
	if lines := strings.Fields(r.stdout); r.code != 0 || len(lines) != 2 || len(lines[0]) != 1 || lines[1] != "gpu1" {
		t.Fatalf("first exec: got %v, want a GPU and gpu1", r)
	}
	t.Logf("from nothing: %v", r.took)
	first := show(t, name)
	job, _ := first["job_id"].(string)
	if first["state"] != "ready" || first["node"] != "gpu1" || first["image"] != baseImage || job == "" {
		t.Errorf("session show: got %v, want it ready on gpu1 with a job", first)
	}
	if got := strings.TrimSpace(must(t, "login", "squeue", "-h", "-j", job, "-o", "%u %T %P")); got != "ada RUNNING gpu" {
		t.Errorf("squeue: got %q, want %q", got, "ada RUNNING gpu")
	}

	r = on(t, "login", "hpcexec", "exec", "-s", name, "--", "sh", "-c", "cat /notes; exit 42")
	if r.stdout != "hi\n" || r.stderr != "" || r.code != 42 {
		t.Errorf("second exec: got %v, want hi and 42", r)
	}
	t.Logf("warm: %v", r.took)

	// A terminal, a plain ssh through the session's socket.
	if got := hpc(t, "exec", "-s", name, "-t", "--", "tty"); !strings.HasPrefix(got, "/dev/pts/") {
		t.Errorf("exec -t: got %q, want a terminal", got)
	}
	control, _ := first["control_path"].(string)
	if r := on(t, "login", "ssh", "-S", control, "x", "cat /notes; exit 3"); r.stdout != "hi\n" || r.code != 3 {
		t.Errorf("ssh -S: got %v, want hi and 3", r)
	}

	hpc(t, "session", "stop", name)
	if got := must(t, "login", "squeue", "-h", "-j", job); got != "" {
		t.Errorf("squeue after stop: got %q, want no job", got)
	}
	if got := hpc(t, "exec", "-s", name, "--", "cat", "/notes"); got != "hi\n" {
		t.Errorf("after stop: got %q, want the old file", got)
	}
	if again := show(t, name)["job_id"]; again == job || again == "" {
		t.Errorf("after stop: got job %v, want another than %v", again, job)
	}
}

// Whatever dies, the next exec works and what was written is whole.
func TestE2ESurvives(t *testing.T) {
	name := newSession(t, "")
	hpc(t, "exec", "-s", name, "--on", "slurm", "--gpus", "h100:1", "--image", baseImage, "--", "sh", "-c", "echo 0 > /notes")
	want := "0\n"
	instance := `(Apptainer|Singularity) [i]nstance: ada \[hpcexec-` + name
	// A command that comes while the session ends is ended with it: wait.
	ended := func(t *testing.T) {
		eventually(t, 30*time.Second, "the session has ended", func() bool { return show(t, name)["state"] != "ready" })
	}
	steps := []struct {
		name string
		do   func(t *testing.T)
	}{
		{"scancel", func(t *testing.T) {
			must(t, "login", "scancel", fmt.Sprint(show(t, name)["job_id"]))
			ended(t)
		}},
		{"kill of the master", func(t *testing.T) { must(t, "login", "pkill", "-KILL", "-f", "hpcexec master --host gpu2 ") }},
		{"kill of the shim", func(t *testing.T) {
			must(t, "gpu2", "sh", "-c", `pkill -KILL -P $(pgrep -d, -P $(pgrep -f "$1"))`, "sh", instance)
		}},
		{"kill of the instance", func(t *testing.T) {
			// A command that is sent to what dies has no known end: wait.
			must(t, "gpu2", "sh", "-c", `p=$(pgrep -f "$1"); c=$(pgrep -P $p); kill -9 $p; while kill -0 $c; do sleep 0.1; done 2>/dev/null`, "sh", instance)
		}},
		{"kill of the supervisor", func(t *testing.T) {
			must(t, "gpu2", "pkill", "-KILL", "-f", "hpcexec supervise .*--session "+name+" ")
			ended(t)
		}},
		{"a node that is booted anew", func(t *testing.T) {
			if out, err := exec.Command("../../testbed/node", "restart", "gpu2").CombinedOutput(); err != nil {
				t.Fatalf("testbed/node restart gpu2: %v\n%s", err, out)
			}
		}},
	}
	for i, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			step.do(t)
			want += fmt.Sprintln(i + 1)
			r := on(t, "login", "hpcexec", "exec", "-s", name, "--", "sh", "-c", fmt.Sprintf("echo %d >> /notes; cat /notes", i+1))
			if r.code != 0 || r.stdout != want {
				t.Fatalf("the next exec: got %v, want %q", r, want)
			}
			t.Logf("the next exec: %v", r.took)
		})
	}
}

// The same request gives the same answer in every place.
func TestE2EPlaces(t *testing.T) {
	const script = `printf '%s|' "$0" "$@"; echo "$VALUE"; cat; echo err >&2; exit 7`
	const want, wantErr = "sh|a  b||$HOME|'\"\\|é\n|two words\nstdin\n", "err\n"
	for _, place := range []string{"local", "ssh:gpu1", "slurm"} {
		for _, image := range []string{"", baseImage} {
			name := place
			if image != "" {
				name += " in a container"
			}
			t.Run(name, func(t *testing.T) {
				argv := []string{"hpcexec", "--quiet", "exec", "-i", "--on", place, "-e", "VALUE=two words"}
				if image != "" {
					argv = append(argv, "--image", image)
				}
				argv = append(argv, "--", "sh", "-c", script, "sh", "a  b", "", "$HOME", `'"\`, "é\n")
				r := onWith(t, "login", "stdin\n", argv...)
				if r.stdout != want || r.stderr != wantErr || r.code != 7 {
					t.Errorf("got %v\nwant stdout %q, stderr %q, exit code 7", r, want, wantErr)
				}
			})
		}
	}
	eventually(t, 20*time.Second, "no job of a nameless exec is left", func() bool {
		return !strings.Contains(must(t, "login", "squeue", "--me", "-h", "-o", "%j"), "hpcexec-tmp")
	})
	if list := hpc(t, "session", "ls", "--json"); strings.Contains(list, `"ephemeral":true`) {
		t.Errorf("session ls: got %s, want nothing ephemeral left", list)
	}
}

func TestE2ESnapshots(t *testing.T) {
	one, two := newSession(t, "-1"), newSession(t, "-2")
	hpc(t, "exec", "-s", one, "--image", baseImage, "--", "sh", "-c", "echo old > /notes; mkdir /d; echo x > /d/f")
	var snap struct{ ID string }
	if err := json.Unmarshal([]byte(hpc(t, "snapshot", "create", one, "--json")), &snap); err != nil || snap.ID == "" {
		t.Fatalf("snapshot create --json: got %v, %v, want an id", snap, err)
	}
	t.Cleanup(func() {
		on(t, "login", "hpcexec", "session", "rm", "--yes", two)
		on(t, "login", "hpcexec", "session", "rm", "--yes", one)
		on(t, "login", "hpcexec", "snapshot", "rm", "--yes", snap.ID)
	})
	if list := hpc(t, "snapshot", "ls"); !strings.Contains(list, snap.ID) {
		t.Errorf("snapshot ls: got %q, want %s in it", list, snap.ID)
	}
	hpc(t, "snapshot", "fork", snap.ID, two)
	hpc(t, "exec", "-s", one, "--", "sh", "-c", "echo one >> /notes; rm -r /d")
	hpc(t, "exec", "-s", two, "--", "sh", "-c", "echo two >> /notes; echo y > /d/g")
	if got := hpc(t, "exec", "-s", one, "--", "sh", "-c", "cat /notes; ls -d /d 2>/dev/null; true"); got != "old\none\n" {
		t.Errorf("the first session: got %q, want nothing of the fork", got)
	}
	if got := hpc(t, "exec", "-s", two, "--", "sh", "-c", "cat /notes /d/f /d/g"); got != "old\ntwo\nx\ny\n" {
		t.Errorf("the fork: got %q, want nothing that the first wrote later", got)
	}
	// An image's snapshot is another's parent now: it can't go.
	if r := on(t, "login", "hpcexec", "snapshot", "rm", "--yes", snap.ID); r.code != 125 || !strings.Contains(r.stderr, two) {
		t.Errorf("snapshot rm of one that is used: got %v, want 125 and the session's name", r)
	}
	hpc(t, "snapshot", "verify", snap.ID)

	var restored struct{ Kept struct{ ID string } }
	if err := json.Unmarshal([]byte(hpc(t, "snapshot", "restore", one, snap.ID, "--yes", "--json")), &restored); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { on(t, "login", "hpcexec", "snapshot", "rm", "--yes", restored.Kept.ID) })
	if got := hpc(t, "exec", "-s", one, "--", "sh", "-c", "cat /notes /d/f"); got != "old\nx\n" {
		t.Errorf("restored: got %q, want the snapshot's state", got)
	}
}

// kill -9 of the client: within 5 s nothing of the command is left, anywhere.
func TestE2EKilledClient(t *testing.T) {
	name := newSession(t, "")
	hpc(t, "session", "start", name, "--on", "slurm", "--gpus", "h100:1", "--image", baseImage)
	for i, place := range [][]string{{"-s", name}, {"--on", "ssh:gpu1"}, {"--image", baseImage}, {"--on", "slurm", "--image", baseImage}} {
		t.Run(strings.Join(place, " "), func(t *testing.T) {
			sleep := fmt.Sprintf("sleep 86%d", 100+i)
			script := `hpcexec exec "$@" -- sh -c '` + sleep + ` & setsid ` + sleep + ` & ` + sleep + `; true' & echo $!; wait`
			ctx, cancel := context.WithTimeout(context.Background(), callTime)
			defer cancel()
			cmd := exec.CommandContext(ctx, "../../testbed/on", append([]string{"login", "sh", "-c", script, "sh"}, place...)...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { cancel(); cmd.Wait() }()
			eventually(t, 30*time.Second, "the command runs", func() bool { return runs(t, sleep) })
			must(t, "login", "pkill", "-KILL", "-f", "^hpcexec exec .*"+sleep)
			eventually(t, 5*time.Second, "nothing of the command is left", func() bool { return !runs(t, sleep) })
		})
	}
}

// A start that waits for its turn: --wait leaves the job in the queue, Ctrl-C
// takes it out.
func TestE2EWaiting(t *testing.T) {
	patient, hasty := newSession(t, "-1"), newSession(t, "-2")
	blocker := strings.TrimSpace(must(t, "login", "sbatch", "--parsable", "-p", "gpu", "--gres=gpu:h100:2", "-o", "/dev/null", "--wrap", "sleep 300"))
	t.Cleanup(func() { on(t, "login", "scancel", blocker) })
	eventually(t, 30*time.Second, "the other job runs", func() bool {
		return strings.Contains(must(t, "login", "squeue", "-h", "-j", blocker, "-o", "%T"), "RUNNING")
	})
	slurm := []string{"--on", "slurm", "--gpus", "h100:1", "--image", baseImage, "--", "true"}

	r := on(t, "login", append([]string{"hpcexec", "exec", "-s", patient, "--wait", "3s"}, slurm...)...)
	if r.code != 75 || !strings.Contains(r.stderr, "pending") {
		t.Errorf("--wait: got %v, want 75 and the reason", r)
	}
	info := show(t, patient)
	job := fmt.Sprint(info["job_id"])
	if got := must(t, "login", "squeue", "-h", "-j", job, "-o", "%T"); strings.TrimSpace(got) != "PENDING" || info["state"] != "pending" {
		t.Errorf("after --wait: got %v and a job that is %q, want both pending", info, got)
	}

	r = on(t, "login", append([]string{"timeout", "--preserve-status", "-s", "INT", "4", "hpcexec", "exec", "-s", hasty}, slurm...)...)
	if r.code != 130 || !strings.Contains(r.stderr, "interrupted by INT") {
		t.Errorf("interrupted: got %v, want 130", r)
	}
	if got := must(t, "login", "squeue", "--me", "-h", "-o", "%j"); strings.Contains(got, hasty) {
		t.Errorf("squeue: got %q, want no job of %s", got, hasty)
	}

	must(t, "login", "scancel", blocker)
	if r := on(t, "login", "hpcexec", "exec", "-s", patient, "--", "echo", "at last"); r.stdout != "at last\n" {
		t.Errorf("with the GPU free: got %v", r)
	}
	if again := show(t, patient)["job_id"]; again != job {
		t.Errorf("with the GPU free: got job %v, want %v, which waited", again, job)
	}
}

func TestE2EBadInput(t *testing.T) {
	must(t, "login", "sh", "-c", "mkdir -p ~/e2e-bad && cd ~/e2e-bad && head -c 5000 /dev/urandom > corrupt.sif && mkdir -p noscratch hpcexec && chmod 500 noscratch && echo 'colour = 1' > hpcexec/config.toml")
	t.Cleanup(func() { on(t, "login", "sh", "-c", "chmod 700 ~/e2e-bad/noscratch; rm -rf ~/e2e-bad") })
	jobs := must(t, "login", "squeue", "--me", "-h", "-o", "%i")
	tests := []struct {
		name string
		env  string // shell words before hpcexec
		argv string
		want string // in stderr
		hint string
	}{
		{"unknown place", "", "exec --on moon -- true", `place "moon"`, "a place is"},
		{"unknown host", "", "exec --on ssh:no-such-host -- true", "no-such-host", ""},
		{"host that doesn't answer", "", "exec --on ssh:192.0.2.1 -- true", "192.0.2.1", ""},
		{"image missing", "", "exec --image /scratch/images/none.sif -- true", "/scratch/images/none.sif", ""},
		{"image corrupt", "", "exec --image e2e-bad/corrupt.sif -- true", "corrupt.sif", ""},
		{"image missing, in a job", "", "exec --on slurm --image /scratch/images/none.sif -- true", "/scratch/images/none.sif", ""},
		{"no such partition", "", "exec --on slurm --partition none -- true", "none", "cpu"},
		{"more GPUs than any node has", "", "exec --on slurm --gpus a100:9 -- true", "a100", "4 a100"},
		{"no such GPU", "", "exec --on slurm --gpus v100:1 -- true", "v100", "h100"},
		{"more GPUs than there are in the partition", "", "exec --on slurm --partition cpu --gpus 1 -- true", "cpu", ""},
		{"session name", "", "exec -s Bad/Name -- true", "Bad/Name", "small letters"},
		{"config with an unknown key", "XDG_CONFIG_HOME=$HOME/e2e-bad", "exec -- true", `config.toml:1: unknown key "colour"`, "defaults"},
		{"scratch not writable", "HPCEXEC_SCRATCH=$HOME/e2e-bad/noscratch", "exec --image " + baseImage + " -- true", "noscratch", ""},
		{"bind that is not there", "", "exec --image " + baseImage + " --bind /no/such/path -- true", "/no/such/path", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := on(t, "login", "sh", "-c", tt.env+" hpcexec "+tt.argv)
			if r.code != 125 || r.stdout != "" || !strings.Contains(r.stderr, "hpcexec: ") || !strings.Contains(r.stderr, tt.want) {
				t.Errorf("got %v, want 125 and %q", r, tt.want)
			}
			if !strings.Contains(r.stderr, "hpcexec: hint: ") || !strings.Contains(r.stderr, tt.hint) {
				t.Errorf("got %v, want a hint with %q", r, tt.hint)
			}
		})
	}
	if got := must(t, "login", "squeue", "--me", "-h", "-o", "%i"); got != jobs {
		t.Errorf("jobs: got %q, want %q as before", got, jobs)
	}
	if got := hpc(t, "session", "ls", "--json"); strings.Contains(got, `"ephemeral":true`) {
		t.Errorf("sessions: got %s, want none that an exec without a name made", got)
	}
}
