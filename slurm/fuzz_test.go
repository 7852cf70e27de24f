package slurm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// seeds gives a fuzz test the lines of all fixtures whose name begins so, and
// fails where there are none: a fuzz test without seeds looks green and does
// nothing.
func seeds(f *testing.F, whole bool, prefixes ...string) {
	f.Helper()
	n := 0
	for _, prefix := range prefixes {
		files, _ := filepath.Glob("testdata/*/" + prefix + "*.txt")
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			if whole {
				f.Add(string(b))
				n++
				continue
			}
			for line := range strings.Lines(string(b)) {
				f.Add(strings.TrimRight(line, "\n"))
				n++
			}
		}
		if len(files) < len(releases)/2 {
			f.Fatalf("testdata has %d files %s*.txt, want one for each release", len(files), prefix)
		}
	}
	if n == 0 {
		f.Fatal("no seeds")
	}
}

// fields gives a fuzz test the values of the fixtures' KEY=VALUE and a|b|c.
func fields(f *testing.F, prefix string) {
	f.Helper()
	files, _ := filepath.Glob("testdata/*/" + prefix + "*.txt")
	if len(files) < len(releases) {
		f.Fatalf("testdata has %d files %s*.txt, want one for each release", len(files), prefix)
	}
	seen := map[string]bool{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, w := range strings.FieldsFunc(string(b), func(r rune) bool { return r == ' ' || r == '\n' || r == '|' }) {
			if _, v, ok := strings.Cut(w, "="); ok {
				w = v
			}
			if !seen[w] {
				seen[w] = true
				f.Add(w)
			}
		}
	}
}

func FuzzParseJobID(f *testing.F) {
	fields(f, "squeue-all-states")
	for _, s := range []string{"105;testbed", "62_[1-5%2]", "46+1.0", "180.batch", "62_[1,3,...]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseJobID(s)
		if err != nil {
			if id != (JobID{}) {
				t.Fatalf("%q: got %+v beside an error", s, id)
			}
			return
		}
		if id.String() != s {
			t.Fatalf("%q prints as %q", s, id.String())
		}
		if again, err := ParseJobID(id.String()); err != nil || again != id {
			t.Fatalf("%q: got %+v, then %+v, %v", s, id, again, err)
		}
		if tasks, _, ok := id.Each(); ok && id.Part == TaskSet && len(tasks) == 0 {
			t.Fatalf("%q: no tasks", s)
		}
	})
}

func FuzzParseGRES(f *testing.F) {
	fields(f, "scontrol-show-node")
	fields(f, "scontrol-show-job-d")
	for _, s := range []string{"gpu:(null):2(IDX:0-1),shard:(null):3(0/4,0/4,3/4,0/4)", "gpu:h100:2(S:0),gpu:a100:1(S:1)", "gres/gpu:a100=2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, _ := ParseGRES(s)
		for _, g := range list {
			if g.Name == "" || g.Count < 0 || strings.ContainsAny(g.Name+g.Type, "(),") {
				t.Fatalf("%q: got %+v", s, g)
			}
		}
		for typ, n := range gpuCounts(list) {
			if n < 0 {
				t.Fatalf("%q: got %d of %q", s, n, typ)
			}
		}
		ParseTRES(s)
	})
}

func FuzzParseGPURequest(f *testing.F) {
	for _, s := range []string{"1", "a100:1", "a100_1g.5gb:3", "a100", ":1", "gpu:a100:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		g, err := ParseGPURequest(s)
		if err != nil {
			return
		}
		if g.String() != s {
			t.Fatalf("%q prints as %q", s, g)
		}
		// What is accepted must be one word of one entry for sbatch.
		list, unknown := ParseGRES(g.gres())
		if len(list) != 1 || len(unknown) > 0 || list[0].Name != "gpu" || strings.ContainsAny(g.gres(), " \t\n,") {
			t.Fatalf("%q: --gres=%q reads as %+v, %q", s, g.gres(), list, unknown)
		}
	})
}

func FuzzParseHostlist(f *testing.F) {
	fields(f, "scontrol-show-partition")
	for _, s := range []string{"gpu[1-2,7],cpu01", "r[1-2]n[01-02]-ib", "a[1-300]b[1-300]c[1-300]", "n[0-4294967295]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if hosts := ParseHostlist(s); len(hosts) > maxHosts+len(s) {
			t.Fatalf("%q: %d hosts", s, len(hosts))
		}
	})
}

