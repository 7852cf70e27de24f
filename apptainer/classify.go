package apptainer

import (
	"errors"
	"regexp"
	"strings"
	"sync"

	"github.com/hpcexec/hpcexec"
)

// What a caller may match with errors.Is, beside the kinds of package hpcexec.
var (
	// ErrExists: an instance of this name runs on this node.
	ErrExists = errors.New("instance already exists")

	// ErrNotFound: no instance of this name runs on this node.
	ErrNotFound = errors.New("no such instance")

	// ErrOverlayInUse: something else has the overlay open.
	ErrOverlayInUse = errors.New("overlay in use")

	// ErrOverlayDropped: the container runs, but not on the overlay that was
	// asked for. SingularityCE drops it without a word where its probe fails.
	ErrOverlayDropped = errors.New("overlay not mounted")

	// ErrNoUserNamespace: the kernel or a security module refuses user
	// namespaces, which an unprivileged runtime can't do without.
	ErrNoUserNamespace = errors.New("user namespaces not allowed")

	// errNeedsBus marks a release that can't do without the user's systemd.
	errNeedsBus = errors.New("runtime insists on a D-Bus session")

	// errTransient marks failures that come with many starts at once and go
	// away when one is tried again.
	errTransient = errors.New("transient failure of the runtime")
)

// A rule maps a message of a runtime to an error. $1 and so on in text and
// hint stand for the pattern's groups.
type rule struct {
	pattern    *regexp.Regexp
	kind       error
	cause      error // may be nil
	text, hint string
}

