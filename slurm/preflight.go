package slurm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

// DefaultTime is the time limit of jobs that ask for none.
const DefaultTime = time.Hour

// A Plan is a JobSpec that can start, as far as can be told beforehand.
type Plan struct {
	Spec JobSpec  // with Partition and Time filled in
	Why  string   // why this partition, in words
	Warn []string // what keeps it from starting now
}

// Preflight says whether a job can ever start, and fills in what was left
// open: the partition that has the GPUs, and the time limit. Many requests that
// never can start are accepted by sbatch and wait for ever, and which ones
// differs by release. An impossible request is ErrInvalid, with what there is.
func (c *Client) Preflight(ctx context.Context, spec JobSpec) (Plan, error) {
	check := spec
	if check.Script == "" && len(check.Argv) == 0 {
		check.Argv = []string{"true"} // the script may not be known yet
	}
	if err := check.Check(); err != nil {
		return Plan{}, err
	}
	site, err := c.Site(ctx)
	if err != nil {
		return Plan{}, err
	}
	parts, err := c.Partitions(ctx)
	if err != nil {
		return Plan{}, err
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return Plan{}, err
	}
	return plan(spec, site, parts, nodes)
}

// A candidate is a partition that a job could go to.
type candidate struct {
	Partition
	able  []Node // nodes that can ever give what is asked for
	ready []Node // those of them that can give it now
	limit time.Duration
}

// plan is Preflight without the questions.
func plan(spec JobSpec, site Site, parts []Partition, nodes []Node) (Plan, error) {
	typ, err := gpuTypeOf(spec.GPUs, nodes)
	if err != nil {
		return Plan{}, err
	}
	spec.GPUs.Type = typ
	named := spec.Partition != ""
	var found []candidate
	var refused []error // why each partition can't be it
	for _, p := range parts {
		if named && !slices.Contains(strings.Split(spec.Partition, ","), p.Name) {
			continue
		}
		cand, err := consider(spec, site, p, nodes)
		if err != nil {
			refused = append(refused, err)
			continue
		}
		found = append(found, cand)
	}
	switch {
	case named && len(found)+len(refused) == 0:
		return Plan{}, hpcexec.Errorf(hpcexec.ErrInvalid, "there is no partition %s", spec.Partition).
			WithHint("partitions here: %s", partitionNames(parts))
	case len(found) == 0 && len(refused) == 1:
		return Plan{}, refused[0]
	case len(found) == 0:
		return Plan{}, impossible(spec, refused, nodes)
	}
	return choose(spec, named, found), nil
}

