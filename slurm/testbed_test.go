//go:build testbed

package slurm

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
)

// These tests run on the testbed's login node, as an ordinary user:
//
//	CGO_ENABLED=0 go test -c -tags testbed -o bin/slurm.test ./slurm
//	testbed/on login /opt/hpcexec/bin/slurm.test -test.v

func realClient(t *testing.T) (*Client, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	c := New(&hpcexec.Local{}, Options{})
	if _, err := c.Site(ctx); err != nil {
		t.Fatalf("this test needs the testbed's login node: %v", err)
	}
	return c, ctx
}

// submit submits a job that sleeps and cancels it at the end of the test.
func submit(t *testing.T, c *Client, ctx context.Context, spec JobSpec) JobID {
	t.Helper()
	if spec.Token == "" {
		spec.Token = hpcexec.NewID()
	}
	if spec.Script == "" && spec.Argv == nil {
		spec.Argv = []string{"sleep", "300"}
	}
	if spec.Mem == "" {
		spec.Mem = "50M"
	}
	spec.Name = "slurm-test"
	id, err := c.Submit(ctx, spec)
	if err != nil {
		t.Fatalf("submit: %v (%s)", err, hpcexec.Hint(err))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if s, err := c.Cancel(ctx, id, Match{Token: spec.Token}); err != nil {
			t.Errorf("cancel at the end: %v, %+v", err, s)
		}
	})
	return id
}

func TestRealLifeOfAJob(t *testing.T) {
	c, ctx := realClient(t)
	token := hpcexec.NewID()
	plan, err := c.Preflight(ctx, JobSpec{GPUs: GPURequest{"h100", 1}})
	if err != nil {
		t.Fatalf("preflight: %v", err)
	}
	if plan.Spec.Partition != "gpu" || plan.Spec.Time != DefaultTime {
		t.Fatalf("got partition %q, time %v; want gpu and %v", plan.Spec.Partition, plan.Spec.Time, DefaultTime)
	}
	begun := time.Now()
	spec := plan.Spec
	spec.Token, spec.Argv = token, []string{"sleep", "300"}
	id := submit(t, c, ctx, spec)
	t.Logf("sbatch of %s took %v", id, time.Since(begun))
	var seen []string
	s, err := c.Wait(ctx, id, func(s Status) { seen = append(seen, string(s.State)+" "+s.Reason+" "+s.Expected.String()) })
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	t.Logf("ran after %v: %v", time.Since(begun), seen)
	if len(s.Nodes) != 1 || s.Nodes[0] != "gpu2" || s.Partition != "gpu" || s.Token != token {
		t.Errorf("got %+v; want node gpu2 in partition gpu with token %s", s, token)
	}
	if left := time.Until(s.EndsBy); left < 55*time.Minute || left > 61*time.Minute {
		t.Errorf("ends in %v; want about an hour (times are read in the wrong zone?)", left)
	}
	if d := time.Since(s.Submitted); d < 0 || d > time.Minute {
		t.Errorf("was submitted %v ago; want seconds", d)
	}

	again, err := c.Submit(ctx, spec)
	if err != nil || again != id {
		t.Errorf("submitted again with the same token: got job %s, %v; want %s", again, err, id)
	}
	if _, err := c.Cancel(ctx, id, Match{Token: hpcexec.NewID()}); !errors.Is(err, ErrNotOurs) {
		t.Errorf("cancel with another token: got %v, want ErrNotOurs", err)
	}
	begun = time.Now()
	s, err = c.Cancel(ctx, id, Match{Token: token})
	if err != nil || s.State != Cancelled {
		t.Errorf("cancel: got %s, %v; want CANCELLED", s.State, err)
	}
	t.Logf("cancelled in %v", time.Since(begun))
	if _, err := c.Wait(ctx, id, nil); !errors.Is(err, hpcexec.ErrAllocationGone) {
		t.Errorf("wait for a cancelled job: got %v, want ErrAllocationGone", err)
	}
}

func TestRealForeignJobIsLeftAlone(t *testing.T) {
	c, ctx := realClient(t)
	out, err := c.run(ctx, call{prog: "sbatch", args: []string{"--parsable", "--mem=50M", "--output=/dev/null"}, stdin: strings.NewReader("#!/bin/sh\nsleep 60\n")})
	if err != nil {
		t.Fatal(err)
	}
	id, err := ParseJobID(strings.TrimSpace(out))
	if err != nil {
		t.Fatal(err)
	}
	defer c.scancel(ctx, id)
	if _, err := c.Cancel(ctx, id, Match{}); !errors.Is(err, ErrNotOurs) || !errors.Is(err, hpcexec.ErrDenied) {
		t.Errorf("cancel: got %v, want ErrNotOurs", err)
	}
	if s, err := c.Job(ctx, id); err != nil || s.State.Ended() {
		t.Errorf("got %+v, %v; want it alive", s, err)
	}
}

