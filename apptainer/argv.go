package apptainer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/hpcexec/hpcexec"
)

// Prefix begins the names of our instances. Others are never touched.
const Prefix = "hpcexec-"

// Names longer than maxName are refused: the runtime's record is a file of
// this name, and 250 characters is where file systems end.
const maxName = 128

var namePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9._-]+$`) })

// InstanceName is the name of the instance of a session. A session name of
// characters that a runtime refuses, or too long, is replaced by its hash.
func InstanceName(session string) string {
	if name := Prefix + session; session != "" && len(name) <= maxName && namePattern().MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(session))
	return Prefix + hex.EncodeToString(sum[:12])
}

// checkName refuses what the runtimes would refuse, and more. It must be
// called before they see the name: SingularityCE leaves a mounted file system
// and a process behind when it refuses one, and list and stop take patterns.
func checkName(name string) error {
	switch {
	case !strings.HasPrefix(name, Prefix) || len(name) == len(Prefix):
		return hpcexec.Errorf(hpcexec.ErrInvalid, "instance name %q doesn't begin with %q", name, Prefix)
	case len(name) > maxName:
		return hpcexec.Errorf(hpcexec.ErrInvalid, "instance name is %d characters long, more than %d", len(name), maxName)
	case !namePattern().MatchString(name):
		return hpcexec.Errorf(hpcexec.ErrInvalid, "instance name %q has other characters than letters, digits, '.', '_' and '-'", name)
	}
	return nil
}

// A Mount binds a file or directory of the node into the container.
type Mount struct {
	Src string `json:"src"`          // absolute on the node; must exist
	Dst string `json:"dst"`          // absolute in the container; made if it isn't there
	RO  bool   `json:"ro,omitempty"` // read-only
}

// arg is the value for --mount. It is read as one line of CSV, so that a field
// with a comma or quote is quoted as a whole; --bind, which splits at ':' and
// ',', has escapes that SingularityCE doesn't know.
func (m Mount) arg() (string, error) {
	for _, p := range []string{m.Src, m.Dst} {
		if !filepath.IsAbs(p) {
			return "", hpcexec.Errorf(hpcexec.ErrInvalid, "bind mount: path %q is not absolute", p)
		}
		// A line break ends the CSV record; NUL can't be in an argument.
		if strings.ContainsAny(p, "\x00\n\r") {
			return "", hpcexec.Errorf(hpcexec.ErrInvalid, "bind mount: path %q has a line break", p)
		}
	}
	out := "type=bind," + csvField("source="+m.Src) + "," + csvField("destination="+m.Dst)
	if m.RO {
		out += ",ro"
	}
	return out, nil
}

// csvField quotes a field of a CSV line (RFC 4180) where it needs it.
func csvField(s string) string {
	if !strings.ContainsAny(s, `,"`) && !strings.HasPrefix(s, " ") {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}

// checkOverlayPath refuses what --overlay can't express: it splits at ',' into
// several overlays and at ':' into path and option, and has no escape.
func checkOverlayPath(path string) error {
	if !filepath.IsAbs(path) {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "overlay path %q is not absolute", path)
	}
	if i := strings.IndexAny(path, ":,\x00\n"); i >= 0 {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "overlay path %q has a %q, which the runtime can't take", path, path[i]).
			WithHint("rename or move it: ',' and ':' must not be in the path of an overlay or layer")
	}
	return nil
}

// A GPU says which GPU support a container gets.
type GPU string

const (
	GPUAuto GPU = "auto" // by the device files of the node; the same as ""
	GPUNV   GPU = "nv"   // NVIDIA
	GPUROCm GPU = "rocm" // AMD
	GPUNone GPU = "none"
)

