package slurm

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hpcexec/hpcexec"
)

func TestSubmit(t *testing.T) {
	f := &fakeSite{}
	c := fakeClient(t, f)
	id, err := c.Submit(t.Context(), testSpec())
	if err != nil || id != (JobID{Job: 1}) {
		t.Fatalf("got %v, %v; want job 1", id, err)
	}
	if f.called("squeue") != 0 {
		t.Errorf("a token that is fresh was looked up: %q", f.calls)
	}
	spec := testSpec()
	spec.Fresh = false
	again, err := c.Submit(t.Context(), spec)
	if err != nil || again != id || f.called("sbatch") != 1 {
		t.Errorf("the same again: got %v, %v after %d calls of sbatch; want job 1 after 1", again, err, f.called("sbatch"))
	}
	spec.Token = "another-token"
	other, err := c.Submit(t.Context(), spec)
	if err != nil || other == id {
		t.Errorf("another token: got %v, %v; want another job", other, err)
	}
}

func TestSubmitInvalid(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*JobSpec)
	}{
		{"no script", func(s *JobSpec) { s.Script = "" }},
		{"script and command", func(s *JobSpec) { s.Argv = []string{"true"} }},
		{"no interpreter", func(s *JobSpec) { s.Script = "sleep 1\n" }},
		{"DOS line ends", func(s *JobSpec) { s.Script = "#!/bin/sh\r\ntrue\r\n" }},
		{"NUL", func(s *JobSpec) { s.Script = "#!/bin/sh\n\x00\n" }},
		{"short token", func(s *JobSpec) { s.Token = "abc" }},
		{"token with a |", func(s *JobSpec) { s.Token = "abcdefgh|12345" }},
		{"name with a space", func(s *JobSpec) { s.Name = "a b" }},
		{"memory", func(s *JobSpec) { s.Mem = "lots" }},
		{"GPU type", func(s *JobSpec) { s.GPUs = GPURequest{"a100,gpu:h100", 1} }},
		{"partition", func(s *JobSpec) { s.Partition = "gpu --uid=0" }},
		{"output", func(s *JobSpec) { s.Output = "x.log" }},
		{"directory", func(s *JobSpec) { s.Dir = "x" }},
		{"negative", func(s *JobSpec) { s.CPUs = -1 }},
		{"option that isn't one", func(s *JobSpec) { s.Extra = []string{"script.sh"} }},
		{"option of ours", func(s *JobSpec) { s.Extra = []string{"--comment=x"} }},
		{"short option of ours", func(s *JobSpec) { s.Extra = []string{"-Jx"} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &fakeSite{}
			spec := testSpec()
			tt.change(&spec)
			if _, err := fakeClient(t, f).Submit(t.Context(), spec); !errors.Is(err, hpcexec.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
			if len(f.calls) > 0 {
				t.Errorf("asked %q", f.calls)
			}
		})
	}
}

