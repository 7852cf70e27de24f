package session

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"time"
)

// kept are the variables that a supervisor, and what it starts, keep of the
// environment they find: what programs of a site need, nothing that a person
// typed. A name that ends in * is a prefix.
var kept = []string{
	"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "LC_*", "TZ", "TMPDIR",
	"MODULEPATH", "MODULESHOME", "LMOD_*", "SCRATCH", "XDG_STATE_HOME",
	"HPCEXEC_HOME", "HPCEXEC_SCRATCH", "SSH_AUTH_SOCK",
	"SLURM_CONF", "SLURM_JOB_*", "SLURM_NODELIST", "SLURM_CPUS_*", "SLURM_GPUS*", "SLURM_MEM_*",
	"SLURM_NNODES", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_CLUSTER_NAME", "SLURMD_NODENAME",
	"SLURM_JOBID", "SLURM_SUBMIT_*", "SLURM_TASKS_PER_NODE", "SLURM_TOPOLOGY_*",
}

// shown are the variables of the node that a command sees in a container.
var shown = []string{
	"SLURM_JOB_*", "SLURM_JOBID", "SLURM_NODELIST", "SLURM_CPUS_*", "SLURM_GPUS*", "SLURM_MEM_*", "SLURM_NNODES",
	"SLURM_CLUSTER_NAME", "SLURMD_NODENAME", "TZ",
}

// gpuVars say which GPUs of the node are the job's.
var gpuVars = []string{
	"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES",
	"HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
}

func scrub(env []string) []string   { return pick(env, kept, gpuVars) }
func visible(env []string) []string { return pick(env, shown, gpuVars) }

// pick keeps the entries whose names are in one of the lists.
func pick(env []string, lists ...[]string) []string {
	var out []string
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		for _, list := range lists {
			if matches(name, list) {
				out = append(out, e)
				break
			}
		}
	}
	return out
}

func matches(name string, list []string) bool {
	for _, p := range list {
		if prefix, ok := strings.CutSuffix(p, "*"); ok && strings.HasPrefix(name, prefix) || p == name {
			return true
		}
	}
	return false
}

// loginEnv is the environment that a login shell of the user makes of a
// scrubbed one: what commands of a bare session start with. A profile that
// fails, prints or hangs costs its changes, not the session.
func loginEnv(ctx context.Context, env []string) []string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	const mark = "\x00hpcexec-login-env\x00"
	shell := "/bin/sh"
	if _, err := exec.LookPath("/bin/bash"); err == nil {
		shell = "/bin/bash"
	}
	cmd := exec.CommandContext(ctx, shell, "-l", "-c", `printf '\0hpcexec-login-env\0'; exec env -0`)
	cmd.Env = env
	cmd.WaitDelay = time.Second // a profile may leave a child with the pipe
	out, err := cmd.Output()
	_, list, ok := bytes.Cut(out, []byte(mark))
	if err != nil || !ok {
		return env
	}
	var got []string
	for _, e := range bytes.Split(list, []byte{0}) {
		name, _, ok := strings.Cut(string(e), "=")
		if ok && name != "_" && name != "SHLVL" && name != "PWD" && name != "OLDPWD" {
			got = append(got, string(e))
		}
	}
	return got
}
