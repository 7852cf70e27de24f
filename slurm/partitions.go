package slurm

import (
	"context"
	"slices"
	"strings"
	"time"
)

// A Partition is a queue. Partitions that are hidden or that the user may not
// use are not shown by the controller.
type Partition struct {
	Name    string
	Default bool   // jobs that name no partition go there
	State   string // UP, DOWN, DRAIN, INACTIVE
	Nodes   []string

	MaxTime     time.Duration // Unlimited where there is none
	DefaultTime time.Duration // 0: MaxTime
	MaxNodes    int           // 0: no limit

	AllowGroups, AllowAccounts, AllowQOS []string // nil: all
	DenyAccounts, DenyQOS                []string
}

// Partitions asks for the partitions that the user may see.
func (c *Client) Partitions(ctx context.Context) ([]Partition, error) {
	out, err := c.run(ctx, call{prog: "scontrol", args: []string{"show", "partition", "-o"}})
	if err != nil {
		return nil, err
	}
	return ParsePartitions(out), nil
}

// ParsePartitions reads the output of `scontrol show partition`.
func ParsePartitions(out string) []Partition {
	var parts []Partition
	for _, r := range parseRecords(out, "PartitionName") {
		p := Partition{
			Name:          r["PartitionName"],
			Default:       r["Default"] == "YES",
			State:         r["State"],
			Nodes:         ParseHostlist(r["Nodes"]),
			MaxTime:       Unlimited,
			MaxNodes:      r.int("MaxNodes"),
			AllowGroups:   allowed(r, "AllowGroups"),
			AllowAccounts: allowed(r, "AllowAccounts"),
			AllowQOS:      allowed(r, "AllowQos"),
			DenyAccounts:  r.list("DenyAccounts"),
			DenyQOS:       r.list("DenyQos"),
		}
		if d, ok := parseLimit(r["MaxTime"]); ok {
			p.MaxTime = d
		}
		if d, ok := parseLimit(r["DefaultTime"]); ok {
			p.DefaultTime = d
		}
		parts = append(parts, p)
	}
	return parts
}

func allowed(r record, key string) []string {
	if v := r[key]; v == "ALL" || v == "" {
		return nil
	}
	return r.list(key)
}

// refuses says why a job may not use the partition; empty: it may.
func (p Partition) refuses(groups []string, account, qos string) string {
	if p.AllowGroups != nil && !slices.ContainsFunc(groups, func(g string) bool { return slices.Contains(p.AllowGroups, g) }) {
		return "it is only for the groups " + strings.Join(p.AllowGroups, ", ")
	}
	if account != "" {
		if p.AllowAccounts != nil && !slices.Contains(p.AllowAccounts, account) {
			return "it is only for the accounts " + strings.Join(p.AllowAccounts, ", ")
		}
		if slices.Contains(p.DenyAccounts, account) {
			return "it is not for the account " + account
		}
	}
	if qos != "" {
		if p.AllowQOS != nil && !slices.Contains(p.AllowQOS, qos) {
			return "it is only for the QOS " + strings.Join(p.AllowQOS, ", ")
		}
		if slices.Contains(p.DenyQOS, qos) {
			return "it is not for the QOS " + qos
		}
	}
	return ""
}
