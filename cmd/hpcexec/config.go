package main

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/policy"
	"github.com/hpcexec/hpcexec/internal/session"
)

// options completes what was given on the command line: with the user's
// config, where the session is new, and with what the site's policy makes of
// it. Without either file it costs two stats.
func (in *invocation) options(m *session.Manager, name string, given session.Options) (session.Options, error) {
	path, required := in.config, in.config != ""
	if !required {
		path = policy.ConfigPath(os.Getenv)
	}
	cfg, err := policy.LoadConfig(path, required)
	if err != nil {
		return given, err
	}
	pol, err := policy.Load(policy.Path)
	if err != nil {
		return given, err
	}
	if pol == nil && given.Image != "none" && reflect.ValueOf(cfg.Defaults).IsZero() {
		return given, nil
	}
	var known *session.Record
	if name != "" {
		known, err = m.Dirs.Load(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return given, err
		}
	}
	whole := given
	if known != nil {
		if given, err = bareImage(given, known); err != nil {
			return given, err
		}
		if whole, err = known.Merge(given); err != nil {
			return given, err
		}
	} else if whole, err = withDefaults(given, cfg.Defaults); err != nil {
		return given, err
	}
	use, err := pol.Check(policy.Use{Place: cmp.Or(whole.Place, "local"), Time: time.Duration(whole.Time), GPUs: whole.GPUs})
	if err != nil {
		return given, err
	}
	if known != nil {
		return given, nil
	}
	whole.Time = session.Duration(use.Time)
	return whole, nil
}

// bareImage reads --image none for a session that is there.
func bareImage(given session.Options, known *session.Record) (session.Options, error) {
	if given.Image == "none" {
		if known.Options.Image != "" {
			return given, usageError("session %s has the image %s", known.Name, known.Options.Image).
				WithHint("use another session name for a bare one")
		}
		given.Image = ""
	}
	return given, nil
}

// withDefaults fills in what was not given.
func withDefaults(o session.Options, d policy.Defaults) (session.Options, error) {
	fill(&o.Place, d.Place)
	switch fill(&o.Image, d.Image); {
	case o.Image == "none":
		o.Image = ""
	case o.Image != "" && o.Image[0] != '/':
		return o, hpcexec.Errorf(hpcexec.ErrInvalid, "image %q of the config is not an absolute path", o.Image)
	}
	if o.Image != "" {
		fill(&o.Overlay, d.Overlay)
		fill(&o.Net, d.Net)
		o.Fakeroot = o.Fakeroot || d.Fakeroot
		if o.Binds == nil {
			for _, text := range d.Binds {
				b, err := session.ParseBind(text)
				if err != nil {
					return o, err
				}
				o.Binds = append(o.Binds, b)
			}
		}
	}
	fill(&o.Idle, session.Duration(d.Idle))
	if place := o.Place; place != "slurm" && !strings.HasSuffix(place, "/slurm") {
		return o, nil
	}
	fill(&o.GPUs, d.GPUs)
	fill(&o.CPUs, d.CPUs)
	fill(&o.Mem, d.Mem)
	fill(&o.Nodes, d.Nodes)
	fill(&o.Partition, d.Partition)
	fill(&o.Time, session.Duration(d.Time))
	fill(&o.Account, d.Account)
	fill(&o.QOS, d.QOS)
	fill(&o.Constraint, d.Constraint)
	fill(&o.Reservation, d.Reservation)
	if o.SlurmOpts == nil {
		o.SlurmOpts = d.SlurmOpts
	}
	return o, nil
}

func fill[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

// checkPolicy checks options that change those of a session.
func (in *invocation) checkPolicy(m *session.Manager, name string, o session.Options) error {
	pol, err := policy.Load(policy.Path)
	if err != nil || pol == nil {
		return err
	}
	rec, err := m.Dirs.Load(name)
	if err != nil {
		return err
	}
	_, err = pol.Check(policy.Use{
		Place: cmp.Or(o.Place, rec.Options.Place),
		Time:  time.Duration(cmp.Or(o.Time, rec.Options.Time)),
		GPUs:  cmp.Or(o.GPUs, rec.Options.GPUs),
	})
	return err
}
