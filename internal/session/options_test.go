package session

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hpcexec/hpcexec"
)

func TestMergeRefusesWhatDiffers(t *testing.T) {
	have := Options{Place: "slurm", Image: "/a.sif", GPUs: "a100:1", Time: Duration(time.Hour), Binds: []Bind{{"/p", "/p", false}}}
	tests := []struct {
		name    string
		given   Options
		differs string // an option that the error must name; empty: accepted
	}{
		{"nothing given", Options{}, ""},
		{"the same again", have, ""},
		{"place", Options{Place: "local"}, "place is slurm, not local"},
		{"image", Options{Image: "/b.sif"}, "image is /a.sif, not /b.sif"},
		{"time", Options{Time: Duration(time.Minute)}, "time is 1h0m0s, not 1m0s"},
		{"one that isn't set", Options{Partition: "gpu"}, "partition is not set, not gpu"},
		{"binds", Options{Binds: []Bind{{"/q", "/q", false}}}, "binds is"},
		{"a switch", Options{Fakeroot: true}, "fakeroot is not set, not true"},
		{"slurm options", Options{SlurmOpts: []string{"--exclusive"}}, "slurm_opts is not set"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := (&Record{Name: "train", Options: have}).Merge(tt.given)
			if tt.differs == "" {
				if err != nil {
					t.Fatalf("Merge: %v", err)
				}
				if diff := cmp.Diff(have, got); diff != "" {
					t.Errorf("Merge changed the options (-want +got):\n%s", diff)
				}
				return
			}
			if !errors.Is(err, hpcexec.ErrInvalid) || !strings.Contains(err.Error(), tt.differs) {
				t.Errorf("Merge error: got %v, want ErrInvalid with %q", err, tt.differs)
			}
		})
	}
}

func TestParseBind(t *testing.T) {
	tests := []struct {
		in   string
		want Bind
		ok   bool
	}{
		{"/data", Bind{"/data", "/data", false}, true},
		{"/data:/d", Bind{"/data", "/d", false}, true},
		{"/data:/d:ro", Bind{"/data", "/d", true}, true},
		{"/data:ro", Bind{"/data", "/data", true}, true},
		{"/data:/d:rw", Bind{"/data", "/d", false}, true},
		{"/with space:/d", Bind{"/with space", "/d", false}, true},
		{"data", Bind{}, false},
		{"/data:d", Bind{}, false},
		{"/a:/b:/c", Bind{}, false},
		{"", Bind{}, false},
		{":ro", Bind{}, false},
	}
	for _, tt := range tests {
		got, err := ParseBind(tt.in)
		if (err == nil) != tt.ok {
			t.Errorf("ParseBind(%q) error: got %v, want ok %v", tt.in, err, tt.ok)
			continue
		}
		if err != nil && !errors.Is(err, hpcexec.ErrInvalid) {
			t.Errorf("ParseBind(%q) error: got %v, want ErrInvalid", tt.in, err)
		}
		if err == nil && got != tt.want {
			t.Errorf("ParseBind(%q): got %+v, want %+v", tt.in, got, tt.want)
		}
	}
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"a", "train", "0", "a.b_c-d", strings.Repeat("a", 63)} {
		if err := CheckName(name); err != nil {
			t.Errorf("CheckName(%q): got %v, want it allowed", name, err)
		}
	}
	for _, name := range []string{"", "A", "-a", ".a", "_a", "a/b", "a b", "a\n", "ä", "..", strings.Repeat("a", 64), "@a", "a\x00"} {
		if err := CheckName(name); !errors.Is(err, hpcexec.ErrInvalid) {
			t.Errorf("CheckName(%q): got %v, want ErrInvalid", name, err)
		}
	}
}

// Every field of Options must have a flag, else a place behind a login node
// would drop it in silence.
func TestFarOptionsAreComplete(t *testing.T) {
	o := Options{
		Place: "slurm", Image: "/a.sif", Binds: []Bind{{"/p", "/q", true}}, Fakeroot: true, GPUMode: "nv", Net: "none", Overlay: "dir",
		Idle: Duration(time.Hour), GPUs: "a100:1", CPUs: 2, Mem: "4G", Nodes: 1, Partition: "gpu", Time: Duration(time.Hour),
		Account: "proj", QOS: "high", Constraint: "c", Reservation: "r", SlurmOpts: []string{"--exclusive"},
	}
	want := []string{
		"--on", "slurm", "--image", "/a.sif", "--overlay", "dir", "--net", "none", "--bind", "/p:/q:ro", "--fakeroot", "--nv",
		"--idle", "1h0m0s", "--gpus", "a100:1", "--cpus", "2", "--mem", "4G", "--nodes", "1", "--partition", "gpu",
		"--time", "1h0m0s", "--account", "proj", "--qos", "high", "--constraint", "c", "--reservation", "r", "--slurm-opt=--exclusive",
	}
	if diff := cmp.Diff(want, o.flags()); diff != "" {
		t.Errorf("flags (-want +got):\n%s", diff)
	}
}

func TestFarRequestKeepsValuesOffArgv(t *testing.T) {
	req := hpcexec.Request{
		Args: []string{"sh", "-c", "echo $A"}, Env: []string{"A=env-value"}, Secrets: []string{"TOKEN=secret-value"},
		Dir: "/work", Timeout: time.Minute,
	}
	got := farRequest(Want{Name: "train", Options: Options{Place: "slurm"}}, req)
	want := []string{
		"hpcexec", "exec", "--on", "slurm", "-s", "train", "-e", "A", "--secret", "TOKEN", "-C", "/work", "--timeout", "1m0s",
		"--", "sh", "-c", "echo $A",
	}
	if diff := cmp.Diff(want, got.Args); diff != "" {
		t.Errorf("argv (-want +got):\n%s", diff)
	}
	if got.Dir != "" {
		t.Errorf("Dir: got %q, want it left to the far side", got.Dir)
	}
	if diff := cmp.Diff(req.Secrets, got.Secrets); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
}
