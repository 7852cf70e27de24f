package apptainer

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
)

// Found is one of our instances that runs on this node.
type Found struct {
	*Instance
	// Listed: the runtime knows of it, so commands can enter it. One that has
	// lost its record runs on all the same, and can only be stopped.
	Listed bool
}

// Adopt finds our instances on this node, whoever started them, by the titles
// of their processes. What isn't known of an instance from outside (Image
// aside, all of the options) is empty. Records of instances that have died,
// as after a crash or a reboot, are deleted by the runtime as it is asked.
func (r *Runtime) Adopt(ctx context.Context) ([]Found, error) {
	list, err := r.List(ctx)
	if err != nil {
		return nil, err
	}
	var out []Found
	for _, i := range r.titled("") {
		f := Found{Instance: i}
		for _, l := range list {
			if l.Name == i.Name && (l.PID == i.Init.PID || i.Init.PID == 0) {
				f.Listed, f.Image = true, l.Image
			}
		}
		out = append(out, f)
	}
	return out, nil
}

// Holders are the processes on this node that have an overlay open for a
// container: FUSE helpers of ours, for a directory by its upper, for an image
// by the file. Kernel overlays and other users' processes don't show.
func Holders(overlay string) ([]Proc, error) {
	file := overlay
	if isDir(overlay) {
		file = filepath.Join(overlay, "upper")
	}
	var want unix.Stat_t
	if err := unix.Stat(file, &want); err != nil {
		return nil, pathError("overlay", file, err)
	}
	pids, err := ownPIDs()
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "look for processes: %w", err)
	}
	var out []Proc
	for _, pid := range pids {
		p, st, err := procOf(pid)
		if err == nil && st.state != 'Z' && isHelper(p.Name) && hasOpen(pid, want) {
			out = append(out, p)
		}
	}
	return out, nil
}

// hasOpen says whether a process has a file open. The links in /proc/PID/fd
// lead to the file itself, also where its path means another one out here.
func hasOpen(pid int, want unix.Stat_t) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(fds, func(e os.DirEntry) bool {
		var st unix.Stat_t
		err := unix.Stat(filepath.Join(dir, e.Name()), &st)
		return err == nil && st.Dev == want.Dev && st.Ino == want.Ino
	})
}

// Cleanup ends the helpers that a crash has left over and that keep an overlay
// in use: Apptainer's, when the parent of their instance was killed. The
// caller must hold the overlay's lease. Helpers of an instance that runs are
// left alone. It says how many it ended.
func (r *Runtime) Cleanup(ctx context.Context, overlay string) (int, error) {
	holders, err := Holders(overlay)
	if err != nil {
		return 0, err
	}
	var end []Proc
	for _, h := range holders {
		if !orphaned(h.PID) {
			continue
		}
		end = append(end, h)
		// Its sister that serves the image has nothing of the overlay open,
		// but is in the same session, which was the instance's.
		st, err := readStat(h.PID)
		if err != nil {
			continue
		}
		pids, _ := ownPIDs()
		for _, pid := range pids {
			p, ps, err := procOf(pid)
			if err == nil && p != h && ps.sess == st.sess && st.sess != 0 && isHelper(p.Name) && orphaned(pid) {
				end = append(end, p)
			}
		}
	}
	return endHelpers(ctx, 0, end)
}

// freeOverlay makes sure that nothing of ours on this node has an overlay open.
// The runtimes don't: Apptainer lets two containers write to one directory,
// each with a stale view of it, and what a crash has left goes on writing too.
func (r *Runtime) freeOverlay(ctx context.Context, overlay string) error {
	holders, err := Holders(overlay)
	if err != nil || len(holders) == 0 {
		return err
	}
	if _, err := r.Cleanup(ctx, overlay); err != nil {
		return err
	}
	if holders, err = Holders(overlay); err != nil || len(holders) == 0 {
		return err
	}
	st, _ := readStat(holders[0].PID)
	who := clip(strings.Join(cmdline(st.ppid), " "), 100)
	e := hpcexec.Errorf(hpcexec.ErrUnavailable, "overlay %s is in use on this node by process %d (%s) of %q", overlay, holders[0].PID, holders[0].Name, who)
	e.Err = ErrOverlayInUse
	return e.WithHint("stop the session or container that uses it")
}

// orphaned says whether the runtime's process that started a helper is gone.
// While it lives it is the helper's parent, with a title of the runtime's.
func orphaned(pid int) bool {
	st, err := readStat(pid)
	if err != nil {
		return false
	}
	argv := cmdline(st.ppid)
	return len(argv) == 0 || !strings.HasPrefix(argv[0], "Apptainer ") && !strings.HasPrefix(argv[0], "Singularity ")
}