// rules hold the messages of Apptainer 1.4 and SingularityCE 4.5 that we know,
// the most special first. testdata/fatal holds what they really print.
var rules = sync.OnceValue(func() []rule {
	return []rule{
		{re(`instance (\S+) already exists`), hpcexec.ErrInvalid, ErrExists,
			"an instance $1 runs on this node", "stop it, or choose another name"},
		{re(`no instance found with name (\S+)|no instance found`), hpcexec.ErrUnavailable, ErrNotFound,
			"no instance of this name runs on this node", "start the session again"},
		{re(`could not open proc directory /proc/\d+`), hpcexec.ErrUnavailable, ErrNotFound,
			"the instance has just ended", "start the session again"},
		{re(`(\S+) is not a valid instance name`), hpcexec.ErrInvalid, nil,
			"$1 is not a valid instance name", "use letters, digits, '.', '_' and '-'"},

		// Images.
		{re(`could not open image \S+?: failed to retrieve path for (\S+?): .*no such file`), hpcexec.ErrInvalid, nil,
			"image $1: no such file", "check the path; it must exist on the node where the session runs"},
		{re(`failed to retrieve path for (\S+?): .*permission denied`), hpcexec.ErrInvalid, nil,
			"image $1: permission denied", "its directories must be searchable (chmod +x), its file readable"},
		{re(`image's architecture \((\S+?)\) could not run on the host's \((\S+?)\)`), hpcexec.ErrInvalid, nil,
			"image is built for $1, this machine is $2", "use an image for $2"},
		{re(`exec format error`), hpcexec.ErrInvalid, nil,
			"image is built for another kind of CPU", "use an image for this machine's CPU"},
		{re(`failed to open overlay image (\S+?): .*no such file`), hpcexec.ErrInvalid, nil,
			"overlay $1: no such file or directory", "create the overlay first"},
		{re(`can't open (\S+) for (?:writing|reading), currently in use`), hpcexec.ErrUnavailable, ErrOverlayInUse,
			"overlay $1 is in use by another process", "stop the session that holds it; after a crash its FUSE helpers may have to be ended (hpcexec doctor)"},
		{re(`(\S+) is not readable by the current user`), hpcexec.ErrInvalid, nil,
			"$1 is not readable", "ask its owner for read permission"},
		{re(`only root user can use sandbox as overlay`), hpcexec.ErrUnavailable, nil,
			"this setuid installation takes no directory as an overlay", "use an ext3 overlay, or ask the site to allow user namespaces"},
		{re(`(?:squashfuse\w*|fuse2fs|fuse-overlayfs)[^:]* exited.*failed to open /dev/fuse|fuse: device not found|/dev/fuse: (?:no such|permission|operation)`), hpcexec.ErrUnavailable, nil,
			"/dev/fuse can't be opened on this node", "ask the site for a readable and writable /dev/fuse (chmod 666), or use a sandbox directory as image"},
		{re(`squashfuse\w* exited.*trying to read the squashfs image|not a valid squashfs image|[Ff]ile ?system corruption detected`), hpcexec.ErrInvalid, nil,
			"image is damaged: its file system can't be read", "copy or build it again; a copy that was cut off is the usual cause"},
		{re(`image format not recognized`), hpcexec.ErrInvalid, nil,
			"image or overlay is not of a format that the runtime knows", "give a SIF file or a sandbox directory; an overlay must be a directory, ext3 or squashfs"},
		{re(`destination /\S* doesn't exist in container`), hpcexec.ErrInvalid, nil,
			"image has no usable root directory", "a sandbox directory must hold a whole system with /dev, /proc and /bin/sh"},

		// Overlays.
		{re(`can't specify more than one writable overlay`), hpcexec.ErrInvalid, nil,
			"more than one writable overlay", "all layers but one must be read-only"},
		{re(`overlay upper dir failed.* is not writable`), hpcexec.ErrInvalid, nil,
			"overlay: its upper directory isn't writable", "the overlay must belong to you and be writable"},
		{re(`--writable-tmpfs with another writable overlay`), hpcexec.ErrInvalid, nil,
			"a writable tmpfs and a writable overlay exclude each other", "go without the tmpfs"},
		{re(`transport endpoint is not connected`), hpcexec.ErrUnavailable, nil,
			"the process that serves the container's files has died", "stop the session and start it again; running out of memory is the usual cause"},
		{re(`failed to create (\S+) directory: permission denied`), hpcexec.ErrInvalid, nil,
			"overlay: can't create $1", "the overlay must belong to you and be writable"},
		{re(`no loop devices available|failed to find loop device`), hpcexec.ErrUnavailable, nil,
			"this installation can't mount an image file as a layer (no loop devices, no FUSE helper)", "use directories as overlay and layers, or ask the site for squashfuse, fuse2fs and fuse-overlayfs"},
		{re(`bad superblock|fuse2fs[^:]* exited`), hpcexec.ErrInvalid, nil,
			"overlay image is damaged: its file system can't be read", "check it with e2fsck -f"},

		// The node.
		{re(`[Ff]ailed to create user namespace|user namespaces? (?:is |are )?(?:disabled|not (?:allowed|enabled|supported))|maximum number of user namespaces exceeded|[Uu]ser namespace requirement`), hpcexec.ErrUnavailable, ErrNoUserNamespace,
			"user namespaces are not allowed on this node", "ask the site: sysctl user.max_user_namespaces > 0 and kernel.unprivileged_userns_clone = 1; on Ubuntu 24.04 kernel.apparmor_restrict_unprivileged_userns = 0 or an AppArmor profile for the runtime"},
		{re(`no valid mapping entry found for (\S+)`), hpcexec.ErrInvalid, nil,
			"fakeroot: no subuid range for user $1", "ask the site for an entry in /etc/subuid and /etc/subgid, or go without --fakeroot"},
		{re(`failed to connect to dbus|[Ff]ailed to connect to bus|org\.freedesktop\.systemd1`), hpcexec.ErrUnavailable, errTransient,
			"the system's D-Bus refuses connections", "try again with fewer starts at once"},
		{re(`rootless cgroups require a D-Bus session`), hpcexec.ErrUnavailable, errNeedsBus,
			"this release insists on a D-Bus session", "log in by ssh, or use Apptainer 1.2.4 or later"},
		{re(`cannot use cgroups|cgroups? config|cgroup management|applying cgroups`), hpcexec.ErrUnavailable, nil,
			"this node lets users set no resource limits (cgroups)", "go without limits of the container; Slurm's own apply"},
		{re(`non-root users can only use --network=none`), hpcexec.ErrInvalid, nil,
			"a user may only have the network \"none\" or the node's own", "use --net none, or leave it out"},
		{re(`[Rr]esource temporarily unavailable|[Tt]oo many open files|[Dd]evice or resource busy|[Tt]ext file busy|interrupted system call|failed to find a free`), hpcexec.ErrUnavailable, errTransient,
			"the node is short of processes, files or devices at the moment", "try again; check ulimit -u and ulimit -n"},
		{re(`[Nn]o space left on device|[Dd]isk quota exceeded`), hpcexec.ErrUnavailable, nil,
			"no space left, or quota exceeded", "free some space (hpcexec quota), in the home too: the runtime keeps its records there"},
		{re(`failed to create instance log files|could not create instance|failed to create .*/instances`), hpcexec.ErrUnavailable, nil,
			"the runtime can't write its records", "its directory under the home must be writable and not over quota"},
		{re(`could not create temporary directory`), hpcexec.ErrUnavailable, nil,
			"the runtime can't create a temporary directory", "TMPDIR must name a directory that exists and is writable"},
		{re(`engine configuration too big`), hpcexec.ErrInvalid, nil,
			"arguments and environment are together too large for the runtime (1 MiB)", "pass large values in a file or on stdin"},

		// Mounts and directories. Late in the table, for "no such file" is in
		// other messages too.
		{re(`mount source (\S+?):? .*(?:no such file|doesn't exist)|mount (\S+?)->\S+ error.*no such file|while mounting? .*?(/\S+): no such file`), hpcexec.ErrInvalid, nil,
			"bind mount: $1$2$3: no such file or directory", "what is bound must exist on the node where the session runs"},
		{re(`failed to create (\S+)/(?:tmp|var_tmp|scratch)`), hpcexec.ErrInvalid, nil,
			"work directory $1 is missing or not writable", "create it first"},
		{re(`"([^"]+)": executable file not found`), hpcexec.ErrUnavailable, nil,
			"$1 not found in the container", "the image must have it; if it worked before, the overlay's helper process has died (out of memory?): stop the session and start it again"},
		{re(`stat /bin/sh: no such file|/bin/sh: no such file`), hpcexec.ErrInvalid, nil,
			"image has no /bin/sh", "use an image with a shell"},
		{re(`unknown (?:shorthand )?flag: ?(.*)`), hpcexec.ErrUnavailable, nil,
			"this release of the runtime doesn't know the option $1", "a newer Apptainer is needed (1.1 or later)"},
	}
})

