package policy

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hpcexec/hpcexec"
)

// Path is where a site has its policy.
const Path = "/etc/hpcexec/policy.toml"

// A Policy is the site's policy.toml. Each key forbids something; none allows
// what the site's Slurm or file permissions don't.
type Policy struct {
	// MaxTime is the longest time limit of an allocation.
	MaxTime Duration `toml:"max_time"`

	// MaxGPUs is the most GPUs of an allocation per node; nil is no limit,
	// 0 is none at all.
	MaxGPUs *int `toml:"max_gpus"`

	// ForbidPlaces are places where nothing may run: a kind of place
	// ("local", "ssh", "slurm") or one place ("ssh:login1").
	ForbidPlaces []string `toml:"forbid_places"`

	path string
}

const policyKeys = "a policy may have max_time, max_gpus and forbid_places"

// A Use is what somebody is about to do.
type Use struct {
	Place string        // such as "local" or "ssh:login/slurm"
	Time  time.Duration // time limit of an allocation; 0: the default of an hour
	GPUs  string        // "[TYPE:]N"; empty: none
}

// Load reads a policy; nil where there is none. A policy that isn't root's
// alone to write is refused, and with it all that it would rule.
func Load(path string) (*Policy, error) { return load(path, 0) }

func load(path string, owner int) (*Policy, error) {
	fi, err := os.Stat(path)
	switch {
	case os.IsNotExist(err):
		return nil, nil
	case err != nil:
		return nil, hpcexec.Errorf(hpcexec.ErrDenied, "policy: %w", err).WithHint("ask the site: it must be readable for all")
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != owner || fi.Mode().Perm()&0o022 != 0 {
		return nil, hpcexec.Errorf(hpcexec.ErrDenied, "policy: %s is not owned by root, or others may write it", path).
			WithHint("the site: chown root %s; chmod 644 %s", path, path)
	}
	p := &Policy{path: path}
	if err := decode(path, p); err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrDenied, "policy: %w", err).WithHint("the site: %s", policyKeys)
	}
	if p.MaxTime < 0 || p.MaxGPUs != nil && *p.MaxGPUs < 0 {
		return nil, hpcexec.Errorf(hpcexec.ErrDenied, "policy: %s: max_time and max_gpus can't be negative", path)
	}
	for _, place := range p.ForbidPlaces {
		if kind, _, _ := strings.Cut(place, ":"); kind != "local" && kind != "ssh" && kind != "slurm" || strings.Contains(place, "/") {
			return nil, hpcexec.Errorf(hpcexec.ErrDenied, "policy: %s: forbid_places has %q", path, place).
				WithHint("the site: write local, ssh, slurm or ssh:HOST")
		}
	}
	return p, nil
}

// Check returns the use that is allowed: as asked, with a time limit where the
// default would be too long. An error is of kind hpcexec.ErrDenied. A nil
// Policy allows all.
func (p *Policy) Check(u Use) (Use, error) {
	if p == nil {
		return u, nil
	}
	hops := strings.Split(u.Place, "/")
	for _, hop := range hops {
		kind, _, _ := strings.Cut(hop, ":")
		for _, f := range p.ForbidPlaces {
			if f == hop || f == kind {
				return u, p.denied("nothing may run on %s", hop)
			}
		}
	}
	if hops[len(hops)-1] != "slurm" {
		return u, nil
	}
	if limit := time.Duration(p.MaxTime); limit > 0 {
		if u.Time > limit {
			return u, p.denied("a time limit of %v is over the %v allowed", u.Time, limit)
		}
		if u.Time == 0 {
			u.Time = min(limit, time.Hour)
		}
	}
	if p.MaxGPUs != nil && u.GPUs != "" {
		_, count, typed := strings.Cut(u.GPUs, ":")
		if !typed {
			count = u.GPUs
		}
		if n, err := strconv.Atoi(count); err != nil || n > *p.MaxGPUs {
			return u, p.denied("%s GPUs are over the %d allowed", count, *p.MaxGPUs)
		}
	}
	return u, nil
}

func (p *Policy) denied(format string, args ...any) error {
	return hpcexec.Errorf(hpcexec.ErrDenied, "the site's policy forbids it: "+format, args...).
		WithHint("%s has the limits", p.path)
}