func TestSbatchArgs(t *testing.T) {
	spec := JobSpec{
		Name: "train", Token: testToken, Partition: "gpu", GPUs: GPURequest{"a100", 2}, CPUs: 8, Mem: "16G", Nodes: 2,
		Time: 90*time.Minute + time.Second, Account: "proj", QOS: "high", Constraint: "a100&ib", Reservation: "res1",
		Warn: time.Minute, Output: "/scratch/x/%j.log", Dir: "/scratch", Extra: []string{"--nice=100", "-x", "gpu7"[:0] + "--exclude=gpu7"},
	}
	spec.Extra = []string{"--nice=100", "--exclude=gpu7"}
	want := []string{
		"--nice=100", "--exclude=gpu7", "--partition=gpu", "--account=proj", "--qos=high", "--constraint=a100&ib", "--reservation=res1",
		"--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=8", "--mem=16G", "--gres=gpu:a100:2", "--time=91", "--signal=B:TERM@60",
		"--output=/scratch/x/%j.log", "--chdir=/scratch", "--job-name=hpcexec-train-abcdefgh", "--comment=hpcexec:v1:abcdefgh12345678",
		"--no-requeue", "--parsable",
	}
	if got := spec.args(); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	want = []string{"--nodes=1", "--ntasks-per-node=1", "--gres=gpu:1", "--output=/dev/null", "--chdir=/",
		"--job-name=hpcexec-abcdefgh", "--comment=hpcexec:v1:abcdefgh12345678", "--no-requeue", "--parsable"}
	if got := (JobSpec{Token: testToken, GPUs: GPURequest{Count: 1}}).args(); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestScriptOfACommand(t *testing.T) {
	f := &fakeSite{}
	spec := JobSpec{Token: testToken, Argv: []string{"/opt/hpc exec", "supervise", "it's", "$HOME", ""}}
	if _, err := fakeClient(t, f).Submit(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	want := "#!/bin/sh\nexec '/opt/hpc exec' 'supervise' 'it'\"'\"'s' '$HOME' ''\n"
	if f.jobs[0].script != want {
		t.Errorf("got %q, want %q", f.jobs[0].script, want)
	}
}

// A fault is what happens to one call of sbatch.
type fault int

const (
	fine        fault = iota
	refused           // an answer: no
	unreached         // the controller had it not
	lostReply         // the job is made, the reply lost
	lateRequest       // no reply, and the job is made seconds later
	lostLine          // the connection to the login node is lost, the job made
	garbage           // something else is printed, the job made
)

func TestSubmitThroughFaults(t *testing.T) {
	for _, tt := range []struct {
		name    string
		faults  []fault
		jobs    int // that are alive at the end
		wantErr error
	}{
		{"lost reply", []fault{lostReply}, 1, nil},
		{"lost reply twice", []fault{lostReply, lostReply}, 1, nil},
		{"controller down for a while", []fault{unreached, unreached, unreached, fine}, 1, nil},
		{"late request", []fault{lateRequest}, 1, nil},
		{"lost line", []fault{lostLine}, 1, nil},
		{"garbage", []fault{garbage}, 1, nil},
		{"down, then lost reply", []fault{unreached, lostReply}, 1, nil},
		{"refused", []fault{refused}, 0, hpcexec.ErrInvalid},
		{"down, then refused", []fault{unreached, refused}, 0, hpcexec.ErrInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeSite{}
				faults := tt.faults
				f.answer = func(prog string, args []string, stdin string) (string, string, int, error) {
					if prog != "sbatch" || len(faults) == 0 {
						stdout, stderr, exit := f.slurm(prog, args, stdin)
						return stdout, stderr, exit, nil
					}
					now := faults[0]
					faults = faults[1:]
					const timeout = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
					switch now {
					case refused:
						return "", "sbatch: error: Batch job submission failed: Requested node configuration is not available\n", 1, nil
					case unreached:
						return "", "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n", 1, nil
					case lostReply:
						f.submit(args, stdin)
						return "", timeout, 1, nil
					case lateRequest:
						f.submit(args, stdin).hiddenTill = time.Now().Add(8 * time.Second)
						return "", timeout, 1, nil
					case lostLine:
						f.submit(args, stdin)
						return "", "", 0, hpcexec.Errorf(hpcexec.ErrUnknownEnd, "connection lost")
					case garbage:
						return fmt_(f.submit(args, stdin)), "", 0, nil
					}
					stdout, stderr, exit := f.slurm(prog, args, stdin)
					return stdout, stderr, exit, nil
				}
				id, err := fakeClient(t, f).Submit(t.Context(), testSpec())
				if !errors.Is(err, tt.wantErr) || (err == nil) != (tt.wantErr == nil) {
					t.Fatalf("got %v, want %v", err, tt.wantErr)
				}
				alive := f.alive()
				if len(alive) != tt.jobs || tt.jobs == 1 && alive[0] != id.Job {
					t.Errorf("got job %s of %v, want %d jobs; asked %q", id, alive, tt.jobs, f.calls)
				}
			})
		})
	}
}

func fmt_(*fakeJob) string { return "Welcome to the cluster!\nplease log out\n" }

