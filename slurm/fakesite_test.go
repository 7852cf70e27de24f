package slurm

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
)

// A fakeSite answers for Slurm's programs, as an Executor on a login node. It
// knows the one thing that matters here: what was asked, and in what order.
type fakeSite struct {
	// answer gives stdout, stderr and exit code of a program, or an error of
	// the connection.
	answer func(prog string, args []string, stdin string) (stdout, stderr string, exit int, err error)

	mu    sync.Mutex
	calls []string // "squeue --me …"
	jobs  []*fakeJob
	next  uint64
}

// A fakeJob is a job in the fake's queue.
type fakeJob struct {
	id              uint64
	name, comment   string
	state, reason   string
	node            string
	submitted       time.Time
	expected        string
	runsAt, endsAt  time.Time // changes of the state as time passes
	ends            string    // the state at endsAt
	hiddenTill      time.Time // squeue doesn't show it before
	script, command string
}

var siteAnswer = func() string {
	var b strings.Builder
	for _, p := range []string{"sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct", "sacctmgr", "srun"} {
		fmt.Fprintf(&b, "%s\t/usr/bin/%s\n", p, p)
	}
	return b.String() + "version\tslurm-wlm 24.11.5\nuser\tada\nuid\t2001\ngroups\tada\nhost\tlogin\n"
}()

func (f *fakeSite) Run(ctx context.Context, req hpcexec.Request) (hpcexec.Response, error) {
	if ctx.Err() != nil {
		return hpcexec.Response{}, context.Cause(ctx)
	}
	if req.Args[2] == findScript {
		io.WriteString(req.Stdout, siteAnswer)
		return hpcexec.Response{}, nil
	}
	// sh -c launchScript hpcexec KEEP UTC /usr/bin/PROG ARGS…
	prog, args := strings.TrimPrefix(req.Args[6], "/usr/bin/"), req.Args[7:]
	stdin := ""
	if req.Stdin != nil {
		b, _ := io.ReadAll(req.Stdin)
		stdin = string(b)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, prog+" "+strings.Join(args, " "))
	var stdout, stderr string
	var exit int
	var err error
	if f.answer != nil {
		stdout, stderr, exit, err = f.answer(prog, args, stdin)
	} else {
		stdout, stderr, exit = f.slurm(prog, args, stdin)
	}
	if err == nil && ctx.Err() != nil {
		return hpcexec.Response{}, context.Cause(ctx) // killed before it could answer
	}
	io.WriteString(req.Stdout, stdout)
	io.WriteString(req.Stderr, stderr)
	return hpcexec.Response{ExitCode: exit}, err
}

// slurm is a small Slurm. f.mu is held.
func (f *fakeSite) slurm(prog string, args []string, stdin string) (stdout, stderr string, exit int) {
	for _, j := range f.jobs {
		j.pass(time.Now())
	}
	switch prog {
	case "sbatch":
		return fmt.Sprintf("%d\n", f.submit(args, stdin).id), "", 0
	case "squeue":
		return f.queue(), "", 0
	case "scancel":
		for _, j := range f.jobs {
			if fmt.Sprint(j.id) == args[0] {
				j.state, j.endsAt, j.runsAt = "CANCELLED", time.Time{}, time.Time{}
			}
		}
		return "", "", 0
	case "sacct":
		return "", "Slurm accounting storage is disabled\n", 1
	case "scontrol":
		return "", "slurm_load_jobs error: Invalid job id specified\n", 1
	case "sacctmgr":
		return "proj||normal,high\nother||normal\n", "", 0
	}
	return "", prog + ": not faked\n", 1
}

func (f *fakeSite) submit(args []string, script string) *fakeJob {
	f.next++
	j := &fakeJob{id: f.next, state: "PENDING", reason: "None", submitted: time.Now(), script: script, node: "gpu1"}
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, "--comment="); ok {
			j.comment = v
		}
		if v, ok := strings.CutPrefix(a, "--job-name="); ok {
			j.name = v
		}
	}
	f.jobs = append(f.jobs, j)
	return j
}

func (j *fakeJob) pass(now time.Time) {
	if !j.runsAt.IsZero() && !now.Before(j.runsAt) && j.state == "PENDING" {
		j.state, j.reason = "RUNNING", "None"
	}
	if !j.endsAt.IsZero() && !now.Before(j.endsAt) && j.state == "RUNNING" {
		j.state = j.ends
	}
}

func (f *fakeSite) queue() string {
	var b strings.Builder
	now := time.Now()
	for _, j := range f.jobs {
		if now.Before(j.hiddenTill) {
			continue
		}
		node, start := "", "N/A"
		if j.state == "RUNNING" {
			node, start = j.node, now.UTC().Format("2006-01-02T15:04:05")
		} else if j.expected != "" {
			start = j.expected
		}
		// squeueFormat
		fmt.Fprintf(&b, "%d|%d|%d|N/A|X|%s|%s|(x)|%s|0:00|1:00:00|59:00|gpu:1|normal|proj|gpu|%s|%s|%s|N/A|%s|1\n",
			j.id, j.id, j.id, j.state, j.reason, node, j.name, j.submitted.UTC().Format("2006-01-02T15:04:05"), start, j.comment)
	}
	return b.String()
}

// called is how often a program was run.
func (f *fakeSite) called(prog string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		if strings.HasPrefix(c, prog+" ") {
			n++
		}
	}
	return n
}

func (f *fakeSite) alive() (ids []uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range f.jobs {
		if !State(j.state).Ended() {
			ids = append(ids, j.id)
		}
	}
	return ids
}

func fakeClient(t *testing.T, f *fakeSite) *Client {
	t.Helper()
	return New(f, Options{})
}

const testToken = "abcdefgh12345678"

func testSpec() JobSpec {
	return JobSpec{Name: "train", Token: testToken, Script: "#!/bin/sh\nexec sleep 60\n", Fresh: true}
}
