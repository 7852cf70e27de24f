package slurm

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
)

// testCluster is the cluster of the fixtures, while jobs run.
func testCluster(t testing.TB, release string) ([]Partition, []Node) {
	return ParsePartitions(fixture(t, release, "scontrol-show-partition.txt")), ParseNodes(fixture(t, release, "scontrol-show-node.txt"))
}

var ada = Site{User: "ada", Groups: []string{"ada"}}

func TestPlanOfEachRelease(t *testing.T) {
	eachRelease(t, func(t *testing.T, release string) {
		parts, nodes := testCluster(t, release)
		for _, tt := range []struct {
			name      string
			spec      JobSpec
			partition string
			time      time.Duration
			warn      string
			wantErr   error
			text      string // of the error
			hint      string
		}{
			{name: "nothing asked", partition: "cpu", time: time.Hour, warn: "cpu1: 0 of 8 CPUs free"},
			{name: "a type that one partition has", spec: JobSpec{GPUs: GPURequest{"h100", 1}}, partition: "gpu", time: time.Hour},
			{name: "a type as it isn't spelt", spec: JobSpec{GPUs: GPURequest{"H100", 1}}, partition: "gpu", time: time.Hour},
			{name: "any GPU", spec: JobSpec{GPUs: GPURequest{Count: 1}}, partition: "gpu", time: time.Hour},
			{name: "all in use", spec: JobSpec{GPUs: GPURequest{"a100", 2}}, partition: "gpu", time: time.Hour, warn: "gpu1: 0 of 4 a100 free"},
			{name: "short partition named", spec: JobSpec{Partition: "short"}, partition: "short", time: 2 * time.Minute},
			{name: "more GPUs than any node", spec: JobSpec{GPUs: GPURequest{"h100", 3}}, wantErr: hpcexec.ErrInvalid,
				text: "no partition can serve this: partition gpu has no node with more than 2 h100, and 3 are asked for on each node", hint: "5 a100, at most 4 on a node; 2 h100"},
			{name: "more GPUs than the named partition", spec: JobSpec{Partition: "gpu", GPUs: GPURequest{Count: 5}}, wantErr: hpcexec.ErrInvalid,
				text: "no node with more than 4 GPUs", hint: "there are: 5 a100"},
			{name: "no such type", spec: JobSpec{GPUs: GPURequest{"v100", 1}}, wantErr: hpcexec.ErrInvalid,
				text: "no node has GPUs of type v100", hint: "there are: 5 a100, at most 4 on a node; 2 h100"},
			{name: "type not in the named partition", spec: JobSpec{Partition: "short", GPUs: GPURequest{"h100", 1}}, wantErr: hpcexec.ErrInvalid,
				text: "partition short has no h100"},
			{name: "GPUs in a partition without", spec: JobSpec{Partition: "cpu", GPUs: GPURequest{Count: 1}}, wantErr: hpcexec.ErrInvalid, text: "partition cpu has no GPUs"},
			{name: "no such partition", spec: JobSpec{Partition: "nosuch"}, wantErr: hpcexec.ErrInvalid, text: "there is no partition nosuch",
				hint: "cpu (default), gpu, short, down (closed)"},
			{name: "closed partition", spec: JobSpec{Partition: "down"}, wantErr: hpcexec.ErrUnavailable, text: "closed"},
			{name: "too much time", spec: JobSpec{Time: 2 * time.Hour}, wantErr: hpcexec.ErrInvalid, text: "allows 01:00:00 at most"},
			{name: "too much time there", spec: JobSpec{Partition: "short", Time: time.Hour}, wantErr: hpcexec.ErrInvalid, text: "partition short allows 00:02:00 at most"},
			{name: "too many CPUs", spec: JobSpec{CPUs: 99}, wantErr: hpcexec.ErrInvalid, text: "more than 8 CPUs"},
			{name: "too much memory", spec: JobSpec{Mem: "1T"}, wantErr: hpcexec.ErrInvalid, text: "more than 4000 MiB"},
			{name: "too many nodes", spec: JobSpec{GPUs: GPURequest{"a100", 1}, Nodes: 3}, wantErr: hpcexec.ErrInvalid, text: "has 2 nodes with all that is asked for, and 3"},
			{name: "CPUs that only another partition has", spec: JobSpec{CPUs: 12}, partition: "gpu", time: time.Hour},
			{name: "one of two partitions", spec: JobSpec{Partition: "short,gpu", GPUs: GPURequest{"h100", 1}}, partition: "short,gpu", time: time.Hour},
		} {
			t.Run(tt.name, func(t *testing.T) {
				p, err := plan(tt.spec, ada, parts, nodes)
				if !errors.Is(err, tt.wantErr) || (err == nil) != (tt.wantErr == nil) {
					t.Fatalf("got %v, want %v", err, tt.wantErr)
				}
				if err != nil {
					if !strings.Contains(err.Error(), tt.text) || !strings.Contains(hpcexec.Hint(err), tt.hint) {
						t.Errorf("got %q, hint %q; want %q, %q", err, hpcexec.Hint(err), tt.text, tt.hint)
					}
					return
				}
				if p.Spec.Partition != tt.partition || p.Spec.Time != tt.time {
					t.Errorf("got partition %q (%s), time %v; want %q, %v", p.Spec.Partition, p.Why, p.Spec.Time, tt.partition, tt.time)
				}
				if got := strings.Join(p.Warn, "; "); tt.warn == "" && got != "" || !strings.Contains(got, tt.warn) {
					t.Errorf("got warnings %q, want %q", got, tt.warn)
				}
			})
		}
	})
}

