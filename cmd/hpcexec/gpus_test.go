package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec/slurm"
)

func TestGPUsJSON(t *testing.T) {
	tests := []struct {
		name string
		inv  slurm.Inventory
		want string
	}{
		{"none", slurm.Inventory{}, `{"as_of":"0001-01-01T00:00:00Z","gpus":[]}`},
		{"a row", slurm.Inventory{AsOf: time.Unix(0, 0), Rows: []slurm.GPURow{{
			Partition: "gpu", Default: true, Type: "a100", MaxTime: 2 * time.Hour, Nodes: 2, Most: 4,
			Total: 8, InUse: 1, Down: 4, Free: 3, Usable: 2, Best: 2, Why: []slurm.NodeNote{{Node: "gpu2", GPUs: 4, Why: "drained: fan"}},
		}}}, `{"as_of":"1970-01-01T00:00:00Z","gpus":[{"partition":"gpu","default":true,"type":"a100","max_time_seconds":7200,"nodes":2,"max_per_node":4,` +
			`"total":8,"in_use":1,"down":4,"free":3,"usable":2,"at_once":2,"closed":"","why":[{"node":"gpu2","gpus":4,"reason":"drained: fan"}]}]}`},
		{"no limit", slurm.Inventory{Rows: []slurm.GPURow{{Partition: "p", MaxTime: slurm.Unlimited, Closed: "it is DOWN"}}},
			`{"as_of":"0001-01-01T00:00:00Z","gpus":[{"partition":"p","default":false,"type":"","max_time_seconds":null,"nodes":0,"max_per_node":0,` +
				`"total":0,"in_use":0,"down":0,"free":0,"usable":0,"at_once":0,"closed":"it is DOWN","why":[]}]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := json.Marshal(gpusJSON(tt.inv))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("got %s\nwant %s", got, tt.want)
			}
		})
	}
}
