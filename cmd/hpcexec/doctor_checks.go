package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/docker/go-units"
	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/apptainer"
	"github.com/hpcexec/hpcexec/internal/policy"
	"github.com/hpcexec/hpcexec/internal/session"
	"github.com/hpcexec/hpcexec/modules"
	"github.com/hpcexec/hpcexec/slurm"
)

// localChecks are the checks of this machine, in the order they are told in.
func (in *invocation) localChecks() []checkFunc {
	return []checkFunc{checkSelf, in.checkConfig, checkPolicyFile, checkDirs, checkRunDir, checkSSH, checkAgent,
		checkRuntime, checkUserNamespaces, checkFUSE, checkSquashfs, checkSlurm, checkPartitions, checkDevices, checkLeftovers}
}

func checkSelf(context.Context) []check {
	exe, err := os.Executable()
	if err != nil {
		return []check{{Name: "hpcexec", Needed: true, Detail: err.Error(), Remedy: "start hpcexec by its path", Whose: "user"}}
	}
	return []check{{Name: "hpcexec", OK: true, Needed: true, Detail: "version " + version + ", " + exe}}
}

func (in *invocation) checkConfig(context.Context) []check {
	path, required := in.config, in.config != ""
	if !required {
		path = policy.ConfigPath(os.Getenv)
	}
	c := check{Name: "config", Needed: true, OK: true, Detail: path}
	if _, err := os.Stat(path); err != nil && !required {
		c.Detail = "none (" + path + ")"
	}
	if _, err := policy.LoadConfig(path, required); err != nil {
		c.OK, c.Detail, c.Remedy, c.Whose = false, err.Error(), hintOr(err, "mend the file"), "user"
	}
	return []check{c}
}

func checkPolicyFile(context.Context) []check {
	c := check{Name: "policy", Needed: true, OK: true, Detail: "none (" + policy.Path + ")"}
	switch p, err := policy.Load(policy.Path); {
	case err != nil:
		c.OK, c.Detail, c.Remedy, c.Whose = false, err.Error(), hintOr(err, "mend the file"), "admin"
	case p != nil:
		c.Detail = policy.Path
	}
	return []check{c}
}

// checkDirs looks at the directories for state and for large files.
func checkDirs(context.Context) []check {
	dirs, err := session.LookDirs(os.Getenv)
	if err != nil {
		return []check{{Name: "home", Needed: true, Detail: err.Error(), Remedy: hintOr(err, "set HPCEXEC_HOME"), Whose: "user"}}
	}
	return []check{
		checkDir("home", dirs.Home, "set HPCEXEC_HOME to a directory on a file system that all nodes share"),
		checkDir("scratch", dirs.Scratch, "set HPCEXEC_SCRATCH to a directory with space for overlays and snapshots"),
	}
}

// checkHomeShared is checkDirs for one who looks at Slurm alone.
func checkHomeShared(ctx context.Context) []check { return checkDirs(ctx)[:1] }

// checkDir says whether files can be made in dir, or in what is there of it.
func checkDir(name, dir, remedy string) check {
	c := check{Name: name, Needed: true, Remedy: remedy, Whose: "user"}
	there := dir
	for {
		if _, err := os.Stat(there); err == nil || there == "/" {
			break
		}
		there = filepath.Dir(there)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(there, &fs); err != nil {
		c.Detail = fmt.Sprintf("%s: %v", dir, err)
		return c
	}
	free := int64(fs.Bavail) * fs.Bsize
	c.Detail = fmt.Sprintf("%s (%s, %s free)", dir, fsName(int64(fs.Type)), units.BytesSize(float64(free)))
	switch {
	case unix.Access(there, unix.W_OK|unix.X_OK) != nil:
		c.Detail += ": can't be written"
	case fs.Flags&unix.ST_RDONLY != 0:
		c.Detail += ": mounted read-only"
	case free < 10<<20, fs.Files > 0 && fs.Ffree == 0:
		c.Detail += ": full"
		c.Remedy = "remove what isn't needed there, or " + remedy
	default:
		c.OK, c.Remedy, c.Whose = true, "", ""
	}
	return c
}

// fsName names the file systems that clusters have, by the magic numbers of
// linux/magic.h and of Lustre, GPFS and BeeGFS.
func fsName(magic int64) string {
	switch uint32(magic) {
	case 0xef53:
		return "ext4"
	case 0x58465342:
		return "xfs"
	case 0x9123683e:
		return "btrfs"
	case 0x01021994:
		return "tmpfs"
	case 0x794c7630:
		return "overlayfs"
	case 0x6969:
		return "nfs"
	case 0x0bd00bd0:
		return "lustre"
	case 0x47504653:
		return "gpfs"
	case 0x19830326:
		return "beegfs"
	case 0x00c36400:
		return "ceph"
	case 0x2fc12fc1:
		return "zfs"
	case 0x65735546:
		return "fuse"
	case 0xff534d42, 0xfe534d42:
		return "smb"
	}
	return fmt.Sprintf("file system %#x", uint32(magic))
}

// checkRunDir says whether this node has a place for sockets. It makes none.
func checkRunDir(context.Context) []check {
	c := check{Name: "runtime directory", Needed: true, Remedy: "/tmp, /var/tmp or /dev/shm must be writable for all, sticky and on a local file system", Whose: "admin"}
	for _, base := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		var fs unix.Statfs_t
		if unix.Access(base, unix.W_OK|unix.X_OK) != nil || unix.Statfs(base, &fs) != nil {
			continue
		}
		switch kind := fsName(int64(fs.Type)); kind {
		case "nfs", "lustre", "gpfs", "beegfs", "ceph", "smb":
			c.Detail += fmt.Sprintf("%s is on %s; ", base, kind)
		default:
			c.OK, c.Detail, c.Remedy, c.Whose = true, fmt.Sprintf("below %s (%s)", base, kind), "", ""
			return []check{c}
		}
	}
	c.Detail = strings.TrimSuffix(c.Detail, "; ")
	if c.Detail == "" {
		c.Detail = "no base directory can be written"
	}
	return []check{c}
}