func TestRealScrubbedJobEnvironment(t *testing.T) {
	c, ctx := realClient(t)
	t.Setenv("HPCEXEC_TEST_SECRET", "s3cret\nSLURM_FOO=1")
	t.Setenv("SBATCH_PARTITION", "nosuch")
	t.Setenv("SQUEUE_FORMAT", "%i")
	t.Setenv("SQUEUE_STATES", "FAILED")
	t.Setenv("SLURM_TIME_FORMAT", "relative")
	home, _ := os.UserHomeDir()
	file := home + "/slurm-test-env"
	defer os.Remove(file)
	id := submit(t, c, ctx, JobSpec{Script: "#!/bin/sh\nenv > " + file + ".tmp; mv " + file + ".tmp " + file + "; sleep 60\n"})
	if _, err := c.Wait(ctx, id, nil); err != nil {
		t.Fatal(err)
	}
	var data []byte
	for range 50 {
		data, _ = os.ReadFile(file)
		if len(data) > 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	env := string(data)
	if !strings.Contains(env, "\nHOME=") && !strings.HasPrefix(env, "HOME=") || !strings.Contains(env, "SLURM_JOB_ID=") {
		t.Errorf("the job has no HOME or SLURM_JOB_ID:\n%s", env)
	}
	for _, not := range []string{"HPCEXEC", "s3cret", "SBATCH_", "SQUEUE_", "TZ=UTC0", "SLURM_EXPORT_ENV"} {
		if strings.Contains(env, not) {
			t.Errorf("the job's environment has %s:\n%s", not, env)
		}
	}
}

func TestRealRefusals(t *testing.T) {
	c, ctx := realClient(t)
	for _, tt := range []struct {
		name string
		spec JobSpec
		hint string
	}{
		{"account", JobSpec{Account: "nosuch"}, "account proj"},
		{"qos", JobSpec{QOS: "nosuch"}, "normal"},
		{"partition", JobSpec{Partition: "nosuch"}, "gpu"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.spec.Argv = []string{"true"}
			_, err := c.Submit(ctx, tt.spec)
			if !errors.Is(err, hpcexec.ErrInvalid) || !strings.Contains(hpcexec.Hint(err), tt.hint) {
				t.Errorf("got %v with hint %q; want ErrInvalid and a hint with %q", err, hpcexec.Hint(err), tt.hint)
			}
		})
	}
}

func TestRealGone(t *testing.T) {
	c, ctx := realClient(t)
	s, err := c.Job(ctx, JobID{Job: 4000000})
	if err != nil || s.State != Gone {
		t.Errorf("got %s, %v; want GONE", s.State, err)
	}
}

