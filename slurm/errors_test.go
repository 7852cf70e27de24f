package slurm

import (
	"errors"
	"strings"
	"testing"

	"github.com/hpcexec/hpcexec"
)

// TestRefusalsOfEachRelease reads all that sbatch and srun said in the tests of
// each release when they refused something.
func TestRefusalsOfEachRelease(t *testing.T) {
	kinds := []struct {
		in   string // of the title
		kind error
	}{
		{"invalid account", hpcexec.ErrInvalid},
		{"invalid partition", hpcexec.ErrInvalid},
		{"invalid QOS", hpcexec.ErrInvalid},
		{"invalid gres", hpcexec.ErrInvalid},
		{"invalid gpus", hpcexec.ErrInvalid},
		{"too many GPUs", hpcexec.ErrInvalid},
		{"GPUs in a partition without GPUs", hpcexec.ErrInvalid},
		{"too many cpus", hpcexec.ErrInvalid},
		{"too much memory", hpcexec.ErrInvalid},
		{"too many nodes", hpcexec.ErrInvalid},
		{"bad time format", hpcexec.ErrInvalid},
		{"unknown option", hpcexec.ErrInvalid},
		{"unknown node", hpcexec.ErrInvalid},
		{"unknown feature", hpcexec.ErrInvalid},
		{"unknown reservation", hpcexec.ErrInvalid},
		{"account of another", hpcexec.ErrInvalid},
		{"QOS not allowed", hpcexec.ErrInvalid},
		{"group restricted", hpcexec.ErrInvalid},
		{"DenyOnLimit", hpcexec.ErrInvalid},
		{"without association", hpcexec.ErrInvalid},
		{"bad dependency", hpcexec.ErrInvalid},
		{"script without shebang", hpcexec.ErrInvalid},
		{"empty stdin script", hpcexec.ErrInvalid},
		{"CRLF script", hpcexec.ErrInvalid},
		{"NUL in script", hpcexec.ErrInvalid},
	}
	eachRelease(t, func(t *testing.T, release string) {
		seen := 0
		for _, tr := range transcripts(t, release, "errors-submit.txt") {
			prog, _, _ := strings.Cut(tr.title, ":")
			if tr.exit == 0 || prog != "sbatch" {
				continue
			}
			for _, k := range kinds {
				if !strings.Contains(tr.title, k.in) {
					continue
				}
				seen++
				err := classify(prog, tr.exit, tr.stderr, tr.stdout)
				if !errors.Is(err, k.kind) || canRetry(err) || maybeDone(err) {
					t.Errorf("%s: got %v (%s), retry %v, maybe done %v; want %v for good", tr.title, err, hpcexec.KindName(err), canRetry(err), maybeDone(err), k.kind)
				}
				if strings.Contains(err.Error(), "error: ") || strings.Contains(err.Error(), "submission failed") {
					t.Errorf("%s: the program's prefix is in %q", tr.title, err)
				}
			}
		}
		if seen < 17 {
			t.Errorf("got %d refusals, want at least 17", seen)
		}
	})
}

// TestTroubleOfEachRelease reads what the programs said while the controller,
// munge or the database was down: nothing of it may look like an answer.
func TestTroubleOfEachRelease(t *testing.T) {
	for _, release := range releases[1:] { // 20.11 has no such runs
		t.Run(release, func(t *testing.T) {
			seen := map[string]int{}
			for _, tr := range transcripts(t, release, "errors-infra.txt") {
				what, prog, ok := strings.Cut(tr.title, ": ")
				prog, _, _ = strings.Cut(prog, " ")
				if !ok || tr.exit <= 0 || tr.stderr == "" {
					continue
				}
				err := classify(prog, tr.exit, tr.stderr, tr.stdout)
				if !errors.Is(err, hpcexec.ErrUnavailable) {
					t.Errorf("%s: got %v (%s), want ErrUnavailable", tr.title, err, hpcexec.KindName(err))
				}
				if errors.Is(err, ErrNoSuchJob) {
					t.Errorf("%s: %v reads as an answer", tr.title, err)
				}
				switch {
				case strings.Contains(what, "slurmctld"):
					if !errors.Is(err, ErrController) || !canRetry(err) || !maybeDone(err) || hpcexec.Hint(err) == "" {
						t.Errorf("%s: got %v, want ErrController, to be tried again after a look", tr.title, err)
					}
				case strings.Contains(what, "slurmdbd"):
					if !errors.Is(err, ErrNoAccounting) {
						t.Errorf("%s: got %v, want ErrNoAccounting", tr.title, err)
					}
				}
				seen[what]++
			}
			for _, what := range []string{"slurmctld stopped", "slurmctld hangs", "munge stopped", "slurmdbd stopped", "no slurm.conf"} {
				if seen[what] == 0 {
					t.Errorf("no transcript of %q", what)
				}
			}
		})
	}
}

