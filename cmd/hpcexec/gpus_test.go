package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hpcexec/hpcexec/slurm"
)

func TestGPUInventory(t *testing.T) {
	parts := []slurm.Partition{
		{Name: "gpu", State: "UP"}, {Name: "cpu", State: "UP"}, {Name: "closed", State: "DOWN"},
	}
	nodes := []slurm.Node{
		{Name: "cpu1", Partitions: []string{"cpu"}, State: "IDLE"},
		{Name: "gpu1", Partitions: []string{"gpu", "closed"}, State: "MIXED", GPUs: map[string]int{"a100": 4}, GPUsInUse: map[string]int{"a100": 1}},
		{Name: "gpu2", Partitions: []string{"gpu"}, State: "IDLE", GPUs: map[string]int{"a100": 2, "h100": 1}},
		{Name: "gpu3", Partitions: []string{"gpu"}, State: "IDLE", Flags: []string{"DRAIN"}, Reason: "fan", GPUs: map[string]int{"h100": 2}, GPUsInUse: map[string]int{"h100": 1}},
	}
	want := []gpuRow{
		{Partition: "closed", Type: "a100", Nodes: 1, Total: 4, InUse: 1, Blocked: 3, MaxPerNode: 4, Why: []string{"the partition is closed (DOWN)"}},
		{Partition: "gpu", Type: "a100", Nodes: 2, Total: 6, InUse: 1, Free: 5, MaxPerNode: 4, MostFree: 3, Why: []string{}},
		{Partition: "gpu", Type: "h100", Nodes: 2, Total: 3, InUse: 1, Blocked: 1, Free: 1, MaxPerNode: 2, MostFree: 1, Why: []string{"gpu3 is drained: fan"}},
	}
	if diff := cmp.Diff(want, gpuInventory(parts, nodes)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := gpuInventory(parts[1:2], nodes); len(got) != 0 {
		t.Errorf("partition without GPUs: got %v, want nothing", got)
	}
}