func FuzzParseNodes(f *testing.F) {
	seeds(f, true, "scontrol-show-node")
	f.Fuzz(func(t *testing.T, s string) {
		for _, n := range ParseNodes(s) {
			if n.CPUsFree() < 0 || n.MemFreeMB() < 0 || n.GPUsFree("") < 0 || n.GPUTotal("") < 0 {
				t.Fatalf("got %+v", n)
			}
			n.Blocked()
		}
		inventory(Site{}, ParsePartitions("PartitionName=gpu State=UP"), ParseNodes(s))
	})
}

func FuzzParsePartitions(f *testing.F) {
	seeds(f, true, "scontrol-show-partition")
	f.Fuzz(func(t *testing.T, s string) {
		for _, p := range ParsePartitions(s) {
			if p.MaxTime < 0 || p.DefaultTime < 0 || p.MaxNodes < 0 {
				t.Fatalf("got %+v", p)
			}
			plan(JobSpec{GPUs: GPURequest{Count: 1}}, Site{}, []Partition{p}, nil)
		}
	})
}

func FuzzParseJobs(f *testing.F) {
	seeds(f, false, "squeue-all-states")
	f.Fuzz(func(t *testing.T, s string) {
		jobs, strange := ParseJobs(s)
		lines := 0
		for line := range strings.Lines(s) {
			if strings.TrimRight(line, "\n") != "" {
				lines++
			}
		}
		if len(jobs)+len(strange) != lines {
			t.Fatalf("%q: %d jobs and %d strange lines of %d", s, len(jobs), len(strange), lines)
		}
		for _, j := range jobs {
			if j.ID.IsZero() || j.State == "" || j.Token != "" && !strings.HasPrefix(j.Comment, tagPrefix) {
				t.Fatalf("%q: got %+v", s, j)
			}
			pick(jobs, j.ID)
		}
	})
}

func FuzzParseAccounting(f *testing.F) {
	seeds(f, true, "sacct-P", "sacct-array")
	f.Fuzz(func(t *testing.T, s string) {
		for _, j := range ParseAccounting(s) {
			if j.ID.IsZero() || j.State == "" || j.ExitKnown && !j.State.Ended() {
				t.Fatalf("%q: got %+v", s, j)
			}
		}
	})
}

func FuzzParseJobRecords(f *testing.F) {
	seeds(f, true, "scontrol-show-job")
	f.Fuzz(func(t *testing.T, s string) {
		for _, j := range ParseJobRecords(s) {
			if j.ID.IsZero() || j.State == "" {
				t.Fatalf("%q: got %+v", s, j)
			}
		}
		parseJobDevices(s, "gpu1")
	})
}

func FuzzParseLimit(f *testing.F) {
	fields(f, "squeue-all-states")
	f.Fuzz(func(t *testing.T, s string) {
		if d, ok := parseLimit(s); d < 0 || !ok && d != 0 {
			t.Fatalf("%q: got %v, %v", s, d, ok)
		}
		parseTime(s)
		explain(s)
		ParseVersion(s)
		memoryMB(s)
	})
}

func FuzzClassify(f *testing.F) {
	seeds(f, true, "errors-submit", "errors-query", "steps")
	f.Fuzz(func(t *testing.T, s string) {
		for _, prog := range []string{"sbatch", "srun"} {
			if err := classify(prog, 1, s, ""); err == nil || err.Error() == "" || utf8.ValidString(s) && !utf8.ValidString(err.Error()) {
				t.Fatalf("%q: got %v", s, err)
			}
		}
	})
}

func FuzzMarked(f *testing.F) {
	f.Add([]byte("hello"), 3)
	f.Add([]byte(markBytes+"w start\nout"+markBytes+"w end 0\n"), 5)
	f.Add([]byte("\x1e\x1e\x1d\x1dw\n\x1e"), 2)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		read := func(parts ...[]byte) (string, []string) {
			var out strings.Builder
			var lines []string
			w := &marked{mark: []byte(markBytes + "w"), out: &out, told: func(l string) { lines = append(lines, l) }}
			for _, p := range parts {
				w.Write(p)
			}
			w.flush()
			return out.String(), lines
		}
		if cut < 0 || cut > len(b) {
			return
		}
		out1, lines1 := read(b)
		out2, lines2 := read(b[:cut], b[cut:])
		if out1 != out2 || !slices.Equal(lines1, lines2) {
			t.Fatalf("%q cut at %d: got %q, %q and %q, %q", b, cut, out1, lines1, out2, lines2)
		}
		if !strings.Contains(string(b), markBytes) && out1 != string(b) {
			t.Fatalf("%q came out as %q", b, out1)
		}
	})
}