func checkSSH(ctx context.Context) []check {
	path, err := exec.LookPath("ssh")
	if err != nil {
		return []check{{Name: "ssh", Detail: "no ssh in PATH: places ssh:HOST can't be reached", Remedy: "install openssh-client", Whose: "admin"}}
	}
	text, err := output(ctx, path, "-V")
	if err != nil {
		return []check{{Name: "ssh", Detail: err.Error(), Remedy: "mend the installation of openssh-client", Whose: "admin"}}
	}
	return []check{{Name: "ssh", OK: true, Detail: path + ", " + text}}
}

func checkAgent(context.Context) []check {
	c := check{Name: "ssh agent", Remedy: "start ssh-agent and add a key, or use a key without a passphrase between the nodes", Whose: "user"}
	socket := os.Getenv("SSH_AUTH_SOCK")
	if socket == "" {
		// A key file may do; so it is no failure.
		keys, _ := filepath.Glob(filepath.Join(os.Getenv("HOME"), ".ssh", "id_*.pub"))
		if len(keys) > 0 {
			return []check{{Name: "ssh agent", OK: true, Detail: fmt.Sprintf("none; key files without a passphrase will do: %d", len(keys))}}
		}
		c.Detail = "neither an agent nor a key file"
		return []check{c}
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		c.Detail = fmt.Sprintf("SSH_AUTH_SOCK doesn't answer: %v", err)
		return []check{c}
	}
	conn.Close()
	return []check{{Name: "ssh agent", OK: true, Detail: socket}}
}

func checkRuntime(ctx context.Context) []check {
	r, err := apptainer.Find(ctx, apptainer.FindOptions{Module: findByModules})
	if err != nil {
		return []check{{Name: "container runtime", Detail: err.Error(), Remedy: hintOr(err, "install apptainer"), Whose: "admin"}}
	}
	how := "user namespaces"
	if r.SetUID {
		how = "setuid"
	}
	return []check{{Name: "container runtime", OK: true, Detail: fmt.Sprintf("%s %s, %s, by %s", r.Flavor, r.Version, r.Path, how)}}
}

func checkUserNamespaces(context.Context) []check {
	c := check{Name: "user namespaces", OK: true, Detail: "allowed"}
	for _, knob := range []struct{ file, bad, why string }{
		{"/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces is 0"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone is 0"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor restricts them"},
	} {
		if b, err := os.ReadFile(knob.file); err == nil && strings.TrimSpace(string(b)) == knob.bad {
			return []check{{Name: c.Name, Detail: knob.why + ": only a setuid runtime can start containers",
				Remedy: "allow them (" + strings.ReplaceAll(strings.TrimPrefix(knob.file, "/proc/sys/"), "/", ".") + "), or install the runtime setuid", Whose: "admin"}}
		}
	}
	return []check{c}
}

func checkFUSE(context.Context) []check {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return []check{{Name: "fuse", Detail: err.Error() + ": images and overlays can't be mounted without setuid", Remedy: "chmod 666 /dev/fuse, modprobe fuse", Whose: "admin"}}
	}
	f.Close()
	return []check{{Name: "fuse", OK: true, Detail: "/dev/fuse can be used"}}
}

