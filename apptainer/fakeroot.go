package apptainer

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/user"

	"github.com/hpcexec/hpcexec"
)

// Ways in which root is mapped with Fakeroot, see Info.Fakeroot.
const (
	fakerootRange = "subuid" // a range of other users: chown works
	fakerootOwn   = "own"    // the own uid only: chown to others fails
)

// fakeroot says how root would be mapped. Without a range for the user
// SingularityCE refuses, which is an error here; Apptainer maps the own uid
// only, and the caller must be told.
func (r *Runtime) fakeroot(ctx context.Context) (string, error) {
	name := userName(ctx)
	if hasSubID(ctx, "/etc/subuid", "", name) && hasSubID(ctx, "/etc/subgid", "-g", name) {
		return fakerootRange, nil
	}
	if r.Flavor == Apptainer && !r.SetUID {
		return fakerootOwn, nil
	}
	return "", hpcexec.Errorf(hpcexec.ErrInvalid, "fakeroot: no range of subordinate ids for user %s on this node", name).
		WithHint("ask the site for an entry in /etc/subuid and /etc/subgid, or go without --fakeroot")
}

// userName is the name of our uid. Without cgo the system's directory service
// isn't asked by os/user, so getent is.
func userName(ctx context.Context) string {
	uid := strconv.Itoa(os.Getuid())
	if line := ask(ctx, "getent", "passwd", uid); line != "" {
		if name, _, ok := strings.Cut(line, ":"); ok && name != "" {
			return name
		}
	}
	if name := os.Getenv("USER"); name != "" {
		return name
	}
	return uid
}

// hasSubID looks for the user, by name or number, in a file of subordinate
// ids, then asks getsubids: some sites keep them in LDAP.
func hasSubID(ctx context.Context, file, flag, name string) bool {
	uid := strconv.Itoa(os.Getuid())
	ids, _ := user.ParseSubIDFileFilter(file, func(s user.SubID) bool {
		return (s.Name == name || s.Name == uid) && s.Count > 0
	})
	if len(ids) > 0 {
		return true
	}
	args := []string{name}
	if flag != "" {
		args = []string{flag, name}
	}
	return strings.Contains(ask(ctx, "getsubids", args...), name)
}

// ask runs a program of the system and gives the first line it prints.
func ask(ctx context.Context, name string, args ...string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}
