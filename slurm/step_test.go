package slurm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/exectest"
)

// fakePrograms makes a folder with srun and what a Client needs beside it.
// more replaces or adds programs.
func fakePrograms(t *testing.T, more map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	programs := map[string]string{
		"sbatch":   "#!/bin/sh\nexit 1\n",
		"sinfo":    "#!/bin/sh\necho slurm 24.11.5\n",
		"squeue":   "#!/bin/sh\necho '12|12|12|N/A|R|RUNNING|None|node1|node1|0:01|10:00|9:59|N/A|normal|proj|gpu|x|2026-11-30T20:18:34|2026-11-30T20:18:35|2026-11-30T20:28:35|(null)|1'\n",
		"scontrol": "#!/bin/sh\nexit 1\n",
	}
	for name, text := range more {
		programs[name] = text
	}
	if programs["srun"] == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(self, filepath.Join(dir, "srun")); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// fakeAllocation is an Allocation whose node is this machine.
func fakeAllocation(t *testing.T, more map[string]string, opt AllocationOptions) *Allocation {
	t.Helper()
	dir := fakePrograms(t, more)
	base := &hpcexec.Local{Env: []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "SLURM_CPU_BIND=quiet", "TOKEN=s3cret"}}
	return New(base, Options{}).Allocation(JobID{Job: 12}, opt)
}

// TestConformance holds an Allocation to the contract, on this machine.
func TestConformance(t *testing.T) {
	a := fakeAllocation(t, nil, AllocationOptions{})
	exectest.Run(t, exectest.Suite{
		New: func(*testing.T) hpcexec.Executor { return a },
		Break: func(t *testing.T, _ hpcexec.Executor) {
			for _, pid := range processesWith("--jobid=12", a.c.site.Programs["srun"]) {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		},
	})
}

// processesWith are the processes that have all these arguments.
func processesWith(args ...string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		line, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		words := strings.Split(string(line), "\x00")
		if slices.ContainsFunc(args, func(a string) bool { return !slices.Contains(words, a) }) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		pids = append(pids, pid)
	}
	return pids
}

// runStep runs a shell line.
func runStep(t *testing.T, a *Allocation, line string) (resp hpcexec.Response, stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	resp, err = a.Run(t.Context(), hpcexec.Request{Args: []string{"sh", "-c", line}, Stdout: &out, Stderr: &errOut})
	return resp, out.String(), errOut.String(), err
}

func TestStepKeepsNoiseApart(t *testing.T) {
	a := fakeAllocation(t, nil, AllocationOptions{})
	resp, stdout, stderr, err := runStep(t, a, "printf out; printf err >&2; exit 42")
	if err != nil || resp.ExitCode != 42 || stdout != "out" || stderr != "err" {
		t.Errorf("got %d, %q, %q, %v; want 42, out, err, nil", resp.ExitCode, stdout, stderr, err)
	}
	if resp.Place != "slurm:12" {
		t.Errorf("got place %q, want slurm:12", resp.Place)
	}
}

func TestStepEnvironmentIsScrubbed(t *testing.T) {
	a := fakeAllocation(t, nil, AllocationOptions{})
	_, stdout, _, err := runStep(t, a, "env")
	if err != nil {
		t.Fatal(err)
	}
	for _, not := range []string{"SLURM_CPU_BIND", "TOKEN=", envPrefix, "hpcexec_"} {
		if strings.Contains(stdout, not) {
			t.Errorf("the environment has %s:\n%s", not, stdout)
		}
	}
	for _, want := range []string{"PATH=", "HOME=", "SLURM_STEP_ID=7", "HPCEXEC_ID="} {
		if !strings.Contains("\n"+stdout, "\n"+want) {
			t.Errorf("the environment has no %s:\n%s", want, stdout)
		}
	}
}

