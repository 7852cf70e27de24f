package session

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestScrub(t *testing.T) {
	env := []string{
		"HOME=/home/ada", "PATH=/usr/bin", "LC_ALL=C", "SLURM_JOB_ID=7", "CUDA_VISIBLE_DEVICES=0", "SLURM_CPU_BIND=none",
		"AWS_SECRET_ACCESS_KEY=x", "LD_PRELOAD=/evil.so", "BASH_ENV=/evil", "APPTAINER_BIND=/", "SINGULARITY_BIND=/", "HPCEXEC_ID=1",
		"SLURM_EXPORT_ENV=NONE", "SSH_CONNECTION=1",
	}
	want := []string{"HOME=/home/ada", "PATH=/usr/bin", "LC_ALL=C", "SLURM_JOB_ID=7", "CUDA_VISIBLE_DEVICES=0"}
	if diff := cmp.Diff(want, scrub(env)); diff != "" {
		t.Errorf("scrub (-want +got):\n%s", diff)
	}
}

func TestVisibleHasNoHostPaths(t *testing.T) {
	env := []string{"HOME=/home/ada", "PATH=/usr/bin", "SLURM_JOB_ID=7", "CUDA_VISIBLE_DEVICES=0,1", "SSH_AUTH_SOCK=/tmp/x"}
	want := []string{"SLURM_JOB_ID=7", "CUDA_VISIBLE_DEVICES=0,1"}
	if diff := cmp.Diff(want, visible(env)); diff != "" {
		t.Errorf("visible (-want +got):\n%s", diff)
	}
}

func TestLoginEnv(t *testing.T) {
	home := t.TempDir()
	write(t, home+"/.profile", "echo noise\nexport FROM_PROFILE='two\nlines'\n")
	env := loginEnv(t.Context(), []string{"HOME=" + home, "PATH=/usr/bin:/bin", "KEEP=1"})
	for _, want := range []string{"FROM_PROFILE=two\nlines", "KEEP=1", "HOME=" + home} {
		if !slices.Contains(env, want) {
			t.Errorf("login environment lacks %q: %q", want, env)
		}
	}
	for _, e := range env {
		if strings.HasPrefix(e, "SHLVL=") || strings.HasPrefix(e, "_=") {
			t.Errorf("login environment has the shell's own %q", e)
		}
	}
}

func TestLoginEnvOfABrokenProfile(t *testing.T) {
	home := t.TempDir()
	write(t, home+"/.profile", "exit 3\n")
	env := []string{"HOME=" + home, "PATH=/usr/bin:/bin"}
	if diff := cmp.Diff(env, loginEnv(t.Context(), env)); diff != "" {
		t.Errorf("a failing profile must cost its changes only (-want +got):\n%s", diff)
	}
}
