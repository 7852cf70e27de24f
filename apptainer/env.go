package apptainer

import (
	"encoding/json"
	"os"
	"strings"

	"github.com/hpcexec/hpcexec"
)

// keepEnv are the variables that the runtime's own process gets. All others
// stay out: APPTAINER_BIND and its like act as flags and reach through
// --containall, the bus addresses make it ask systemd for a cgroup (which
// fails at random when many start at once), and loader variables change which
// libraries it loads.
var keepEnv = []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TERM"}

// baseEnv is the environment for the runtime's own process, made from the
// caller's.
func (r *Runtime) baseEnv(from []string) []string {
	var out []string
	for _, e := range hpcexec.MergeEnv(from) {
		name, value, _ := strings.Cut(e, "=")
		for _, k := range keepEnv {
			if name == k {
				out = append(out, e)
			}
		}
		// SingularityCE fails where TMPDIR is missing; a Slurm job's often is.
		if name == "TMPDIR" && isDir(value) {
			out = append(out, e)
		}
	}
	// The helpers (squashfuse, fuse-overlayfs, newuidmap) are looked up in
	// PATH too, and a cron job's has no sbin.
	out = hpcexec.MergeEnv([]string{"PATH=" + defaultPath}, out)
	if r.ConfigDir != "" && r.Flavor == Apptainer {
		// Records and logs, which are otherwise below the home: a home over
		// its quota, or read-only, can start nothing then. It is safe since
		// the directory is this node's alone and every call of ours names it.
		// Not for SingularityCE, which moves the logs and not the records, so
		// that its list shows nothing.
		out = append(out, "APPTAINER_CONFIGDIR="+r.ConfigDir)
	}
	return out
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// ScrubEnv is an environment without the variables that a runtime reads, so
// that a [Wrapper]'s base has none of them.
func ScrubEnv(env []string) []string {
	var out []string
	for _, e := range env {
		if !strings.HasPrefix(e, "APPTAINER") && !strings.HasPrefix(e, "SINGULARITY") {
			out = append(out, e)
		}
	}
	return out
}

// prefixed turns NAME=VALUE into the variable that the runtime passes into the
// container as NAME. This keeps values out of argv, and together with
// --no-eval keeps their bytes. HOME can't be set so, nor can a value that
// isn't UTF-8 (it travels as JSON).
func (r *Runtime) prefixed(env []string) []string {
	out := make([]string, len(env))
	for i, e := range env {
		out[i] = r.Flavor.envPrefix() + "ENV_" + e
	}
	return out
}

// Environ is the environment for the process that [Instance.Argv] describes:
// what the runtime needs, and env for the command as prefix variables.
func (i *Instance) Environ(env []string) []string {
	return append(i.rt.baseEnv(os.Environ()), i.rt.prefixed(hpcexec.MergeEnv(env))...)
}

// Limits of a call. The runtime packs arguments and environment as JSON into
// one variable and refuses more than maxConfig; some of it is taken by the
// instance's own settings. maxEntry is the kernel's limit of one string.
const (
	maxConfig = 1048448 - 96<<10
	maxEntry  = 128<<10 - 1
)

// checkSize refuses what the runtime or the kernel would refuse, with a text
// that says so. Values don't appear in it.
func checkSize(argv []string, envs ...[]string) error {
	total := 0
	for i, a := range argv {
		if len(a) > maxEntry {
			return hpcexec.Errorf(hpcexec.ErrInvalid, "argument %d is %d bytes long, more than %d", i, len(a), maxEntry).
				WithHint("pass it on stdin or in a file")
		}
		total += jsonSize(a)
	}
	for _, env := range envs {
		for _, e := range env {
			if name, _, _ := strings.Cut(e, "="); len(e) > maxEntry {
				return hpcexec.Errorf(hpcexec.ErrInvalid, "environment variable %s is %d bytes long, more than %d", name, len(e), maxEntry).
					WithHint("pass it on stdin or in a file")
			}
			total += jsonSize(e)
		}
	}
	if total > maxConfig {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "arguments and environment take %d bytes, more than the %d that the runtime can pass", total, maxConfig).
			WithHint("pass large values on stdin or in a file")
	}
	return nil
}

// jsonSize is the length of a string and its comma in JSON.
func jsonSize(s string) int {
	b, _ := json.Marshal(s) // a string can't fail
	return len(b) + 1
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}
