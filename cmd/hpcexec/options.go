package main

import (
	"math"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/place"
	"github.com/hpcexec/hpcexec/internal/session"
)

// sessionFlags are the options of a session, the same wherever one is made or
// changed.
func sessionFlags() []cli.Flag {
	const where, slurm = "Place and container", "Slurm allocation"
	return []cli.Flag{
		&cli.StringFlag{Category: where, Name: "on", Usage: "run on `PLACE`: local, ssh:[USER@]HOST[:PORT] or slurm (default: local)"},
		&cli.StringFlag{Category: where, Name: "image", Usage: "run in a container of `IMAGE`, a SIF file or a sandbox; \"none\": bare"},
		&cli.StringFlag{Category: where, Name: "overlay", Usage: "`KIND` of the writable layer: dir"},
		&cli.StringSliceFlag{Category: where, Name: "bind", Usage: "show a path in the container: `SRC[:DST][:ro]`; may be repeated"},
		&cli.BoolFlag{DisableDefaultText: true, Category: where, Name: "fakeroot", Usage: "be root inside the container"},
		&cli.BoolFlag{DisableDefaultText: true, Category: where, Name: "nv", Usage: "NVIDIA GPUs in the container (default: found out)"},
		&cli.BoolFlag{DisableDefaultText: true, Category: where, Name: "rocm", Usage: "AMD GPUs in the container (default: found out)"},
		&cli.BoolFlag{DisableDefaultText: true, Category: where, Name: "no-gpu", Usage: "no GPUs in the container"},
		&cli.StringFlag{Category: where, Name: "net", Usage: "`none`: no network in the container"},
		&cli.StringFlag{Category: where, Name: "idle", Usage: "end the session after `D` without a command, such as 30m; \"never\" (default: 30m)"},
		&cli.StringFlag{Category: slurm, Name: "gpus", Usage: "GPUs: `[TYPE:]N`, such as 2 or a100:1"},
		&cli.IntFlag{Category: slurm, Name: "cpus", DefaultText: "the site's", Usage: "`N` CPUs"},
		&cli.StringFlag{Category: slurm, Name: "mem", Usage: "memory of a node: `SIZE`, such as 8G"},
		&cli.IntFlag{Category: slurm, Name: "nodes", DefaultText: "1", Usage: "`N` nodes"},
		&cli.StringFlag{Category: slurm, Name: "partition", Aliases: []string{"p"}, Usage: "`NAME` of the partition (default: the one that owns the GPU type)"},
		&cli.StringFlag{Category: slurm, Name: "time", Usage: "time limit `D`: 90m, 2h, or as sbatch takes it: MIN, H:M:S, D-H:M:S (default: 1h)"},
		&cli.StringFlag{Category: slurm, Name: "account", Aliases: []string{"A"}, Usage: "charge `NAME`"},
		&cli.StringFlag{Category: slurm, Name: "qos", Usage: "quality of service `NAME`"},
		&cli.StringFlag{Category: slurm, Name: "constraint", Usage: "node features `EXPR`"},
		&cli.StringFlag{Category: slurm, Name: "reservation", Usage: "reservation `NAME`"},
		&cli.StringSliceFlag{Category: slurm, Name: "slurm-opt", Usage: "`OPTION` for sbatch, verbatim, such as --slurm-opt=--exclusive; may be repeated"},
	}
}

// Compiled where they are needed: every start of hpcexec would pay for them.
const (
	gpusRE = `^([A-Za-z0-9_][A-Za-z0-9_.-]*:)?[0-9]{1,4}$`
	memRE  = `^[0-9]+[KMGT]?$`
)

func matches(re, s string) bool { return regexp.MustCompile(re).MatchString(s) }

// sessionOptions reads the flags of sessionFlags; what was not given is zero.
func sessionOptions(c *cli.Context) (o session.Options, err error) {
	o.Place = c.String("on")
	if o.Place != "" {
		if _, err := place.Parse(o.Place); err != nil {
			return o, err
		}
	}
	if o.Image = c.String("image"); o.Image != "" && o.Image != "none" {
		if o.Image, err = filepath.Abs(o.Image); err != nil {
			return o, hpcexec.Errorf(hpcexec.ErrInvalid, "image: %w", err)
		}
	}
	if o.Overlay = c.String("overlay"); o.Overlay != "" && o.Overlay != "dir" {
		return o, usageError("there is no overlay of kind %q", o.Overlay).WithHint("the kind there is: dir")
	}
	for _, text := range c.StringSlice("bind") {
		b, err := parseBind(text)
		if err != nil {
			return o, err
		}
		o.Binds = append(o.Binds, b)
	}
	o.Fakeroot = c.Bool("fakeroot")
	for flag, mode := range map[string]string{"nv": "nv", "rocm": "rocm", "no-gpu": "none"} {
		if !c.Bool(flag) {
			continue
		}
		if o.GPUMode != "" {
			return o, usageError("--nv, --rocm and --no-gpu exclude each other")
		}
		o.GPUMode = mode
	}
	if o.Net = c.String("net"); o.Net != "" && o.Net != "none" {
		return o, usageError("--net takes \"none\", not %q", o.Net)
	}
	if o.Idle, err = idleFlag(c.String("idle")); err != nil {
		return o, err
	}
	return o, allocationOptions(c, &o)
}