func TestRealEndOnContext(t *testing.T) {
	c, ctx := realClient(t)
	spec := JobSpec{Token: hpcexec.NewID(), Argv: []string{"sleep", "60"}, Mem: "50M", Extra: []string{"--begin=now+1hour"}}
	id, err := c.Submit(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithTimeout(ctx, 700*time.Millisecond)
	defer stop()
	s, err := c.WaitOrCancel(short, id, Match{Token: spec.Token}, func(s Status) { t.Logf("%s: %s; %s", s.State, s.Reason, s.Why.Text) })
	if !errors.Is(err, context.DeadlineExceeded) || s.State != Cancelled {
		t.Errorf("got %s, %v; want CANCELLED and the deadline", s.State, err)
	}
}

// realAllocation holds a job with two GPUs for the tests of Allocation.
func realAllocation(t *testing.T, c *Client, ctx context.Context) *Allocation {
	t.Helper()
	id := submit(t, c, ctx, JobSpec{Argv: []string{"sleep", "1000"}, Partition: "gpu", GPUs: GPURequest{"a100", 2}, CPUs: 2, Mem: "100M", Time: 20 * time.Minute})
	s, err := c.Wait(ctx, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("job %s on %v", s.ID, s.Nodes)
	return c.Allocation(id, AllocationOptions{})
}

func run(t *testing.T, ctx context.Context, ex hpcexec.Executor, req hpcexec.Request) (hpcexec.Response, string, string) {
	t.Helper()
	var stdout, stderr strings.Builder
	req.Stdout, req.Stderr = &stdout, &stderr
	resp, err := ex.Run(ctx, req)
	if err != nil {
		t.Fatalf("%q: %v (%s); stdout %q, stderr %q", req.Args, err, hpcexec.Hint(err), stdout.String(), stderr.String())
	}
	return resp, stdout.String(), stderr.String()
}

func TestRealAllocation(t *testing.T) {
	c, ctx := realClient(t)
	a := realAllocation(t, c, ctx)
	resp, out, errOut := run(t, ctx, a, hpcexec.Request{
		Args: []string{"sh", "-c", `printf 'out %s %s %s' "$CUDA_VISIBLE_DEVICES" "$A" "$S"; printf err >&2; exit 42`},
		Env:  []string{"A=x,y\nz"}, Secrets: []string{"S=sec ret"}})
	gpus, rest, _ := strings.Cut(strings.TrimPrefix(out, "out "), " ")
	if resp.ExitCode != 42 || len(strings.Split(gpus, ",")) != 2 || rest != "x,y\nz sec ret" || errOut != "err" {
		t.Errorf("got %d, %q, %q; want 42, the GPUs and variables, and err", resp.ExitCode, out, errOut)
	}
	const n = 10
	var own, bare time.Duration
	for range n {
		begun := time.Now()
		run(t, ctx, a, hpcexec.Request{Args: []string{"true"}})
		own += time.Since(begun)
		begun = time.Now()
		run(t, ctx, c.base, hpcexec.Request{Args: []string{"srun", "--jobid=" + a.id.local(), "--overlap", "-N1", "-n1", "--input=none", "true"}})
		bare += time.Since(begun)
	}
	t.Logf("%v a command, %v with bare srun", own/n, bare/n)
	_, out, _ = run(t, ctx, a, hpcexec.Request{Args: []string{"env"}})
	for _, not := range []string{"HPCEXEC_E_", "TESTBED", "hpcexec_"} {
		if strings.Contains(out, not) {
			t.Errorf("the environment has %s:\n%s", not, out)
		}
	}
}

func TestRealCarrier(t *testing.T) {
	c, ctx := realClient(t)
	a := realAllocation(t, c, ctx)
	req, err := a.Carrier(ctx, "sh", "-c", `printf up; cat`)
	if err != nil {
		t.Fatal(err)
	}
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	heard, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer heard.Close()
	req.Stdin, req.Stdout = in, out
	done := make(chan error, 1)
	go func() { _, err := c.base.Run(ctx, req); out.Close(); done <- err }()
	// No newline anywhere: what is held back never comes.
	read := func(want string) {
		t.Helper()
		b := make([]byte, len(want))
		heard.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.ReadFull(heard, b); err != nil || string(b) != want {
			t.Fatalf("got %q, %v; want %q", b, err, want)
		}
	}
	read("up")
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for range 3 {
		feed.Write(all)
		read(string(all))
	}
	feed.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestRealJobEndsUnderACommand has what happens to a command when its job is
// cancelled: one that obeys SIGTERM has ended, and that is told.
func TestRealJobEndsUnderACommand(t *testing.T) {
	c, ctx := realClient(t)
	a := realAllocation(t, c, ctx)
	type end struct {
		resp hpcexec.Response
		err  error
	}
	ends := make(chan end, 1)
	p, err := a.Start(ctx, hpcexec.Request{Args: []string{"sleep", "100"}})
	if err != nil {
		t.Fatal(err)
	}
	go func() { resp, err := p.Wait(); ends <- end{resp, err} }()
	if _, err := c.Cancel(ctx, a.id, Match{}); err != nil {
		t.Fatal(err)
	}
	e := <-ends
	if e.err == nil && e.resp.ExitCode != 143 || e.err != nil && !errors.Is(e.err, hpcexec.ErrUnknownEnd) {
		t.Errorf("got %+v, %v; want exit code 143, or ErrUnknownEnd", e.resp, e.err)
	}
	t.Logf("%+v, %v", e.resp, e.err)
	if _, err := a.Run(ctx, hpcexec.Request{Args: []string{"true"}}); !errors.Is(err, hpcexec.ErrAllocationGone) {
		t.Errorf("afterwards: got %v, want ErrAllocationGone", err)
	}
}

func TestRealInventory(t *testing.T) {
	c, ctx := realClient(t)
	inv, err := c.GPUs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	before := map[string]GPURow{}
	for _, r := range inv.Rows {
		before[r.Partition+"/"+r.Type] = r
	}
	if r := before["gpu/h100"]; r.Total != 2 || r.Most != 2 || r.Nodes != 1 {
		t.Errorf("gpu/h100: got %+v, want 2 on one node", r)
	}
	id := submit(t, c, ctx, JobSpec{Partition: "gpu", GPUs: GPURequest{"h100", 1}})
	if _, err := c.Wait(ctx, id, nil); err != nil {
		t.Fatal(err)
	}
	inv, err = c.GPUs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range inv.Rows {
		t.Logf("%+v", r)
		if r.Partition == "gpu" && r.Type == "h100" && r.InUse < 1 {
			t.Errorf("got %+v, want one in use", r)
		}
	}
}

func TestRealPreflight(t *testing.T) {
	c, ctx := realClient(t)
	_, err := c.Preflight(ctx, JobSpec{GPUs: GPURequest{"h100", 3}})
	if !errors.Is(err, hpcexec.ErrInvalid) || !strings.Contains(hpcexec.Hint(err), "h100") {
		t.Errorf("got %v, hint %q; want ErrInvalid and what there is", err, hpcexec.Hint(err))
	}
	t.Logf("%v; %s", err, hpcexec.Hint(err))
	_, err = c.Preflight(ctx, JobSpec{Partition: "nosuch"})
	if !errors.Is(err, hpcexec.ErrInvalid) || !strings.Contains(hpcexec.Hint(err), "gpu") {
		t.Errorf("got %v, hint %q; want ErrInvalid and the partitions", err, hpcexec.Hint(err))
	}
}