// TestSubmitLateTwin has the case that no look can prevent: a request is taken
// up after all looks and another sbatch. The later job is cancelled.
func TestSubmitLateTwin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSite{}
		first := true
		f.answer = func(prog string, args []string, stdin string) (string, string, int, error) {
			if prog == "sbatch" && first {
				first = false
				f.submit(args, stdin).hiddenTill = time.Now().Add(14500 * time.Millisecond)
				return "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n", 1, nil
			}
			stdout, stderr, exit := f.slurm(prog, args, stdin)
			return stdout, stderr, exit, nil
		}
		id, err := fakeClient(t, f).Submit(t.Context(), testSpec())
		if err != nil {
			t.Fatal(err)
		}
		if alive := f.alive(); len(alive) != 1 || alive[0] != id.Job || len(f.jobs) != 2 {
			t.Errorf("got job %s, alive %v of %d; want that one alone of 2", id, alive, len(f.jobs))
		}
	})
}

func TestSubmitControllerDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSite{answer: func(prog string, _ []string, _ string) (string, string, int, error) {
			return "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", 1, nil
		}}
		begun := time.Now()
		_, err := fakeClient(t, f).Submit(t.Context(), testSpec())
		if !errors.Is(err, hpcexec.ErrUnknownEnd) || hpcexec.Hint(err) == "" {
			t.Errorf("got %v, want ErrUnknownEnd with a hint", err)
		}
		if waited := time.Since(begun); waited < 9*time.Minute || waited > 12*time.Minute {
			t.Errorf("gave up after %v, want 10 minutes", waited)
		}
	})
}

func TestSubmitCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSite{}
		why := errors.New("interrupted")
		ctx, cancel := context.WithCancelCause(t.Context())
		f.answer = func(prog string, args []string, stdin string) (string, string, int, error) {
			if prog == "sbatch" {
				cancel(why) // while it runs
			}
			stdout, stderr, exit := f.slurm(prog, args, stdin)
			return stdout, stderr, exit, nil
		}
		_, err := fakeClient(t, f).Submit(ctx, testSpec())
		if !errors.Is(err, why) || len(f.jobs) != 1 || len(f.alive()) != 0 {
			t.Errorf("got %v, jobs alive %v of %d; want %v, none of 1", err, f.alive(), len(f.jobs), why)
		}
	})
}

func TestRefusalListsChoices(t *testing.T) {
	f := &fakeSite{}
	f.answer = func(prog string, args []string, stdin string) (string, string, int, error) {
		if prog == "sbatch" {
			return "", "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified\n", 1, nil
		}
		stdout, stderr, exit := f.slurm(prog, args, stdin)
		return stdout, stderr, exit, nil
	}
	_, err := fakeClient(t, f).Submit(t.Context(), testSpec())
	want := "yours are: account proj (qos normal, high); account other (qos normal)"
	if !errors.Is(err, hpcexec.ErrInvalid) || hpcexec.Hint(err) != want {
		t.Errorf("got %v, hint %q; want ErrInvalid, %q", err, hpcexec.Hint(err), want)
	}
	if !strings.Contains(err.Error(), "sbatch: Invalid account") {
		t.Errorf("got %q, want the program's words", err)
	}
}

func TestAssociationsOfEachRelease(t *testing.T) {
	eachRelease(t, func(t *testing.T, release string) {
		// The fixture has more columns; ours are account, partition and qos.
		var b strings.Builder
		for line := range strings.Lines(fixture(t, release, "sacctmgr-show-assoc.txt")) {
			f := strings.Split(line, "|")
			if f[0] == "Cluster" {
				continue
			}
			b.WriteString(f[1] + "|" + f[3] + "|" + f[4] + "\n")
		}
		got := parseAssociations(b.String())
		if len(got) != 2 || got[1].Account != "proj" || got[1].Partition != "" || !slices.Contains(got[1].QOS, "limited") {
			t.Errorf("got %+v, want other and proj with their QOS", got)
		}
	})
}
