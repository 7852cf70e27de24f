package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/slurm"
)

func (in *invocation) gpusCommand() *cli.Command {
	return &cli.Command{
		Name:      "gpus",
		Usage:     "list the cluster's GPUs: how many, how many are free, why not",
		UsageText: "hpcexec gpus",
		Description: `A line for each partition and type of GPU:

   FREE      no job has them, and their nodes take jobs
   USABLE    free, and a CPU and memory are free beside each
   AT ONCE   the most usable ones on one node: what --gpus N can get now, if
             nobody else waits for them

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
		inv, err := slurm.New(&hpcexec.Local{}, slurm.Options{}).GPUs(ctx)
		if err != nil {
			return err
		}
		if in.json {
			return printJSON(in.out, gpusJSON(inv))
		}
		if len(inv.Rows) == 0 {
			_, err := fmt.Fprintln(in.out, "this cluster has no GPUs")
			return err
		}
		t := newTable("PARTITION", "TYPE", "NODES", "TOTAL", "IN USE", "FREE", "USABLE", "AT ONCE", "WHY NOT")
		for _, r := range inv.Rows {
			var why []string
			if r.Closed != "" {
				why = append(why, r.Closed)
			}
			for _, n := range r.Why {
				why = append(why, fmt.Sprintf("%d on %s: %s", n.GPUs, n.Node, n.Why))
			}
			t.row(r.Partition, r.Type, fmt.Sprint(r.Nodes), fmt.Sprint(r.Total), fmt.Sprint(r.InUse), fmt.Sprint(r.Free),
				fmt.Sprint(r.Usable), fmt.Sprint(r.Best), strings.Join(why, "; "))
		}
		return t.print(in.out)
	})
}

// gpuList is what gpus --json prints.
type gpuList struct {
	AsOf time.Time `json:"as_of"`
	GPUs []gpuRow  `json:"gpus"`
}

// gpuRow is slurm.GPURow.
type gpuRow struct {
	Partition  string    `json:"partition"`
	Default    bool      `json:"default"`
	Type       string    `json:"type"`
	MaxTime    *int64    `json:"max_time_seconds"` // null: no limit
	Nodes      int       `json:"nodes"`
	MaxPerNode int       `json:"max_per_node"`
	Total      int       `json:"total"`
	InUse      int       `json:"in_use"`
	Down       int       `json:"down"`
	Free       int       `json:"free"`
	Usable     int       `json:"usable"`
	AtOnce     int       `json:"at_once"`
	Closed     string    `json:"closed"`
	Why        []gpuNote `json:"why"`
}

// gpuNote is slurm.NodeNote.
type gpuNote struct {
	Node   string `json:"node"`
	GPUs   int    `json:"gpus"`
	Reason string `json:"reason"`
}

func gpusJSON(inv slurm.Inventory) gpuList {
	list := gpuList{AsOf: inv.AsOf.UTC(), GPUs: []gpuRow{}}
	for _, r := range inv.Rows {
		row := gpuRow{
			Partition: r.Partition, Default: r.Default, Type: r.Type, Nodes: r.Nodes, MaxPerNode: r.Most,
			Total: r.Total, InUse: r.InUse, Down: r.Down, Free: r.Free, Usable: r.Usable, AtOnce: r.Best, Closed: r.Closed, Why: []gpuNote{},
		}
		if r.MaxTime != slurm.Unlimited {
			seconds := int64(r.MaxTime.Seconds())
			row.MaxTime = &seconds
		}
		for _, n := range r.Why {
			row.Why = append(row.Why, gpuNote{n.Node, n.GPUs, n.Why})
		}
		list.GPUs = append(list.GPUs, row)
	}
	return list
}
