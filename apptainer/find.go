package apptainer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hpcexec/hpcexec"
)

// A Runtime is an Apptainer or SingularityCE of this machine. Its fields are
// plain values: it may be stored as JSON and used by another process of the
// same user on the same node. It is safe for concurrent use.
type Runtime struct {
	Path    string  `json:"path"` // absolute
	Flavor  Flavor  `json:"flavor"`
	Version Version `json:"version"`
	// SetUID: containers are set up by a setuid program. Else it is done in
	// a user namespace.
	SetUID bool `json:"setuid,omitempty"`

	// RunDir is a directory of the caller's, private (0700) and on a local
	// file system of this node. Locks, pid files and what starts print are
	// kept in it. Starting and stopping need it.
	RunDir string `json:"run_dir,omitempty"`
	// ConfigDir is where Apptainer keeps its records of instances; empty
	// is its default in the home. It has no effect on SingularityCE. All
	// calls for one instance must agree on it. A person who looks for our
	// instances types APPTAINER_CONFIGDIR=… apptainer instance list.
	ConfigDir string `json:"config_dir,omitempty"`
}

// FindOptions say where to look for the runtime, in this order: Path,
// Prefixes, the usual places of sites, Module.
type FindOptions struct {
	// Path is a list of directories as in $PATH; empty is the caller's PATH.
	Path string
	// Prefixes are more directories to look in; patterns are expanded.
	Prefixes []string
	// Module finds a program by the site's environment modules; may be nil.
	// An error is no failure, it is told with the places looked at.
	Module func(ctx context.Context) (bin string, err error)

	// RunDir and the default ConfigDir (RunDir/apptainer) of the Runtime.
	// What a program says of itself is remembered in RunDir.
	RunDir string
	// KeepConfigDir leaves Apptainer's records in the home.
	KeepConfigDir bool

	// NoUsual leaves out the usual places of sites. For tests.
	NoUsual bool
}

// usualPlaces are where sites install it, beside PATH. The last of several
// matches of a pattern is the newest release, as a rule.
var usualPlaces = []string{
	"/opt/apptainer/bin",
	"/opt/apptainer/*/bin",
	"/usr/local/bin",
	"/opt/apps/apptainer/*/bin",
	"/opt/ohpc/pub/apps/apptainer/*/bin",
	"/apps/apptainer/*/bin",
	"/sw/apptainer/*/bin",
	"/usr/local/apptainer/bin",
	"/usr/local/apptainer/*/bin",
	"/usr/bin",
	"/cvmfs/oasis.opensciencegrid.org/mis/apptainer/bin",
	"/opt/singularity/bin",
	"/opt/singularity-ce/*/bin",
	"/opt/apps/singularity/*/bin",
	"/usr/local/singularity/bin",
	"/apps/singularity/*/bin",
}

// Find finds the runtime of this machine and asks it what it is. Where there
// is none, or none that works, the error (ErrUnavailable) says where it looked
// and what was wrong with what it found.
func Find(ctx context.Context, o FindOptions) (*Runtime, error) {
	path := o.Path
	if path == "" {
		path = os.Getenv("PATH")
	}
	var looked, wrong []string
	seen := map[string]bool{}
	try := func(bin string) *Runtime {
		if seen[bin] {
			return nil
		}
		seen[bin] = true
		r, err := Probe(ctx, bin, o)
		if err != nil {
			wrong = append(wrong, err.Error())
			return nil
		}
		return r
	}
	in := func(dir string) *Runtime {
		if !filepath.IsAbs(dir) || slices.Contains(looked, dir) {
			return nil // a relative PATH entry is nobody's installation
		}
		looked = append(looked, dir)
		for _, name := range []string{"apptainer", "singularity"} {
			bin := filepath.Join(dir, name)
			if st, err := os.Stat(bin); err != nil || st.IsDir() || st.Mode()&0o111 == 0 {
				continue
			}
			if r := try(bin); r != nil {
				return r
			}
		}
		return nil
	}

	places := filepath.SplitList(path)
	more := slices.Clone(o.Prefixes)
	if !o.NoUsual {
		more = append(more, usualPlaces...)
	}
	for _, pattern := range more {
		dirs, err := filepath.Glob(pattern)
		if err != nil || len(dirs) == 0 {
			looked = append(looked, pattern) // for the error's text
			continue
		}
		slices.Reverse(dirs)
		places = append(places, dirs...)
	}
	for _, dir := range places {
		if r := in(dir); r != nil {
			return r, nil
		}
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
	}
	if o.Module != nil {
		bin, err := o.Module(ctx)
		if err == nil {
			if r := try(bin); r != nil {
				return r, nil
			}
		} else {
			wrong = append(wrong, "modules: "+err.Error())
		}
	}
	text := "no apptainer or singularity on this machine; looked in " + strings.Join(looked, ", ")
	if len(wrong) > 0 {
		text += "; " + strings.Join(wrong, "; ")
	}
	return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s", text).
		WithHint("put its directory in PATH, or load its module first; if the site has none, ask for Apptainer")
}

