package session

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/place"
)

// startFar runs a command in a place behind a login node by running hpcexec
// there: the queue, the state and the images are that cluster's.
func (m *Manager) startFar(ctx context.Context, w Want, req hpcexec.Request) (hpcexec.Process, func(), error) {
	p, err := place.Parse(w.Options.Place)
	if err != nil {
		return nil, nil, err
	}
	via, _ := p.Via()
	if len(via.Hops) > 1 {
		return nil, nil, hpcexec.Errorf(hpcexec.ErrInvalid, "place %s: more than one host in a chain is not supported", p).
			WithHint("set ProxyJump for the last host in ~/.ssh/config")
	}
	client, err := m.openHost(ctx, via.Last().Host)
	if err != nil {
		return nil, nil, err
	}
	w.Options.Place = place.Place{Hops: p.Hops[1:]}.String()
	proc, err := client.Start(ctx, farRequest(w, req))
	return proc, func() {}, err
}

// farRequest is the request that makes the far hpcexec run req. Values of
// variables travel in its environment: its argv is seen by everybody there.
func farRequest(w Want, req hpcexec.Request) hpcexec.Request {
	argv := append([]string{"hpcexec", "exec"}, w.Options.flags()...)
	if w.Name != "" {
		argv = append(argv, "-s", w.Name)
	}
	if w.Wait > 0 {
		argv = append(argv, "--wait", w.Wait.String())
	}
	for _, e := range hpcexec.MergeEnv(req.Env) {
		name, _, _ := strings.Cut(e, "=")
		argv = append(argv, "-e", name)
	}
	for _, e := range hpcexec.MergeEnv(req.Secrets) {
		name, _, _ := strings.Cut(e, "=")
		argv = append(argv, "--secret", name)
	}
	if req.Dir != "" {
		argv = append(argv, "-C", req.Dir)
	}
	if req.Timeout > 0 {
		argv = append(argv, "--timeout", req.Timeout.String())
		req.Timeout += time.Minute // the far one ends it; this only if that one can't
	}
	if req.TTY != nil {
		argv = append(argv, "-t")
	} else if req.Stdin != nil {
		argv = append(argv, "-i")
	}
	argv = append(argv, "--")
	req.Args = append(argv, req.Args...)
	req.Dir = ""
	return req
}

// flags are the options of `hpcexec exec` that say o.
func (o Options) flags() []string {
	var f []string
	add := func(name, value string) {
		if value != "" {
			f = append(f, name, value)
		}
	}
	number := func(name string, n int) {
		if n != 0 {
			f = append(f, name, strconv.Itoa(n))
		}
	}
	duration := func(name string, d Duration) {
		if d != 0 {
			f = append(f, name, d.String())
		}
	}
	add("--on", o.Place)
	add("--image", o.Image)
	add("--overlay", o.Overlay)
	add("--net", o.Net)
	for _, b := range o.Binds {
		s := b.Src + ":" + b.Dst
		if b.RO {
			s += ":ro"
		}
		add("--bind", s)
	}
	if o.Fakeroot {
		f = append(f, "--fakeroot")
	}
	switch o.GPUMode {
	case "nv", "rocm":
		f = append(f, "--"+o.GPUMode)
	case "none":
		f = append(f, "--no-gpu")
	}
	duration("--idle", o.Idle)
	add("--gpus", o.GPUs)
	number("--cpus", o.CPUs)
	add("--mem", o.Mem)
	number("--nodes", o.Nodes)
	add("--partition", o.Partition)
	duration("--time", o.Time)
	add("--account", o.Account)
	add("--qos", o.QOS)
	add("--constraint", o.Constraint)
	add("--reservation", o.Reservation)
	for _, s := range o.SlurmOpts {
		f = append(f, "--slurm-opt="+s)
	}
	return f
}
