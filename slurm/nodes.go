package slurm

import (
	"context"
	"strings"
)

// A Node is a compute node as the controller sees it now.
type Node struct {
	Name       string
	Partitions []string

	State  string   // the base: IDLE, MIXED, ALLOCATED, DOWN, UNKNOWN, …
	Flags  []string // DRAIN, PLANNED, NOT_RESPONDING, …
	Reason string   // why it is down or drained, as its administrator wrote it

	CPUs, CPUsInUse     int
	MemoryMB, MemUsedMB int // configured, and given to jobs

	GPUs      map[string]int // by type; "" where the site names none
	GPUsInUse map[string]int
	Features  []string
	Unknown   []string // GRES entries that couldn't be read, as they came
}

// Nodes asks for all nodes. scontrol is asked, since the first answer of sinfo
// after a change mixes old and new states, and cuts columns in silence.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	out, err := c.run(ctx, call{prog: "scontrol", args: []string{"show", "node", "-d", "-o"}})
	if err != nil {
		return nil, err
	}
	return ParseNodes(out), nil
}

// ParseNodes reads the output of `scontrol show node -d`, with -o or without.
func ParseNodes(out string) []Node {
	var nodes []Node
	for _, r := range parseRecords(out, "NodeName") {
		states := strings.Split(r["State"], "+")
		n := Node{
			Name:       r["NodeName"],
			Partitions: r.list("Partitions"),
			State:      strings.TrimRight(strings.ToUpper(states[0]), "*$~#%@^!-"),
			Reason:     r.text("Reason"),
			CPUs:       r.int("CPUTot"),
			CPUsInUse:  r.int("CPUAlloc"),
			MemoryMB:   r.int("RealMemory"),
			MemUsedMB:  r.int("AllocMem"),
			Features:   r.list("ActiveFeatures"),
		}
		// CPUs that are kept for the system can't be had (known since 21.08).
		if effective := r.int("CPUEfctv"); effective > 0 {
			n.CPUs = effective
		}
		n.MemoryMB -= min(r.int("MemSpecLimit"), n.MemoryMB)
		for _, f := range states[1:] {
			n.Flags = append(n.Flags, strings.TrimRight(strings.ToUpper(f), "*$~#%@^!-"))
		}
		if strings.HasSuffix(states[0], "*") {
			n.Flags = append(n.Flags, "NOT_RESPONDING")
		}
		total, unknown := ParseGRES(r["Gres"])
		used, unknownUsed := ParseGRES(r["GresUsed"])
		n.GPUs, n.GPUsInUse = gpuCounts(total), gpuCounts(used)
		n.Unknown = append(unknown, unknownUsed...)
		nodes = append(nodes, n)
	}
	return nodes
}

// blocking are the flags of a node that takes no new jobs, with words. PLANNED
// isn't one: shorter jobs still start there.
var blocking = []struct{ flag, words string }{
	{"INVALID_REG", "refused by the controller: its hardware is less than configured"},
	{"NOT_RESPONDING", "doesn't respond"},
	{"DRAIN", "drained"},
	{"DOWN", "down"},
	{"FAIL", "failing"},
	{"MAINTENANCE", "in maintenance"},
	{"RESERVED", "reserved"},
	{"COMPLETING", "cleaning up after a job"},
}

// Blocked says in words why a node takes no new jobs at all, whatever they ask
// for; empty: it takes some. A node that is only full isn't blocked.
func (n Node) Blocked() string {
	why := ""
	for _, b := range blocking {
		for _, f := range n.Flags {
			if f == b.flag && why == "" {
				why = b.words
			}
		}
	}
	for _, f := range n.Flags {
		if why == "" && (strings.HasPrefix(f, "REBOOT") || strings.HasPrefix(f, "POWER")) {
			why = strings.ToLower(strings.ReplaceAll(f, "_", " "))
		}
	}
	if why == "" {
		switch n.State {
		case "IDLE", "MIXED", "ALLOCATED":
		default:
			why = strings.ToLower(n.State)
		}
	}
	if why != "" && n.Reason != "" {
		why += ": " + n.Reason
	}
	return why
}

// CPUsFree and MemFreeMB are what no job has.
func (n Node) CPUsFree() int { return max(0, n.CPUs-n.CPUsInUse) }

// MemFreeMB is the memory that no job has, in MiB.
func (n Node) MemFreeMB() int { return max(0, n.MemoryMB-n.MemUsedMB) }

// GPUTotal is the number of GPUs of a type, or of all types where typ is empty.
func (n Node) GPUTotal(typ string) int { return gpusOf(n.GPUs, typ) }

// GPUsFree is the number of GPUs of a type (empty: of all) that no job has.
func (n Node) GPUsFree(typ string) int {
	return max(0, gpusOf(n.GPUs, typ)-n.usedOf(typ))
}

// usedOf is the number of GPUs of a type (empty: of all) that jobs have.
// GresUsed may name no type though Gres names one: it is that one then.
func (n Node) usedOf(typ string) int {
	used := gpusOf(n.GPUsInUse, typ)
	if typ != "" && len(n.GPUs) == 1 {
		used += n.GPUsInUse[""]
	}
	return used
}

func gpusOf(m map[string]int, typ string) int {
	if typ != "" {
		return m[typ]
	}
	sum := 0
	for _, n := range m {
		sum += n
	}
	return sum
}