func re(s string) *regexp.Regexp { return regexp.MustCompile(s) }

var ansiCodes = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]") })

// messages finds what a runtime says went wrong. The first FATAL line counts
// before all others, for those that follow are echoes ("while executing
// starter: exit status 255"); then errors in order, then usage errors.
func messages(text string) []string {
	text = ansiCodes().ReplaceAllString(text, "")
	var fatal, errs, other []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		level, msg, ok := strings.Cut(line, ":")
		msg = strings.TrimSpace(msg)
		switch {
		case strings.HasPrefix(msg, "while executing starter: failed to start instance"):
			other = append(other, msg)
		case ok && strings.TrimSpace(level) == "FATAL":
			fatal = append(fatal, msg)
		case strings.Contains(msg, "container cleanup failed"):
			// An echo too, before the FATAL; "no instance found" is its reason.
		case ok && strings.TrimSpace(level) == "ERROR":
			errs = append(errs, msg)
		case strings.HasPrefix(line, "Error for command"):
			errs = append(errs, line)
		case line != "":
			other = append(other, line)
		}
	}
	var out []string
	if len(fatal) > 0 {
		out, fatal = append(out, fatal[0]), fatal[1:]
	}
	out = append(out, errs...)
	out = append(out, fatal...)
	return append(out, other...)
}

// classify turns what a runtime printed into an error. What is put before it
// says what was tried, such as "start instance x". The message itself is
// always in the text: our words can be wrong about an unknown release.
func classify(what, stderr string) *hpcexec.Error {
	msgs := messages(stderr)
	for _, msg := range msgs {
		for _, r := range rules() {
			at := r.pattern.FindStringSubmatchIndex(msg)
			if at == nil {
				continue
			}
			text := string(r.pattern.ExpandString(nil, r.text, msg, at))
			hint := string(r.pattern.ExpandString(nil, r.hint, msg, at))
			e := hpcexec.Errorf(r.kind, "%s: %s (%s)", what, text, clip(msg, 300))
			e.Err = r.cause
			return e.WithHint("%s", hint)
		}
	}
	if len(msgs) == 0 {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: the runtime failed and said nothing", what).
			WithHint("run it by hand without -s to see more")
	}
	return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: %s", what, clip(msgs[0], 400)).
		WithHint("this message of the runtime is new to hpcexec; hpcexec doctor checks the usual causes")
}