// consider says whether a job can ever start in a partition.
func consider(spec JobSpec, site Site, p Partition, nodes []Node) (candidate, error) {
	cand := candidate{Partition: p}
	if p.State != "UP" {
		return cand, hpcexec.Errorf(hpcexec.ErrUnavailable, "partition %s is closed (%s)", p.Name, p.State).
			WithHint("choose another partition with --partition")
	}
	if why := p.refuses(site.Groups, spec.Account, spec.QOS); why != "" {
		return cand, hpcexec.Errorf(hpcexec.ErrInvalid, "partition %s can't be used: %s", p.Name, why).
			WithHint("choose another partition with --partition")
	}
	cand.limit = p.MaxTime
	if spec.Time > p.MaxTime {
		return cand, hpcexec.Errorf(hpcexec.ErrInvalid, "partition %s allows %s at most, and %s are asked for", p.Name, clock(p.MaxTime), clock(spec.Time)).
			WithHint("ask for less with --time, or choose another partition with --partition")
	}
	need := max(1, spec.Nodes)
	if p.MaxNodes > 0 && need > p.MaxNodes {
		return cand, hpcexec.Errorf(hpcexec.ErrInvalid, "partition %s allows %d nodes at most, and %d are asked for", p.Name, p.MaxNodes, need).
			WithHint("ask for less with --nodes")
	}
	mem, _ := memoryMB(cmp.Or(spec.Mem, "0"))
	most := map[string]int{}
	for _, n := range nodes {
		if !slices.Contains(n.Partitions, p.Name) {
			continue
		}
		most["GPUs"] = max(most["GPUs"], n.GPUTotal(spec.GPUs.Type))
		most["CPUs"] = max(most["CPUs"], n.CPUs)
		most["mem"] = max(most["mem"], n.MemoryMB)
		if n.GPUTotal(spec.GPUs.Type) < spec.GPUs.Count || n.CPUs < spec.CPUs || n.MemoryMB < mem {
			continue
		}
		cand.able = append(cand.able, n)
		if n.Blocked() == "" && n.GPUsFree(spec.GPUs.Type) >= spec.GPUs.Count && n.CPUsFree() >= max(1, spec.CPUs) && n.MemFreeMB() >= mem {
			cand.ready = append(cand.ready, n)
		}
	}
	if len(cand.able) >= need {
		return cand, nil
	}
	switch {
	case spec.GPUs.Count > most["GPUs"]:
		err := hpcexec.Errorf(hpcexec.ErrInvalid, "partition %s has no node with more than %d %s, and %d are asked for on each node",
			p.Name, most["GPUs"], gpuWords(spec.GPUs.Type), spec.GPUs.Count)
		if most["GPUs"] == 0 {
			err = hpcexec.Errorf(hpcexec.ErrInvalid, "partition %s has no %s", p.Name, gpuWords(spec.GPUs.Type))
			err.Err = errNoneThere
		}
		return cand, err.WithHint("there are: %s", gpuSummary(nodes))
	case spec.CPUs > most["CPUs"]:
		return cand, hpcexec.Errorf(hpcexec.ErrInvalid, "partition %s has no node with more than %d CPUs, and %d are asked for", p.Name, most["CPUs"], spec.CPUs).
			WithHint("ask for less with --cpus")
	case mem > most["mem"]:
		return cand, hpcexec.Errorf(hpcexec.ErrInvalid, "partition %s has no node with more than %d MiB, and %s are asked for", p.Name, most["mem"], spec.Mem).
			WithHint("ask for less with --mem")
	}
	return cand, hpcexec.Errorf(hpcexec.ErrInvalid, "partition %s has %d nodes with all that is asked for, and %d are asked for", p.Name, len(cand.able), need).
		WithHint("ask for less with --gpus, --cpus, --mem or --nodes")
}

// choose takes the best candidate: one that can start now, then the site's
// default, then one that allows the default time, then one with more nodes.
func choose(spec JobSpec, named bool, found []candidate) Plan {
	want := spec.Time
	if want == 0 {
		want = DefaultTime
	}
	need := max(1, spec.Nodes)
	score := func(c candidate) [5]int {
		var s [5]int
		if c.limit >= want {
			s[0] = 1
		}
		// Without GPUs the site's default is what the user expects.
		if spec.GPUs.Count == 0 && c.Default {
			s[1] = 1
		}
		if len(c.ready) >= need {
			s[2] = 1
		}
		if c.Default {
			s[3] = 1
		}
		s[4] = len(c.ready)*1000 + len(c.able)
		return s
	}
	best := found[0]
	for _, c := range found[1:] {
		a, b := score(c), score(best)
		if slices.Compare(a[:], b[:]) > 0 {
			best = c
		}
	}
	p := Plan{Spec: spec}
	if spec.Time == 0 {
		p.Spec.Time = min(DefaultTime, best.limit)
	}
	if named {
		p.Why = "asked for"
		best = candidate{Partition: best.Partition, able: unionNodes(found, false), ready: unionNodes(found, true)}
	} else {
		p.Spec.Partition = best.Name
		switch {
		case spec.GPUs.Count > 0 && len(found) == 1:
			p.Why = "the only partition with " + gpuWords(spec.GPUs.Type)
		case spec.GPUs.Count > 0 && len(best.ready) >= need:
			p.Why = "it has free " + gpuWords(spec.GPUs.Type)
		case best.Default:
			p.Why = "the site's default"
		default:
			p.Why = "it has what is asked for"
		}
	}
	if len(best.ready) < need {
		for _, n := range best.able {
			if why := n.busy(spec); why != "" {
				p.Warn = append(p.Warn, n.Name+": "+why)
			}
		}
	}
	return p
}

func unionNodes(found []candidate, ready bool) []Node {
	var all []Node
	for _, c := range found {
		list := c.able
		if ready {
			list = c.ready
		}
		for _, n := range list {
			if !slices.ContainsFunc(all, func(o Node) bool { return o.Name == n.Name }) {
				all = append(all, n)
			}
		}
	}
	return all
}

