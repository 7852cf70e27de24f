package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/slurm"
)

func (in *invocation) gpusCommand() *cli.Command {
	return &cli.Command{
		Name:      "gpus",
		Usage:     "list the cluster's GPUs: how many, how many are free, why not",
		UsageText: "hpcexec gpus",
		Description: `A line per partition and type of GPU. A GPU is free when no job has it and
its node takes jobs; whether yours starts at once also depends on the CPUs and
the memory that it asks for, and on who else waits.

EXAMPLES:
   hpcexec gpus
   hpcexec gpus --json | jq '.gpus[] | select(.free > 0)'`,
		Action: in.gpus,
	}
}

func (in *invocation) gpus(c *cli.Context) error {
	if _, err := in.args(0, 0, "no name"); err != nil {
		return err
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		client := slurm.New(&hpcexec.Local{}, slurm.Options{})
		parts, err := client.Partitions(ctx)
		if err != nil {
			return err
		}
		nodes, err := client.Nodes(ctx)
		if err != nil {
			return err
		}
		rows := gpuInventory(parts, nodes)
		if in.json {
			return printJSON(in.out, map[string]any{"gpus": notNil(rows)})
		}
		if len(rows) == 0 {
			_, err := fmt.Fprintln(in.out, "this cluster has no GPUs")
			return err
		}
		t := newTable("PARTITION", "TYPE", "NODES", "TOTAL", "IN USE", "FREE", "MOST FREE ON A NODE", "WHY NOT")
		for _, r := range rows {
			t.row(r.Partition, r.Type, fmt.Sprint(r.Nodes), fmt.Sprint(r.Total), fmt.Sprint(r.InUse), fmt.Sprint(r.Free),
				fmt.Sprint(r.MostFree), strings.Join(r.Why, "; "))
		}
		return t.print(in.out)
	})
}

// gpuRow is what gpus says of one type of GPU in one partition.
type gpuRow struct {
	Partition  string   `json:"partition"`
	Type       string   `json:"type"` // empty where the site names none
	Nodes      int      `json:"nodes"`
	Total      int      `json:"total"`
	InUse      int      `json:"in_use"`
	Blocked    int      `json:"blocked"` // not in use, on nodes that take no jobs
	Free       int      `json:"free"`
	MaxPerNode int      `json:"max_per_node"`
	MostFree   int      `json:"most_free_on_a_node"`
	Why        []string `json:"why"` // why some can't be had: a reason per node
}

// gpuInventory counts the GPUs by partition and type.
func gpuInventory(parts []slurm.Partition, nodes []slurm.Node) []gpuRow {
	var rows []gpuRow
	for _, p := range parts {
		of := map[string]*gpuRow{}
		for _, n := range nodes {
			if !slices.Contains(n.Partitions, p.Name) {
				continue
			}
			for typ, total := range n.GPUs {
				r := of[typ]
				if r == nil {
					r = &gpuRow{Partition: p.Name, Type: typ, Why: []string{}}
					of[typ] = r
					if p.State != "UP" {
						r.Why = append(r.Why, "the partition is closed ("+p.State+")")
					}
				}
				r.count(p, n, total)
			}
		}
		for _, r := range of {
			rows = append(rows, *r)
		}
	}
	slices.SortFunc(rows, func(a, b gpuRow) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Type, b.Type))
	})
	return rows
}

// count adds a node's GPUs of the row's type.
func (r *gpuRow) count(p slurm.Partition, n slurm.Node, total int) {
	used := min(total, n.GPUsInUse[r.Type])
	r.Nodes++
	r.Total += total
	r.InUse += used
	r.MaxPerNode = max(r.MaxPerNode, total)
	switch why := n.Blocked(); {
	case why != "":
		r.Blocked += total - used
		r.Why = append(r.Why, n.Name+" is "+why)
	case p.State != "UP":
		r.Blocked += total - used
	default:
		r.Free += total - used
		r.MostFree = max(r.MostFree, total-used)
	}
}