// Probe asks one program what it is. The error is of kind ErrUnavailable.
func Probe(ctx context.Context, bin string, o FindOptions) (*Runtime, error) {
	r := &Runtime{Path: bin, RunDir: o.RunDir}
	key, cached := "", ""
	if o.RunDir != "" {
		if real, err := filepath.EvalSymlinks(bin); err == nil {
			if st, err := os.Stat(real); err == nil {
				key = fmt.Sprintf("%s|%s|%d|%d", bin, real, st.Size(), st.ModTime().UnixNano())
				cached = filepath.Join(o.RunDir, "apptainer-probe.json")
			}
		}
	}
	done := func() *Runtime {
		if r.RunDir != "" && !o.KeepConfigDir && r.Flavor == Apptainer {
			r.ConfigDir = filepath.Join(r.RunDir, "apptainer")
		}
		return r
	}
	if p, ok := readProbe(cached, key); ok {
		r.Flavor, r.Version, r.SetUID = p.Flavor, p.Version, p.SetUID
		return done(), nil
	}

	// Both questions at once: each takes the program 20 ms to start up.
	var version, config string
	var verErr, cfgErr error
	var wg sync.WaitGroup
	wg.Go(func() { version, verErr = r.ask(ctx, "--version") })
	wg.Go(func() { config, cfgErr = r.ask(ctx, "buildcfg") })
	wg.Wait()
	if verErr != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s doesn't work: %w", bin, verErr)
	}
	var err error
	if r.Flavor, r.Version, err = ParseVersion(version); err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s is no container runtime: %w", bin, err)
	}
	if cfgErr == nil { // releases before 3.3 have no such command
		c := parseBuildConfig(config)
		conf, _ := os.ReadFile(c.confFile)
		r.SetUID = c.setUID && setUIDAllowed(string(conf))
	}
	writeProbe(cached, probe{Key: key, Time: time.Now(), Flavor: r.Flavor, Version: r.Version, SetUID: r.SetUID})
	return done(), nil
}

// ask runs the program with one argument and returns what it printed.
func (r *Runtime) ask(ctx context.Context, arg string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := r.run(ctx, arg)
	if err != nil {
		return "", err
	}
	if out.code != 0 {
		return "", fmt.Errorf("%s %s: %s: %s", filepath.Base(r.Path), arg, exitText(out.code, ""), clip(out.stderr+out.stdout, 200))
	}
	return out.stdout, nil
}

// probe is what is remembered about a program, in RunDir/apptainer-probe.json.
type probe struct {
	Key     string    `json:"key"` // path, real path, size, time
	Time    time.Time `json:"time"`
	Flavor  Flavor    `json:"flavor"`
	Version Version   `json:"version"`
	SetUID  bool      `json:"setuid"`
}

// A probe is good for a day: the program may be a script that calls another.
const probeAge = 24 * time.Hour

func readProbe(file, key string) (probe, bool) {
	var p probe
	b, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(b, &p) != nil || p.Key != key || key == "" {
		return probe{}, false
	}
	age := time.Since(p.Time)
	return p, age >= 0 && age < probeAge
}

// writeProbe is best effort: without it the next Find asks again.
func writeProbe(file string, p probe) {
	if file == "" {
		return
	}
	b, err := json.Marshal(p)
	if err != nil {
		return
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".probe-*")
	if err != nil {
		return
	}
	_, err = tmp.Write(b)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
}

// output is how a short call of the runtime ended.
type output struct {
	stdout, stderr string
	code           int // exit code, 128+n after signal n
}

// run makes a short call of the runtime that starts nothing which stays. Its
// error is that of starting it, or ctx's.
func (r *Runtime) run(ctx context.Context, args ...string) (output, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, r.Path, args...)
	cmd.Env = r.baseEnv(os.Environ())
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if cause := context.Cause(ctx); cause != nil {
		return output{}, cause
	}
	if cmd.ProcessState == nil {
		return output{}, err
	}
	return output{stdout.String(), stderr.String(), exitCode(cmd.ProcessState)}, nil
}

func exitCode(st *os.ProcessState) int {
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return st.ExitCode()
}
