package slurm

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// An Inventory says which GPUs a cluster has, and which of them can be had.
type Inventory struct {
	Rows []GPURow // by partition, in the controller's order, then by type
	AsOf time.Time
}

// A GPURow has the GPUs of one type in one partition. A node that is in two
// partitions counts in both rows, so totals of rows aren't totals of the
// cluster.
type GPURow struct {
	Partition string
	Default   bool   // the partition that jobs go to which name none
	Closed    string // why the partition takes no jobs, or none of the user's
	Type      string // "" where the site names no types
	MaxTime   time.Duration

	Nodes int // that have such GPUs
	Most  int // the most on one node

	Total  int
	InUse  int // jobs have them
	Down   int // not in use, on nodes that take no jobs
	Free   int // not in use, on nodes that take jobs
	Usable int // free, with a free CPU and free memory beside each
	Best   int // the most usable ones on one node: what --gpus N can get at once

	Why []NodeNote // what keeps GPUs that are not in use from being used
}

// A NodeNote says why GPUs of a node that no job has can't be had.
type NodeNote struct {
	Node string
	GPUs int
	Why  string // "drained: bad fan [root@…]", "no free CPU"
}

// GPUs asks what GPUs there are, per partition and type.
func (c *Client) GPUs(ctx context.Context) (Inventory, error) {
	site, err := c.Site(ctx)
	if err != nil {
		return Inventory{}, err
	}
	parts, err := c.Partitions(ctx)
	if err != nil {
		return Inventory{}, err
	}
	asked := time.Now()
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return Inventory{}, err
	}
	inv := inventory(site, parts, nodes)
	inv.AsOf = asked
	return inv, nil
}

// inventory counts.
func inventory(site Site, parts []Partition, nodes []Node) Inventory {
	var inv Inventory
	for _, p := range parts {
		rows := map[string]*GPURow{}
		var types []string
		for _, n := range nodes {
			if !slices.Contains(n.Partitions, p.Name) {
				continue
			}
			for typ, total := range n.GPUs {
				if total <= 0 {
					continue
				}
				row := rows[typ]
				if row == nil {
					row = &GPURow{Partition: p.Name, Default: p.Default, Type: typ, MaxTime: p.MaxTime, Closed: p.closed(site)}
					rows[typ] = row
					types = append(types, typ)
				}
				row.add(n, total)
			}
		}
		slices.SortFunc(types, func(a, b string) int { return cmp.Compare(a, b) })
		for _, typ := range types {
			inv.Rows = append(inv.Rows, *rows[typ])
		}
	}
	return inv
}

func (p Partition) closed(site Site) string {
	if p.State != "UP" {
		return "the partition is " + p.State
	}
	return p.refuses(site.Groups, "", "")
}

// add counts the GPUs of one node.
func (r *GPURow) add(n Node, total int) {
	used := min(n.usedOf(r.Type), total)
	free := total - used
	r.Nodes++
	r.Most = max(r.Most, total)
	r.Total += total
	r.InUse += used
	if free == 0 {
		return
	}
	if why := n.Blocked(); why != "" {
		r.Down += free
		r.Why = append(r.Why, NodeNote{n.Name, free, why})
		return
	}
	r.Free += free
	// A job has at least one CPU and some memory, however many GPUs. One that
	// asks for a CPU for each GPU is what most are.
	usable := min(free, n.CPUsFree())
	why := ""
	switch {
	case n.CPUsFree() == 0:
		why = fmt.Sprintf("all %d CPUs are in use", n.CPUs)
	case n.MemoryMB > 0 && n.MemFreeMB() == 0:
		usable, why = 0, fmt.Sprintf("all %d MiB of memory are in use", n.MemoryMB)
	case usable < free:
		why = fmt.Sprintf("only %d of %d CPUs are free", n.CPUsFree(), n.CPUs)
	}
	if why != "" {
		r.Why = append(r.Why, NodeNote{n.Name, free - usable, why})
	}
	if r.Closed != "" {
		return
	}
	r.Usable += usable
	r.Best = max(r.Best, usable)
}