func TestStepsThatCantBeMade(t *testing.T) {
	eachRelease(t, func(t *testing.T, release string) {
		for title, want := range map[string]error{
			"job id unknown":                 hpcexec.ErrAllocationGone,
			"other user":                     hpcexec.ErrDenied,
			"pending job":                    hpcexec.ErrUnavailable,
			"more nodes than the allocation": hpcexec.ErrInvalid,
		} {
			tr := titled(t, release, "steps.txt", title)
			if err := classify("srun", tr.exit, tr.stderr, tr.stdout); !errors.Is(err, want) {
				t.Errorf("%s: got %v (%s), want %v", title, err, hpcexec.KindName(err), want)
			}
		}
		tr := titled(t, release, "env-steps.txt", "step in a finished allocation")
		if err := classify("srun", tr.exit, tr.stderr, tr.stdout); !errors.Is(err, hpcexec.ErrAllocationGone) || !errors.Is(err, ErrNoSuchJob) {
			t.Errorf("finished: got %v, want ErrAllocationGone", err)
		}
		for _, tr := range transcripts(t, release, "errors-query.txt") {
			if strings.Contains(tr.title, "show job unknown") && !strings.Contains(tr.title, "json") {
				if err := classify("scontrol", tr.exit, tr.stderr, tr.stdout); !errors.Is(err, ErrNoSuchJob) {
					t.Errorf("%s: got %v, want ErrNoSuchJob", tr.title, err)
				}
			}
		}
	})
}

func TestScancelOfEachRelease(t *testing.T) {
	eachRelease(t, func(t *testing.T, release string) {
		tr := titled(t, release, "scancel.txt", "scancel: other user's job")
		if err := classify("scancel", tr.exit, tr.stderr, tr.stdout); !errors.Is(err, hpcexec.ErrDenied) {
			t.Errorf("%s: got %v, want ErrDenied", tr.title, err)
		}
		// Silence is what an id gets that isn't there: it proves nothing.
		if tr := titled(t, release, "scancel.txt", "scancel: unknown job"); tr.exit != 0 {
			t.Errorf("%s: got exit code %d, want 0", tr.title, tr.exit)
		}
	})
}

func TestEnforcedPartitionLimits(t *testing.T) {
	seen := 0
	for _, tr := range transcripts(t, "24.11.5", "enforce-part-limits.txt") {
		if tr.exit <= 0 {
			continue
		}
		seen++
		if err := classify("sbatch", tr.exit, tr.stderr, tr.stdout); !errors.Is(err, hpcexec.ErrInvalid) || maybeDone(err) || hpcexec.Hint(err) == "" {
			t.Errorf("%s: got %v, hint %q; want ErrInvalid for good, with a hint", tr.title, err, hpcexec.Hint(err))
		}
	}
	if seen < 6 {
		t.Errorf("got %d refusals, want 6 or more", seen)
	}
}

func TestNoAccounting(t *testing.T) {
	for _, release := range []string{"24.11.5", "26.05.5"} {
		for _, tr := range transcripts(t, release, "accounting-none.txt") {
			if tr.exit <= 0 {
				continue
			}
			prog, _, _ := strings.Cut(tr.title, " ")
			if err := classify(prog, tr.exit, tr.stderr, tr.stdout); !errors.Is(err, ErrNoAccounting) || canRetry(err) {
				t.Errorf("%s %s: got %v, want ErrNoAccounting for good", release, tr.title, err)
			}
		}
	}
}

func TestUnknownFailure(t *testing.T) {
	for _, tt := range []struct {
		prog   string
		exit   int
		stderr string
		kind   error
		maybe  bool
	}{
		{"sbatch", 1, "sbatch: error: Batch job submission failed: Something new\n", hpcexec.ErrInvalid, true},
		{"sbatch", 137, "", hpcexec.ErrUnknownEnd, true},
		{"squeue", 1, "squeue: error: Something new\n", hpcexec.ErrUnavailable, false},
		{"squeue", 1, "", hpcexec.ErrUnavailable, false},
	} {
		err := classify(tt.prog, tt.exit, tt.stderr, "")
		if !errors.Is(err, tt.kind) || maybeDone(err) != tt.maybe || strings.Contains(err.Error(), "error: ") {
			t.Errorf("%s %d %q: got %v, maybe done %v; want %v, %v", tt.prog, tt.exit, tt.stderr, err, maybeDone(err), tt.kind, tt.maybe)
		}
	}
}

func TestVersionOfEachRelease(t *testing.T) {
	eachRelease(t, func(t *testing.T, release string) {
		v, err := ParseVersion(firstLine(fixture(t, release, "version.txt")))
		if err != nil || !strings.HasPrefix(release, versionText(v)) {
			t.Errorf("got %v, %v; want %s", v, err, release)
		}
	})
	if v := (Version{20, 11}); !v.Before(21, 8) || v.Before(20, 11) || (Version{24, 5}).Before(21, 8) || (Version{}).Before(21, 8) {
		t.Error("Before is wrong")
	}
	if _, err := ParseVersion("nonsense"); !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

func versionText(v Version) string {
	s := func(n int) string { return string(rune('0'+n/10)) + string(rune('0'+n%10)) }
	return s(v.Major) + "." + s(v.Minor)
}