func TestStepsThatAreLost(t *testing.T) {
	// srun that loses its step: it runs the command's script up to the first
	// mark and says what a real one says.
	lose := func(text string, code int) string {
		return `#!/bin/sh
for a do
  case $last in hpcexec) word=$a; break ;; esac
  last=$a
done
printf '\036\035%s start 7 node1\n' "$word" >&3
printf 'half'
` + text + "\nexit " + strconv.Itoa(code) + "\n"
	}
	for _, tt := range []struct {
		name, srun string
		wantErr    error
		text, hint string
	}{
		{"node failed", lose("echo 'srun: error: Node failure on gpu2' >&2", 1), hpcexec.ErrUnknownEnd, "the node failed under the command", "Node failure on gpu2"},
		{"node failed, exit 0 of old releases", lose("echo 'srun: error: Node failure on gpu2' >&2", 0), hpcexec.ErrUnknownEnd, "the node failed", ""},
		{"time limit", lose("echo 'slurmstepd-gpu1: error: *** STEP 204.0 ON cpu1 CANCELLED AT 2026-11-30T20:12:14 DUE TO TIME LIMIT ***' >&3", 137), hpcexec.ErrUnknownEnd, "time limit", ""},
		{"cancelled, 26.05", lose("echo '[2026-11-30T20:19:49.005] error: *** STEP 105.20 ON gpu1 CANCELLED AT 2026-11-30T20:19:49 ***' >&3", 137), hpcexec.ErrUnknownEnd, "was cancelled", ""},
		{"silence", lose("", 0), hpcexec.ErrUnknownEnd, "the step was lost", ""},
		{"job over", "#!/bin/sh\necho 'srun: error: Slurm job 12 has expired' >&2; echo 'srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 12' >&2; exit 1\n", hpcexec.ErrAllocationGone, "has expired", "start another"},
		{"controller down", "#!/bin/sh\necho 'srun: error: Unable to confirm allocation for job 12: Unable to contact slurm controller (connect failure)' >&2; echo 'srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 12' >&2; exit 1\n", hpcexec.ErrUnavailable, "Unable to contact", "down or restarting"},
		{"pending", "#!/bin/sh\necho 'srun: error: Unable to confirm allocation for job 12: Job is pending execution' >&2; exit 1\n", hpcexec.ErrUnavailable, "pending", "hasn't started"},
		{"slurmd down", "#!/bin/sh\necho 'srun: error: Task launch for StepId=12.1 failed on node gpu1: Communication connection failure' >&2; echo 'srun: error: Application launch failed: Communication connection failure' >&2; exit 233\n", hpcexec.ErrUnavailable, "Communication connection failure", "slurmd"},
		{"killed before its first word", "#!/bin/sh\necho 'srun: forcing job termination' >&2; exit 137\n", hpcexec.ErrUnknownEnd, "lost", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := fakeAllocation(t, map[string]string{"srun": tt.srun}, AllocationOptions{})
			_, stdout, _, err := runStep(t, a, "true")
			if !errors.Is(err, tt.wantErr) || !strings.Contains(err.Error(), tt.text) || !strings.Contains(hpcexec.Hint(err), tt.hint) {
				t.Errorf("got %v (%s), hint %q; want %v, %q, %q", err, hpcexec.KindName(err), hpcexec.Hint(err), tt.wantErr, tt.text, tt.hint)
			}
			if strings.Contains(tt.srun, "half") && stdout != "half" {
				t.Errorf("got output %q, want what had come: half", stdout)
			}
			for _, other := range []error{hpcexec.ErrUnknownEnd, hpcexec.ErrAllocationGone, hpcexec.ErrUnavailable, hpcexec.ErrInvalid} {
				if other != tt.wantErr && errors.Is(err, other) {
					t.Errorf("%v matches %v too", err, other)
				}
			}
		})
	}
}