func checkSquashfs(context.Context) []check {
	var missing []string
	for _, prog := range []string{"mksquashfs", "unsquashfs"} {
		if _, err := exec.LookPath(prog); err != nil {
			missing = append(missing, prog)
		}
	}
	if missing != nil {
		return []check{{Name: "squashfs", Detail: "no " + strings.Join(missing, ", no ") + ": no snapshots", Remedy: "install squashfs-tools", Whose: "admin"}}
	}
	return []check{{Name: "squashfs", OK: true, Detail: "mksquashfs and unsquashfs"}}
}

func checkSlurm(ctx context.Context) []check {
	site, err := slurm.New(&hpcexec.Local{}, slurm.Options{}).Site(ctx)
	if err != nil {
		return []check{{Name: "slurm", Detail: err.Error(), Remedy: hintOr(err, "run hpcexec on a login node"), Whose: "user"}}
	}
	return []check{{Name: "slurm", OK: true, Detail: fmt.Sprintf("%d.%02d, %s", site.Version.Major, site.Version.Minor, filepath.Dir(site.Programs["sbatch"]))}}
}

func checkPartitions(ctx context.Context) []check {
	client := slurm.New(&hpcexec.Local{}, slurm.Options{})
	if _, err := client.Site(ctx); err != nil {
		return nil // told by checkSlurm
	}
	parts, err := client.Partitions(ctx)
	if err != nil {
		return []check{{Name: "partitions", Detail: err.Error(), Remedy: hintOr(err, "see whether `sinfo` answers"), Whose: "admin"}}
	}
	var names []string
	for _, p := range parts {
		name := p.Name
		if p.Default {
			name += " (default)"
		}
		if p.State != "UP" {
			name += " (" + p.State + ")"
		}
		names = append(names, name)
	}
	return []check{{Name: "partitions", OK: len(parts) > 0, Detail: strings.Join(names, ", ")}}
}

func checkAssociation(ctx context.Context) []check {
	client := slurm.New(&hpcexec.Local{}, slurm.Options{})
	if _, err := client.Site(ctx); err != nil {
		return nil
	}
	plan, err := client.Preflight(ctx, slurm.JobSpec{})
	if err != nil {
		return []check{{Name: "a job", Detail: err.Error(), Remedy: hintOr(err, "ask the site"), Whose: "admin"}}
	}
	detail := fmt.Sprintf("could run in partition %s (%s)", plan.Spec.Partition, plan.Why)
	if len(plan.Warn) > 0 {
		detail += ", not at once: " + strings.Join(plan.Warn, "; ")
	}
	return []check{{Name: "a job", OK: true, Detail: detail}}
}

// checkDevices tells the GPUs of this machine.
func checkDevices(context.Context) []check {
	nvidia, _ := filepath.Glob("/dev/nvidia[0-9]*")
	var found []string
	if len(nvidia) > 0 {
		found = append(found, fmt.Sprintf("%d NVIDIA", len(nvidia)))
	}
	if _, err := os.Stat("/dev/kfd"); err == nil {
		found = append(found, "AMD")
	}
	if found == nil {
		return []check{{Name: "gpu devices", OK: true, Detail: "none on this machine"}}
	}
	return []check{{Name: "gpu devices", OK: true, Detail: strings.Join(found, ", ")}}
}

// checkLeftovers counts what hpcexec has of this user on this node.
func checkLeftovers(context.Context) []check {
	dirs, err := session.LookDirs(os.Getenv)
	if err != nil {
		return nil
	}
	names, err := dirs.Names()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return []check{{Name: "sessions", Detail: err.Error(), Remedy: "mend the permissions of " + dirs.Sessions(), Whose: "user"}}
	}
	count := map[string]int{}
	for _, argv := range ownProcesses() {
		if len(argv) > 1 && internalCommand(argv[1]) != nil {
			count[argv[1]]++
		}
	}
	return []check{{Name: "sessions", OK: true, Detail: fmt.Sprintf("%d known; on this node %d supervisors, %d masters, %d shims",
		len(names), count["supervise"], count["master"], count["shim"])}}
}

// ownProcesses are the argvs of this user's processes of this program.
func ownProcesses() [][]string {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	entries, _ := filepath.Glob("/proc/[0-9]*/exe")
	var list [][]string
	for _, link := range entries {
		exe, err := os.Readlink(link)
		if err != nil || strings.TrimSuffix(exe, " (deleted)") != self {
			continue
		}
		b, err := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		if err == nil {
			list = append(list, strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"))
		}
	}
	return list
}

// findByModules finds the runtime by the site's environment modules.
func findByModules(ctx context.Context) (string, error) {
	bin, _, err := modules.New(&hpcexec.Local{}, modules.Options{}).Which(ctx, "apptainer", "apptainer", "singularity")
	return bin, err
}