func allocationOptions(c *cli.Context, o *session.Options) error {
	o.GPUs, o.Mem = c.String("gpus"), c.String("mem")
	if o.GPUs != "" && !matches(gpusRE, o.GPUs) {
		return usageError("--gpus %q is not [TYPE:]N", o.GPUs).WithHint("such as --gpus 2 or --gpus a100:1; `hpcexec gpus` lists the types")
	}
	if o.Mem != "" && !matches(memRE, o.Mem) {
		return usageError("--mem %q is not a size", o.Mem).WithHint("a number and K, M, G or T, such as 8G")
	}
	for _, n := range []struct {
		flag string
		to   *int
	}{{"cpus", &o.CPUs}, {"nodes", &o.Nodes}} {
		if *n.to = c.Int(n.flag); c.IsSet(n.flag) && *n.to < 1 {
			return usageError("--%s %d is not at least 1", n.flag, *n.to)
		}
	}
	if text := c.String("time"); text != "" {
		d, err := parseSlurmTime(text)
		if err != nil {
			return err
		}
		o.Time = session.Duration(d)
	}
	o.Partition, o.Account, o.QOS = c.String("partition"), c.String("account"), c.String("qos")
	o.Constraint, o.Reservation = c.String("constraint"), c.String("reservation")
	o.SlurmOpts = c.StringSlice("slurm-opt")
	return nil
}

// parseBind is session.ParseBind for a path that may be relative to the
// working directory.
func parseBind(text string) (session.Bind, error) {
	if text != "" && text[0] != '/' && text[0] != ':' {
		src, rest, colon := strings.Cut(text, ":")
		abs, err := filepath.Abs(src)
		if err != nil {
			return session.Bind{}, hpcexec.Errorf(hpcexec.ErrInvalid, "bind %q: %w", text, err)
		}
		if text = abs; colon {
			text += ":" + rest
		}
	}
	return session.ParseBind(text)
}

func idleFlag(text string) (session.Duration, error) {
	switch text {
	case "":
		return 0, nil
	case "never":
		return -1, nil
	}
	d, err := durationFlag("idle", text)
	return session.Duration(d), err
}

// durationFlag reads a duration such as 90s, 5m or 1h30m; a bare number is
// seconds, as for timeout(1). Empty is 0.
func durationFlag(flag, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if n, nerr := strconv.ParseFloat(text, 64); nerr == nil && n < math.MaxInt64/float64(time.Second) {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil || d <= 0 {
		return 0, usageError("--%s %q is not a duration above 0", flag, text).WithHint("such as 90s, 5m or 1h30m")
	}
	return d, nil
}

// parseSlurmTime reads a time limit: a Go duration with a unit, or what sbatch
// --time takes: MIN, MIN:SEC, H:M:S, D-H, D-H:M, D-H:M:S (sbatch(1)). Slurm
// counts minutes, so a part of one is rounded up.
func parseSlurmTime(text string) (time.Duration, error) {
	bad := usageError("--time %q is not a time limit", text).
		WithHint("such as 90m, 2h, 1:30:00 (hours) or 2-00:00:00 (days)")
	if d, err := time.ParseDuration(text); err == nil && strings.ContainsAny(text, "hms") {
		if d <= 0 {
			return 0, bad
		}
		return roundUp(d), nil
	}
	days, clock, hasDays := strings.Cut(text, "-")
	units := []time.Duration{time.Minute, time.Second} // of MIN and MIN:SEC
	if !hasDays {
		days, clock = "0", text
	}
	parts := strings.Split(clock, ":")
	if hasDays || len(parts) == 3 {
		units = []time.Duration{time.Hour, time.Minute, time.Second}
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil || len(parts) > len(units) {
		return 0, bad
	}
	d := time.Duration(n) * 24 * time.Hour
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 24)
		if err != nil {
			return 0, bad
		}
		d += time.Duration(n) * units[i]
	}
	if d <= 0 {
		return 0, bad
	}
	return roundUp(d), nil
}

func roundUp(d time.Duration) time.Duration {
	return (d + time.Minute - 1).Truncate(time.Minute)
}