// TestStepThatDoesntBegin has an srun that waits for another step (D1).
func TestStepThatDoesntBegin(t *testing.T) {
	a := fakeAllocation(t, map[string]string{"srun": "#!/bin/sh\necho 'srun: Job 12 step creation temporarily disabled, retrying (Requested nodes are busy)' >&2\nexec sleep 60\n"},
		AllocationOptions{StartTimeout: 200 * time.Millisecond})
	_, _, _, err := runStep(t, a, "true")
	if !errors.Is(err, hpcexec.ErrUnavailable) || !strings.Contains(hpcexec.Hint(err), "squeue -s -j 12") {
		t.Errorf("got %v, hint %q; want ErrUnavailable and where to look", err, hpcexec.Hint(err))
	}
}

// TestSrunArgs says what exactly is asked of the login node.
func TestSrunArgs(t *testing.T) {
	for _, tt := range []struct {
		name    string
		version string
		node    string
		req     hpcexec.Request
		srun    []string // srun and its options
		tail    []string // what comes after the script's word
		env     []string
		secrets []string
	}{
		{
			name: "plain", version: "slurm 24.11.5", req: hpcexec.Request{Args: []string{"nvidia-smi", "-L"}, ID: "id1"},
			srun: []string{"--jobid=12", "--overlap", "--nodes=1", "--ntasks=1", "--export=ALL", "--chdir=/", "--cpu-bind=none", "--mpi=none", "--error=/dev/fd/3", "--input=none"},
			tail: []string{"", "0", "40", "", "id1", "", "nvidia-smi", "-L"},
		},
		{
			name: "all of it", version: "slurm 24.11.5", node: "gpu2",
			req: hpcexec.Request{Args: []string{"sh", "-c", "a b", "--", ""}, ID: "id2", Dir: "/proj x", Timeout: 1500 * time.Millisecond,
				Stdin: strings.NewReader(""), Env: []string{"A=1,2\n3", "SLURM_CPU_BIND=none", "B=1", "B=2"}, Secrets: []string{"S=hush"}},
			srun: []string{"--jobid=12", "--overlap", "--nodes=1", "--ntasks=1", "--export=ALL", "--chdir=/", "--cpu-bind=none", "--mpi=none", "--nodelist=gpu2", "--error=/dev/fd/3"},
			tail: []string{"/proj x", "1.500", "40", "", "id2", "", "sh", "-c", "a b", "--", ""},
			env:  []string{"HPCEXEC_E_A=1,2\n3", "HPCEXEC_E_SLURM_CPU_BIND=none", "HPCEXEC_E_B=2"}, secrets: []string{"HPCEXEC_E_S=hush"},
		},
		{
			name: "arguments that srun takes for its own", version: "slurm 24.11.5", req: hpcexec.Request{Args: []string{"sh", "-c", ":"}, ID: "i", Stdin: strings.NewReader("")},
			srun: []string{"--jobid=12", "--overlap", "--nodes=1", "--ntasks=1", "--export=ALL", "--chdir=/", "--cpu-bind=none", "--mpi=none", "--error=/dev/fd/3"},
			tail: []string{"", "0", "40", "", "i", "x", "xsh", "x-c", "x:"},
		},
		{
			name: "variables that shells keep", version: "slurm 24.11.5", req: hpcexec.Request{Args: []string{"true"}, Env: []string{"UID=5", "A=b"}, ID: "i"},
			srun: []string{"--jobid=12", "--overlap", "--nodes=1", "--ntasks=1", "--export=ALL", "--chdir=/", "--cpu-bind=none", "--mpi=none", "--error=/dev/fd/3", "--input=none"},
			tail: []string{"", "0", "40", "", "i", "e", "UID=5", "true"}, env: []string{"HPCEXEC_E_A=b"},
		},
		{
			name: "20.11 doesn't share GPUs", version: "slurm 20.11.4", req: hpcexec.Request{Args: []string{"true"}, ID: "i"},
			srun: []string{"--jobid=12", "--overlap", "--nodes=1", "--ntasks=1", "--export=ALL", "--chdir=/", "--cpu-bind=none", "--mpi=none", "--gres=none", "--error=/dev/fd/3", "--input=none"},
			tail: []string{"", "0", "40", "", "i", "", "true"},
			env:  []string{"HPCEXEC_E_CUDA_VISIBLE_DEVICES=2,3", "HPCEXEC_E_GPU_DEVICE_ORDINAL=2,3", "HPCEXEC_E_ROCR_VISIBLE_DEVICES=2,3"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec := &exectest.Recorder{Answer: func(ctx context.Context, req hpcexec.Request) (hpcexec.Response, error) {
				switch {
				case req.Args[2] == findScript:
					req.Stdout.Write([]byte(strings.Replace(siteAnswer, "slurm-wlm 24.11.5", tt.version, 1)))
				case slices.Contains(req.Args, "/usr/bin/scontrol"):
					req.Stdout.Write([]byte(fixture(t, "20.11.4", "scontrol-show-job-d.txt")))
				}
				return hpcexec.Response{}, nil
			}}
			a := New(rec, Options{}).Allocation(JobID{Job: 12}, AllocationOptions{Node: tt.node})
			a.Run(t.Context(), tt.req)
			asked := rec.Requests()
			i := slices.IndexFunc(asked, func(r hpcexec.Request) bool { return r.Args[2] == launchStepScript })
			if i < 0 {
				t.Fatal("srun wasn't asked for")
			}
			req := asked[i]
			args := req.Args[4:]
			if want := " PATH HOME USER LOGNAME SHELL LANG LC_ALL LC_CTYPE TZ SLURM_CONF SLURM_CONF_SERVER "; args[0] != want {
				t.Errorf("keeps %q, want %q", args[0], want)
			}
			word := args[1]
			want := append([]string{args[0], word, "", "/usr/bin/srun"}, tt.srun...)
			want = append(want, "/bin/sh", "-c")
			if got := args[:len(want)]; !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
			script, rest := args[len(want)], args[len(want)+1:]
			if wantRest := append([]string{"hpcexec", word}, tt.tail...); !slices.Equal(rest, wantRest) {
				t.Errorf("got  %q\nwant %q", rest, wantRest)
			}
			if !reflect.DeepEqual(req.Env, tt.env) || !reflect.DeepEqual(req.Secrets, tt.secrets) {
				t.Errorf("got env %q, secrets %q; want %q, %q", req.Env, req.Secrets, tt.env, tt.secrets)
			}
			if strings.Contains(script, "hush") || strings.Contains(strings.Join(args, " "), "hush") {
				t.Error("a secret is in the argv")
			}
			if req.Dir != "" || req.Timeout != 0 {
				t.Errorf("got Dir %q and Timeout %v for srun itself, want none", req.Dir, req.Timeout)
			}
		})
	}
}

