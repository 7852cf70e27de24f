package slurm

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseHostlist(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want []string
	}{
		{"gpu1", []string{"gpu1"}},
		{"gpu[1-2]", []string{"gpu1", "gpu2"}},
		{"gpu[1-2,7],cpu01", []string{"gpu1", "gpu2", "gpu7", "cpu01"}},
		{"n[008-011]", []string{"n008", "n009", "n010", "n011"}},
		{"r[1-2]n[01-02]-ib", []string{"r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib"}},
		{"(null)", nil},
		{"None assigned", nil},
		{"", nil},
		{"gpu[1-", []string{"gpu[1-"}},
		{"gpu[2-1]", []string{"gpu[2-1]"}},
		{"gpu[1-999999999]", []string{"gpu[1-999999999]"}},
		{"a[1-300]b[1-300]c[1-300]", []string{"a[1-300]b[1-300]c[1-300]"}},
	} {
		t.Run(tt.in, func(t *testing.T) {
			if got := ParseHostlist(tt.in); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestParseRecords(t *testing.T) {
	out := "NodeName=n1 Arch=x86_64  OS=Linux 6.1 #1 SMP a=b @0  State=IDLE MCS_label=N/A CPUs/Task=1 Reason=bad fan, see State=DOWN [root@2026-11-30T20:22:06]\n" +
		"NodeName=n2\n   State=DOWN\n   Reason=x\n\n"
	got := parseRecords(out, "NodeName")
	if len(got) != 2 {
		t.Fatalf("got %d records, want 2", len(got))
	}
	for key, want := range map[string]string{"OS": "Linux 6.1 #1 SMP a=b @0", "State": "IDLE", "CPUs/Task": "1", "Reason": "bad fan, see"} {
		if got[0][key] != want {
			t.Errorf("%s: got %q, want %q", key, got[0][key], want)
		}
	}
	if got[1]["State"] != "DOWN" || got[1]["Reason"] != "x" {
		t.Errorf("got %v, want the second node", got[1])
	}
}

func TestParseLimit(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want time.Duration
		ok   bool
	}{
		{"10:00", 10 * time.Minute, true},
		{"1:00:00", time.Hour, true},
		{"00:10:00", 10 * time.Minute, true},
		{"2-03:04:05", 51*time.Hour + 4*time.Minute + 5*time.Second, true},
		{"7-00:00:00", 7 * 24 * time.Hour, true},
		{"1-12", 36 * time.Hour, true},
		{"1-12:30", 36*time.Hour + 30*time.Minute, true},
		{"10", 10 * time.Minute, true},
		{"UNLIMITED", Unlimited, true},
		{"INFINITE", Unlimited, true},
		{"Partition_Limit", 0, false},
		{"NOT_SET", 0, false},
		{"INVALID", 0, false},
		{"NONE", 0, false},
		{"N/A", 0, false},
		{"", 0, false},
		{"1:2:3:4", 0, false},
		{"-1:00", 0, false},
		{"999999999999:00:00", 0, false},
	} {
		t.Run(tt.in, func(t *testing.T) {
			if got, ok := parseLimit(tt.in); got != tt.want || ok != tt.ok {
				t.Errorf("got %v, %v; want %v, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

func TestParseTime(t *testing.T) {
	want := time.Date(2026, 11, 30, 20, 18, 36, 0, time.UTC)
	if got := parseTime("2026-11-30T20:18:36"); !got.Equal(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, s := range []string{"N/A", "Unknown", "None", "NONE", "", "(null)", "1970-01-01T00:00:00", "20:18:36"} {
		if got := parseTime(s); !got.IsZero() {
			t.Errorf("%q: got %v, want no time", s, got)
		}
	}
}

func TestNodesOfEachRelease(t *testing.T) {
	eachRelease(t, func(t *testing.T, release string) {
		// The form of several lines, taken while jobs ran, and that of one.
		busy := ParseNodes(fixture(t, release, "scontrol-show-node.txt"))
		idle := ParseNodes(fixture(t, release, "scontrol-show-node-idle-oneliner.txt"))
		if len(busy) != 3 || len(idle) != 3 {
			t.Fatalf("got %d and %d nodes, want 3 and 3", len(busy), len(idle))
		}
		gpu1, gpu2, cpu1 := busy[1], busy[2], busy[0]
		if cpu1.Name != "cpu1" || cpu1.State != "ALLOCATED" || cpu1.CPUsFree() != 0 || cpu1.GPUTotal("") != 0 || cpu1.Blocked() != "" {
			t.Errorf("cpu1: got %+v", cpu1)
		}
		if gpu1.Name != "gpu1" || gpu1.State != "MIXED" || gpu1.Blocked() != "" ||
			!reflect.DeepEqual(gpu1.Partitions, []string{"gpu", "short"}) || gpu1.CPUs != 16 || gpu1.CPUsInUse != 4 ||
			gpu1.MemoryMB != 8000 || gpu1.MemUsedMB != 700 || gpu1.GPUTotal("a100") != 4 || gpu1.GPUsFree("a100") != 0 {
			t.Errorf("gpu1: got %+v", gpu1)
		}
		if gpu2.GPUTotal("") != 3 || gpu2.GPUTotal("h100") != 2 || gpu2.GPUTotal("a100") != 1 || gpu2.GPUsFree("h100") != 1 || gpu2.GPUsFree("a100") != 0 {
			t.Errorf("gpu2: got %+v", gpu2)
		}
		if idle[1].State != "IDLE" || idle[1].GPUsFree("a100") != 4 || idle[2].GPUsFree("h100") != 2 || idle[2].GPUsFree("") != 3 {
			t.Errorf("idle: got %+v", idle)
		}
		for _, n := range append(busy, idle...) {
			if len(n.Unknown) > 0 {
				t.Errorf("%s: GRES that can't be read: %q", n.Name, n.Unknown)
			}
		}
	})
}

func TestNodeStates(t *testing.T) {
	for _, tt := range []struct {
		state, reason, want string
	}{
		{"IDLE", "", ""},
		{"MIXED", "", ""},
		{"ALLOCATED", "", ""},
		{"IDLE+PLANNED", "", ""},
		{"MIXED+PLANNED", "", ""},
		{"IDLE+DRAIN", "bad fan [root@2026-11-30T20:22:06]", "drained: bad fan [root@2026-11-30T20:22:06]"},
		{"MIXED+DRAIN", "", "drained"},
		{"IDLE+MAINTENANCE+RESERVED", "", "in maintenance"},
		{"IDLE+RESERVED", "", "reserved"},
		{"IDLE+COMPLETING", "", "cleaning up after a job"},
		{"IDLE+NOT_RESPONDING", "", "doesn't respond"},
		{"IDLE*", "", "doesn't respond"},
		{"DOWN+NOT_RESPONDING", "Not responding [slurm@x]", "doesn't respond: Not responding [slurm@x]"},
		{"DOWN", "", "down"},
		{"IDLE+FAIL", "", "failing"},
		{"UNKNOWN+DRAIN+INVALID_REG", "Low CPUs", "refused by the controller: its hardware is less than configured: Low CPUs"},
		{"IDLE+POWERED_DOWN", "", "powered down"},
		{"MIXED+REBOOT_REQUESTED", "", "reboot requested"},
		{"FUTURE", "", "future"},
		{"SOMETHING_NEW", "", "something_new"},
	} {
		t.Run(tt.state, func(t *testing.T) {
			line := "NodeName=n1 State=" + tt.state + " CPUTot=4"
			if tt.reason != "" {
				line += " Reason=" + tt.reason
			}
			nodes := ParseNodes(line)
			if len(nodes) != 1 || nodes[0].Blocked() != tt.want {
				t.Errorf("got %+v, %q; want %q", nodes, nodes[0].Blocked(), tt.want)
			}
		})
	}
}

// TestGRESOnNodes has the forms that a site without types, with shards or with
// sockets shows.
func TestGRESOnNodes(t *testing.T) {
	for _, release := range []string{"24.11.5", "26.05.5"} {
		t.Run(release, func(t *testing.T) {
			nodes := ParseNodes(titled(t, release, "gres-variants.txt", "nodes").stdout)
			if len(nodes) != 2 {
				t.Fatalf("got %d nodes, want 2", len(nodes))
			}
			if n := nodes[0]; n.GPUTotal("") != 4 || n.GPUsFree("") != 2 || len(n.Unknown) > 0 {
				t.Errorf("gpu1: got %+v, want 2 of 4 untyped GPUs free", n)
			}
			if n := nodes[1]; n.GPUTotal("h100") != 2 || n.GPUsFree("h100") != 1 || n.GPUsFree("a100") != 0 {
				t.Errorf("gpu2: got %+v, want 1 of 2 h100 free and no a100", n)
			}
		})
	}
}

func TestPartitionsOfEachRelease(t *testing.T) {
	eachRelease(t, func(t *testing.T, release string) {
		out := fixture(t, release, "scontrol-show-partition.txt")
		parts := ParsePartitions(out)
		var names []string
		for _, p := range parts {
			names = append(names, p.Name)
		}
		if strings.Join(names, " ") != "cpu gpu short down" {
			t.Fatalf("got partitions %v, want cpu gpu short down", names)
		}
		cpu, gpu, short, down := parts[0], parts[1], parts[2], parts[3]
		if !cpu.Default || gpu.Default || gpu.MaxTime != time.Hour || gpu.DefaultTime != 10*time.Minute ||
			!reflect.DeepEqual(gpu.Nodes, []string{"gpu1", "gpu2"}) || gpu.MaxNodes != 0 || gpu.State != "UP" || gpu.AllowGroups != nil {
			t.Errorf("gpu: got %+v", gpu)
		}
		if short.MaxTime != 2*time.Minute || down.State != "DOWN" || down.DefaultTime != 0 {
			t.Errorf("got %+v and %+v", short, down)
		}
	})
}
