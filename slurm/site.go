package slurm

import (
	"context"
	"strconv"
	"strings"

	"github.com/hpcexec/hpcexec"
)

// A Site is what was found out about the place where Slurm's programs run.
type Site struct {
	// Programs has the absolute path of each program that was found, by
	// name: sbatch, squeue, scancel, scontrol, sinfo, sacct, sacctmgr, srun.
	Programs map[string]string

	User   string   // name of the user there
	UID    string   // its number
	Groups []string // names of its groups
	Host   string   // name of the machine

	Version Version // Slurm's release; zero where it couldn't be told
}

// A Version is a release of Slurm: {24, 11} for 24.11.5.
type Version struct{ Major, Minor int }

// Before says whether v is a release before year.month. A Version that isn't
// known is never before another one.
func (v Version) Before(major, minor int) bool {
	if v == (Version{}) {
		return false
	}
	return v.Major < major || v.Major == major && v.Minor < minor
}

// ParseVersion reads what `sinfo --version` prints: "slurm 24.11.5", or
// "slurm-wlm 24.11.5" on Debian.
func ParseVersion(s string) (Version, error) {
	words := strings.Fields(s)
	if len(words) == 0 {
		return Version{}, hpcexec.Errorf(hpcexec.ErrInvalid, "empty version of Slurm")
	}
	major, rest, _ := strings.Cut(words[len(words)-1], ".")
	minor, _, _ := strings.Cut(rest, ".")
	ma, err1 := strconv.Atoi(major)
	mi, err2 := strconv.Atoi(minor)
	if err1 != nil || err2 != nil || ma <= 0 || mi < 0 {
		return Version{}, hpcexec.Errorf(hpcexec.ErrInvalid, "version of Slurm %q is not like 24.11.5", s)
	}
	return Version{ma, mi}, nil
}

// findScript prints a line "what TAB value" for each thing that a Site has.
// Its arguments are the directories to search after PATH. sinfo --version asks
// nobody, so it is quick even when the controller is down.
const findScript = `
for p in sbatch squeue scancel scontrol sinfo sacct sacctmgr srun; do
  f=$(command -v "$p" 2>/dev/null)
  case $f in
  /*) ;;
  *) f=
    for d do
      if [ -x "$d/$p" ]; then f=$d/$p; break; fi
    done ;;
  esac
  if [ -n "$f" ]; then printf '%s\t%s\n' "$p" "$f"; fi
  if [ "$p" = sinfo ] && [ -n "$f" ]; then printf 'version\t%s\n' "$("$f" --version 2>/dev/null </dev/null)"; fi
done
printf 'user\t%s\n' "$(id -un)"
printf 'uid\t%s\n' "$(id -u)"
printf 'groups\t%s\n' "$(id -Gn 2>/dev/null)"
printf 'host\t%s\n' "$(uname -n)"
`

// Site finds Slurm's programs in the place, once. Where there are none the
// error is of kind ErrUnavailable and says where they were looked for.
func (c *Client) Site(ctx context.Context) (Site, error) {
	c.mu.Lock()
	if c.site != nil {
		defer c.mu.Unlock()
		return *c.site, nil
	}
	c.mu.Unlock()

	args := append([]string{"/bin/sh", "-c", findScript, "hpcexec"}, c.opt.Dirs...)
	out, err := c.runRaw(ctx, hpcexec.Request{Args: args, Timeout: c.opt.CallTimeout})
	if err != nil {
		return Site{}, err
	}
	if out.resp.ExitCode != 0 || out.resp.TimedOut {
		return Site{}, hpcexec.Errorf(hpcexec.ErrUnavailable, "looking for Slurm's programs ended with exit code %d: %s", out.resp.ExitCode, firstLine(out.stderr))
	}
	site := parseSite(out.stdout)
	for _, p := range []string{"sbatch", "squeue", "scontrol"} {
		if site.Programs[p] == "" {
			return Site{}, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: no Slurm here: %s is not in PATH, nor in %s",
				site.Host, p, strings.Join(c.opt.Dirs, ", ")).
				WithHint("run hpcexec on a login node of the cluster or name one (ssh:HOST/slurm); or load the site's slurm module first")
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.site = &site
	return site, nil
}

func parseSite(out string) Site {
	site := Site{Programs: map[string]string{}}
	for line := range strings.Lines(out) {
		what, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		switch what {
		case "user":
			site.User = value
		case "uid":
			site.UID = value
		case "groups":
			site.Groups = strings.Fields(value)
		case "host":
			site.Host = value
		case "version":
			site.Version, _ = ParseVersion(value) // unknown stays zero
		default:
			if strings.HasPrefix(value, "/") {
				site.Programs[what] = value
			}
		}
	}
	return site
}