func TestStepRefusals(t *testing.T) {
	a := fakeAllocation(t, nil, AllocationOptions{})
	for _, tt := range []struct {
		name string
		req  hpcexec.Request
	}{
		{"a secret that a shell keeps", hpcexec.Request{Args: []string{"true"}, Secrets: []string{"UID=5"}}},
		{"= in the name and a variable that a shell keeps", hpcexec.Request{Args: []string{"a=b"}, Env: []string{"UID=5"}}},
	} {
		if _, err := a.Run(t.Context(), tt.req); !errors.Is(err, hpcexec.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", tt.name, err)
		}
	}
}

func TestCarrier(t *testing.T) {
	a := fakeAllocation(t, nil, AllocationOptions{Node: "gpu1"})
	req, err := a.Carrier(t.Context(), "sh", "-c", "cat; echo end")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(req.Args, "--unbuffered") || !slices.Contains(req.Args, "--nodelist=gpu1") || slices.Contains(req.Args, "--input=none") {
		t.Errorf("got %q", req.Args)
	}
	var out bytes.Buffer
	req.Stdin, req.Stdout = strings.NewReader("a\x00b"), &out
	if _, err := a.base.Run(t.Context(), req); err != nil || out.String() != "a\x00bend\n" {
		t.Errorf("got %q, %v; want what went in", out.String(), err)
	}
	if _, err := a.Carrier(t.Context(), "sh", ":"); !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}