// flags gives the options for g. The runtimes succeed with --nv where there is
// no GPU, so Auto looks for the device files itself.
func (g GPU) flags(exists func(string) bool) ([]string, error) {
	switch g {
	case GPUNV:
		return []string{"--nv"}, nil
	case GPUROCm:
		return []string{"--rocm"}, nil
	case GPUNone:
		return nil, nil
	case GPUAuto, "":
		var out []string
		if exists("/dev/nvidiactl") {
			out = append(out, "--nv")
		}
		if exists("/dev/kfd") {
			out = append(out, "--rocm")
		}
		return out, nil
	}
	return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "GPU support %q is not auto, nv, rocm or none", g)
}

// startArgv is the call that starts an instance, from the program on. The
// options are checked here; exists asks for files of the node.
func (r *Runtime) startArgv(o StartOptions, overlayIsDir bool, pidFile string, exists func(string) bool) ([]string, error) {
	argv := []string{r.Path, "-s", "instance", "start", "--containall", "--no-home", "--no-eval"}
	// A setuid installation mounts with the host's root, which refuses a
	// user's directory as an overlay. In a user namespace it is allowed.
	if r.SetUID && (overlayIsDir || o.Fakeroot) {
		argv = append(argv, "--userns")
	}
	if o.Fakeroot {
		argv = append(argv, "--fakeroot")
	}
	if o.Home != "" {
		if !filepath.IsAbs(o.Home) || strings.ContainsAny(o.Home, ":,\x00\n") {
			return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "home %q is not an absolute path without ':' and ','", o.Home)
		}
		argv = append(argv, "--home", o.Home)
	}
	// Later overlays are higher. The writable one is the highest wherever it
	// stands; last is where a reader expects it.
	for _, l := range o.Layers {
		if err := checkOverlayPath(l); err != nil {
			return nil, err
		}
		argv = append(argv, "--overlay", l+":ro")
	}
	if o.Overlay != "" {
		if err := checkOverlayPath(o.Overlay); err != nil {
			return nil, err
		}
		argv = append(argv, "--overlay", o.Overlay)
	}
	if o.WorkDir != "" {
		if !filepath.IsAbs(o.WorkDir) {
			return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "work directory %q is not absolute", o.WorkDir)
		}
		argv = append(argv, "--workdir", o.WorkDir)
	}
	for _, m := range o.Mounts {
		arg, err := m.arg()
		if err != nil {
			return nil, err
		}
		argv = append(argv, "--mount", arg)
	}
	gpu, err := o.GPU.flags(exists)
	if err != nil {
		return nil, err
	}
	argv = append(argv, gpu...)
	if o.NetNone {
		// SingularityCE ignores --network without --net.
		argv = append(argv, "--net", "--network", "none")
	}
	if pidFile != "" {
		argv = append(argv, "--pid-file", pidFile)
	}
	if !filepath.IsAbs(o.Image) {
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "image path %q is not absolute", o.Image)
	}
	return append(argv, o.Image, o.Name), nil
}

// ExecOptions say how a command enters an instance.
type ExecOptions struct {
	// Dir is the working directory, absolute in the container; empty is "/".
	// It must exist: SingularityCE runs the command in "/" where it doesn't,
	// Apptainer fails.
	Dir string
}

// Argv is the call that runs a command in the instance, from the program on.
// The command inherits all descriptors of the call, also those above 2. Start
// it with the environment that [Instance.Environ] makes.
//
// --cleanenv and --no-eval must be on every exec: what start was given doesn't
// count, the whole environment of the node would be passed in, and values be
// evaluated by a shell.
func (i *Instance) Argv(o ExecOptions, argv ...string) []string {
	dir := o.Dir
	if dir == "" {
		dir = "/"
	}
	out := []string{i.rt.Path, "-s", "exec", "--cleanenv", "--no-eval", "--pwd", dir, "instance://" + i.Name}
	return append(out, argv...)
}

// exitText says how a call of the runtime ended, for error texts.
func exitText(code int, signal string) string {
	if signal != "" {
		return "ended by signal " + signal
	}
	return fmt.Sprintf("exit code %d", code)
}