func TestPlanOfARestrictedPartition(t *testing.T) {
	parts := ParsePartitions("PartitionName=vip AllowGroups=vips AllowAccounts=ALL AllowQos=long Default=YES MaxTime=UNLIMITED Nodes=n1 State=UP\n" +
		"PartitionName=acc AllowGroups=ALL DenyAccounts=bad Default=NO MaxTime=1-00:00:00 Nodes=n1 State=UP\n")
	nodes := ParseNodes("NodeName=n1 State=IDLE CPUTot=4 RealMemory=1000 Partitions=vip,acc\n")
	for _, tt := range []struct {
		name      string
		groups    []string
		spec      JobSpec
		partition string
		wantErr   error
	}{
		{"not in the group", nil, JobSpec{}, "acc", nil},
		{"in the group", []string{"vips"}, JobSpec{QOS: "long"}, "vip", nil},
		{"named, not in the group", nil, JobSpec{Partition: "vip"}, "", hpcexec.ErrInvalid},
		{"wrong QOS", []string{"vips"}, JobSpec{Partition: "vip", QOS: "short"}, "", hpcexec.ErrInvalid},
		{"account refused", nil, JobSpec{Account: "bad"}, "", hpcexec.ErrInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := plan(tt.spec, Site{Groups: tt.groups}, parts, nodes)
			if !errors.Is(err, tt.wantErr) || p.Spec.Partition != tt.partition {
				t.Errorf("got %q, %v; want %q, %v", p.Spec.Partition, err, tt.partition, tt.wantErr)
			}
		})
	}
}

func TestInventoryOfEachRelease(t *testing.T) {
	eachRelease(t, func(t *testing.T, release string) {
		parts, nodes := testCluster(t, release)
		inv := inventory(ada, parts, nodes)
		type counts struct {
			partition, typ                                         string
			nodes, most, total, inUse, down, free, usable, bestOne int
		}
		var got []counts
		for _, r := range inv.Rows {
			got = append(got, counts{r.Partition, r.Type, r.Nodes, r.Most, r.Total, r.InUse, r.Down, r.Free, r.Usable, r.Best})
		}
		want := []counts{
			{"gpu", "a100", 2, 4, 5, 5, 0, 0, 0, 0},
			{"gpu", "h100", 1, 2, 2, 1, 0, 1, 1, 1},
			{"short", "a100", 1, 4, 4, 4, 0, 0, 0, 0},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got\n%+v\nwant\n%+v", got, want)
		}
	})
}

func TestInventorySaysWhyNot(t *testing.T) {
	parts := ParsePartitions("PartitionName=gpu Nodes=n[1-6] State=UP\nPartitionName=shut Nodes=n1 State=DOWN\n")
	nodes := ParseNodes(strings.Join([]string{
		"NodeName=n1 State=IDLE CPUAlloc=0 CPUTot=8 RealMemory=1000 AllocMem=0 Gres=gpu:a100:4 GresUsed=gpu:a100:0(IDX:N/A) Partitions=gpu,shut",
		"NodeName=n2 State=MIXED CPUAlloc=6 CPUTot=8 RealMemory=1000 AllocMem=10 Gres=gpu:a100:4 GresUsed=gpu:a100:1(IDX:0) Partitions=gpu",
		"NodeName=n3 State=ALLOCATED CPUAlloc=8 CPUTot=8 RealMemory=1000 AllocMem=10 Gres=gpu:a100:4 GresUsed=gpu:a100:1(IDX:0) Partitions=gpu",
		"NodeName=n4 State=MIXED CPUAlloc=1 CPUTot=8 RealMemory=1000 AllocMem=1000 Gres=gpu:a100:4 GresUsed=gpu:a100:1(IDX:0) Partitions=gpu",
		"NodeName=n5 State=MIXED+DRAIN CPUAlloc=1 CPUTot=8 RealMemory=1000 AllocMem=0 Gres=gpu:a100:4 GresUsed=gpu:a100:1(IDX:0) Partitions=gpu Reason=bad fan",
		"NodeName=n6 State=IDLE CPUAlloc=0 CPUTot=8 CPUEfctv=6 RealMemory=1000 AllocMem=0 Gres=gpu:4 GresUsed=gpu:(null):1(IDX:0) Partitions=gpu",
	}, "\n"))
	if n := ParseNodes("NodeName=n7 State=MIXED CPUTot=8 Gres=gpu:a100:4 GresUsed=gpu:3(IDX:0-2)")[0]; n.GPUsFree("a100") != 1 {
		t.Errorf("use without a type: got %d free, want 1", n.GPUsFree("a100"))
	}
	inv := inventory(ada, parts, nodes)
	if len(inv.Rows) != 3 {
		t.Fatalf("got %+v, want 3 rows", inv.Rows)
	}
	untyped, a100, shut := inv.Rows[0], inv.Rows[1], inv.Rows[2]
	if untyped.Type != "" || untyped.Total != 4 || untyped.Usable != 3 {
		t.Errorf("untyped: got %+v", untyped)
	}
	if a100.Total != 20 || a100.InUse != 4 || a100.Down != 3 || a100.Free != 13 || a100.Usable != 4+2 || a100.Best != 4 {
		t.Errorf("a100: got %+v", a100)
	}
	want := []NodeNote{{"n2", 1, "only 2 of 8 CPUs are free"}, {"n3", 3, "all 8 CPUs are in use"}, {"n4", 3, "all 1000 MiB of memory are in use"}, {"n5", 3, "drained: bad fan"}}
	if !reflect.DeepEqual(a100.Why, want) {
		t.Errorf("got %+v, want %+v", a100.Why, want)
	}
	if shut.Closed != "the partition is DOWN" || shut.Usable != 0 || shut.Free != 4 {
		t.Errorf("closed: got %+v", shut)
	}
}
