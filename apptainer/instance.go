package apptainer

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

// Info says what an instance is and which processes it has. It may be stored
// as JSON; [Runtime.Attach] makes an Instance of it again, on the same node.
type Info struct {
	Name    string    `json:"name"`
	Image   string    `json:"image,omitempty"`
	Overlay string    `json:"overlay,omitempty"` // directory or ext3 image on the node
	Started time.Time `json:"started,omitzero"`

	Init    Proc   `json:"init"`              // PID 1 of the container
	Parent  Proc   `json:"parent"`            // the runtime's process that waits for Init
	Helpers []Proc `json:"helpers,omitempty"` // FUSE processes that serve image and overlay

	// Fakeroot says how root is mapped: "" not at all, "subuid" with a range
	// of other users, "own" with the own uid only (chown to others fails).
	Fakeroot string `json:"fakeroot,omitempty"`
}

// An Instance is a container that runs on this node, until Stop or until
// something else ends it. It is safe for concurrent use.
type Instance struct {
	Info
	rt *Runtime
}

// Attach makes an Instance of what was stored of one. It looks at nothing; ask
// [Instance.Alive].
func (r *Runtime) Attach(info Info) *Instance { return &Instance{Info: info, rt: r} }

// Runtime is the runtime that the instance belongs to.
func (i *Instance) Runtime() *Runtime { return i.rt }

// Running says whether the container's init runs, in microseconds. It doesn't
// say that a command would work in it: the process that serves its overlay can
// have died.
func (i *Instance) Running() bool { return i.Init.Alive() }

// Alive says whether the instance can be entered: its init runs and the
// runtime lists it. The error is of kind ErrUnavailable, or ctx's.
func (i *Instance) Alive(ctx context.Context) (bool, error) {
	if !i.Running() {
		return false, nil
	}
	list, err := i.rt.list(ctx, i.Name)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list, func(l Listed) bool { return l.Name == i.Name && l.PID == i.Init.PID }), nil
}

// A Listed instance is one that the runtime has a record of.
type Listed struct {
	Name   string `json:"instance"`
	PID    int    `json:"pid"` // of the container's init
	Image  string `json:"img"` // SingularityCE: a temporary directory
	LogErr string `json:"logErrPath"`
	LogOut string `json:"logOutPath"`
}

// List lists our instances on this node: those whose names begin with Prefix.
func (r *Runtime) List(ctx context.Context) ([]Listed, error) {
	return r.list(ctx, Prefix+"*")
}

// list asks the runtime. As a side effect it deletes records of instances
// that have died.
func (r *Runtime) list(ctx context.Context, pattern string) ([]Listed, error) {
	out, err := r.run(ctx, "-s", "instance", "list", "--json", pattern)
	if err != nil {
		return nil, notStarted(ctx, "list instances", err)
	}
	if out.code != 0 {
		return nil, classify("list instances", out.stderr+out.stdout)
	}
	list, err := parseList([]byte(out.stdout))
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "list instances: %w", err)
	}
	return list, nil
}

// parseList parses `instance list --json` and keeps what is ours. There may be
// noise before the object.
func parseList(b []byte) ([]Listed, error) {
	at := strings.IndexByte(string(b), '{')
	if at < 0 {
		return nil, fmt.Errorf("no JSON in %q", clip(string(b), 80))
	}
	var doc struct {
		Instances []Listed `json:"instances"`
	}
	if err := json.Unmarshal(b[at:], &doc); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(doc.Instances, func(l Listed) bool {
		return checkName(l.Name) != nil || l.PID <= 1
	}), nil
}

// inspect fills in what /proc says about an instance whose init is known.
func (i *Instance) inspect(initPID int) error {
	in, st, err := procOf(initPID)
	if err != nil {
		return err
	}
	parent, _, err := procOf(st.ppid)
	if err != nil {
		return err
	}
	if !isTitle(cmdline(parent.PID), i.Name) {
		return fmt.Errorf("process %d is not the parent of instance %s", parent.PID, i.Name)
	}
	i.Init, i.Parent, i.Helpers = in, parent, nil
	for _, pid := range children(parent.PID) {
		if p, _, err := procOf(pid); err == nil && pid != in.PID {
			i.Helpers = append(i.Helpers, p)
		}
	}
	return nil
}

// isTitle says whether a process has the title that the runtimes give the
// parent of an instance: "Apptainer instance: ada [NAME]".
func isTitle(argv []string, name string) bool {
	if len(argv) == 0 {
		return false
	}
	title := strings.TrimRight(argv[0], " ")
	return (strings.HasPrefix(title, "Apptainer instance: ") || strings.HasPrefix(title, "Singularity instance: ")) &&
		strings.HasSuffix(title, " ["+name+"]")
}

// titleName is the instance name in a title, or empty.
func titleName(argv []string) string {
	if len(argv) == 0 {
		return ""
	}
	title := strings.TrimRight(argv[0], " ")
	at := strings.LastIndexByte(title, '[')
	if at < 0 || !strings.HasSuffix(title, "]") || !isTitle(argv, title[at+1:len(title)-1]) {
		return ""
	}
	return title[at+1 : len(title)-1]
}

// rootfsHelpers finds the helpers of SingularityCE: sessions of their own that
// serve the temporary mount which its list gives as the image.
func rootfsHelpers(img string) []Proc {
	dir := filepath.Dir(img)
	if !strings.HasPrefix(filepath.Base(dir), "rootfs-") {
		return nil
	}
	pids, _ := ownPIDs()
	var out []Proc
	for _, pid := range pids {
		mentions := func(arg string) bool { return arg == dir || strings.HasPrefix(arg, dir+"/") }
		if !slices.ContainsFunc(cmdline(pid), mentions) {
			continue
		}
		if p, _, err := procOf(pid); err == nil && isHelper(p.Name) {
			out = append(out, p)
		}
	}
	return out
}

// isHelper says whether a process name is that of a FUSE program that the
// runtimes use. The kernel cuts names at 15 characters.
func isHelper(comm string) bool {
	for _, h := range []string{"squashfuse", "fuse-overlayfs", "fuse2fs", "gocryptfs"} {
		if strings.HasPrefix(comm, h) {
			return true
		}
	}
	return false
}

// logTail is the end of the instance's own log, which has what its payload
// said when it failed.
func logTail(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	const n = 2000
	if st, err := f.Stat(); err == nil && st.Size() > n {
		f.Seek(-n, 2)
	}
	b := make([]byte, n)
	got, _ := f.Read(b)
	return strings.TrimSpace(strings.ToValidUTF8(string(b[:got]), "?"))
}

// notStarted is the error of a call of the runtime that didn't come about.
func notStarted(ctx context.Context, what string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%s: %w", what, cause)
	}
	return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: %w", what, err)
}