// busy says why a node can't give now what it could give.
func (n Node) busy(spec JobSpec) string {
	mem, _ := memoryMB(cmp.Or(spec.Mem, "0"))
	switch {
	case n.Blocked() != "":
		return n.Blocked()
	case n.GPUsFree(spec.GPUs.Type) < spec.GPUs.Count:
		return fmt.Sprintf("%d of %d %s free", n.GPUsFree(spec.GPUs.Type), n.GPUTotal(spec.GPUs.Type), gpuWords(spec.GPUs.Type))
	case n.CPUsFree() < max(1, spec.CPUs):
		return fmt.Sprintf("%d of %d CPUs free", n.CPUsFree(), n.CPUs)
	case n.MemFreeMB() < mem:
		return fmt.Sprintf("%d of %d MiB of memory free", n.MemFreeMB(), n.MemoryMB)
	}
	return ""
}

// gpuTypeOf gives the type as the site spells it. A type that no node has is
// an error that lists those there are.
func gpuTypeOf(want GPURequest, nodes []Node) (string, error) {
	if want.Count == 0 || want.Type == "" {
		return want.Type, nil
	}
	other := ""
	for _, n := range nodes {
		for typ := range n.GPUs {
			if typ == want.Type {
				return typ, nil
			}
			if strings.EqualFold(typ, want.Type) {
				other = typ
			}
		}
	}
	if other != "" {
		return other, nil
	}
	summary := gpuSummary(nodes)
	if summary == "" {
		return "", hpcexec.Errorf(hpcexec.ErrInvalid, "this cluster has no GPUs")
	}
	return "", hpcexec.Errorf(hpcexec.ErrInvalid, "no node has GPUs of type %s", want.Type).WithHint("there are: %s", summary)
}

// impossible is the error of a request that no partition can serve. Of
// partitions that have no such GPUs at all it doesn't speak where others have.
func impossible(spec JobSpec, refused []error, nodes []Node) error {
	var near, all []string
	for _, err := range refused {
		all = append(all, err.Error())
		if !errors.Is(err, errNoneThere) {
			near = append(near, err.Error())
		}
	}
	if len(near) == 0 {
		near = all
	}
	err := hpcexec.Errorf(hpcexec.ErrInvalid, "no partition can serve this: %s", strings.Join(near, "; "))
	if spec.GPUs.Count == 0 {
		return err
	}
	if summary := gpuSummary(nodes); summary != "" {
		return err.WithHint("there are: %s", summary)
	}
	return hpcexec.Errorf(hpcexec.ErrInvalid, "this cluster has no GPUs")
}

var errNoneThere = errors.New("none of that type in the partition")

// gpuSummary says what GPUs there are: "5 a100, at most 4 on a node; 2 h100".
func gpuSummary(nodes []Node) string {
	total, most := map[string]int{}, map[string]int{}
	for _, n := range nodes {
		for typ, count := range n.GPUs {
			total[typ] += count
			most[typ] = max(most[typ], count)
		}
	}
	var types []string
	for typ := range total {
		if total[typ] > 0 {
			types = append(types, typ)
		}
	}
	slices.Sort(types)
	var words []string
	for _, typ := range types {
		w := fmt.Sprintf("%d %s", total[typ], gpuWords(typ))
		if most[typ] < total[typ] {
			w += fmt.Sprintf(", at most %d on a node", most[typ])
		}
		words = append(words, w)
	}
	return strings.Join(words, "; ")
}

func gpuWords(typ string) string {
	if typ == "" {
		return "GPUs"
	}
	return typ
}

func partitionNames(parts []Partition) string {
	var names []string
	for _, p := range parts {
		name := p.Name
		if p.Default {
			name += " (default)"
		}
		if p.State != "UP" {
			name += " (closed)"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// clock writes a time limit as Slurm does: 1-00:00:00, 01:00:00.
func clock(d time.Duration) string {
	if d == Unlimited {
		return "unlimited time"
	}
	s := int64(d / time.Second)
	text := fmt.Sprintf("%02d:%02d:%02d", s/3600%24, s/60%60, s%60)
	if s >= 86400 {
		text = fmt.Sprintf("%d-%s", s/86400, text)
	}
	return text
}
