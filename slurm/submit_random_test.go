package slurm

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hpcexec/hpcexec"
)

// TestNoJobTwiceNoneLost submits hundreds of jobs through random faults, with
// clients that die and come back with the same token: in the end each token has
// one job, and it is the one that Submit told.
func TestNoJobTwiceNoneLost(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		f := &fakeSite{}
		const timeout = "Socket timed out on send/recv operation\n"
		f.answer = func(prog string, args []string, stdin string) (string, string, int, error) {
			switch n := rnd.IntN(10); {
			case n == 0:
				return "", prog + ": error: Unable to contact slurm controller (connect failure)\n", 1, nil
			case n == 1 && prog == "sbatch":
				f.submit(args, stdin) // the reply is lost
				return "", "sbatch: error: Batch job submission failed: " + timeout, 1, nil
			case n == 2 && prog == "sbatch":
				f.submit(args, stdin).hiddenTill = time.Now().Add(time.Duration(rnd.IntN(20000)) * time.Millisecond) // taken up late
				return "", "sbatch: error: Batch job submission failed: " + timeout, 1, nil
			case n == 3 && prog == "sbatch":
				f.submit(args, stdin)
				return "", "", 0, hpcexec.Errorf(hpcexec.ErrUnknownEnd, "connection lost")
			case n == 4 && prog != "scancel":
				return "", prog + ": error: " + timeout, 1, nil
			}
			stdout, stderr, exit := f.slurm(prog, args, stdin)
			return stdout, stderr, exit, nil
		}
		told := map[string]uint64{}
		for i := range 300 {
			spec := testSpec()
			spec.Token = fmt.Sprintf("token-%08d", i)
			if rnd.IntN(4) == 0 {
				// A client died after sbatch and before it wrote down the id.
				c := New(f, Options{})
				for {
					if _, err := c.Site(t.Context()); err == nil {
						break
					}
				}
				c.sbatch(t.Context(), spec)
				spec.Fresh = false
			}
			id, err := New(f, Options{}).Submit(t.Context(), spec)
			if err != nil {
				t.Fatalf("submission %d: %v", i, err)
			}
			told[spec.Tag()] = id.Job
		}
		time.Sleep(time.Minute) // what is late has come by now
		f.answer = nil
		alive := map[string][]uint64{}
		for _, j := range f.jobs {
			if !State(j.state).Ended() {
				alive[j.comment] = append(alive[j.comment], j.id)
			}
		}
		twins := 0
		for tag, id := range told {
			if len(alive[tag]) > 1 {
				// Later than all looks: the one who waits for the job finds it.
				twins++
				j, err := ParseJobID(fmt.Sprint(id))
				if err != nil {
					t.Fatal(err)
				}
				f.mu.Lock()
				for _, fj := range f.jobs {
					if fj.id == id {
						fj.runsAt = time.Now()
					}
				}
				f.mu.Unlock()
				if _, err := New(f, Options{}).Wait(t.Context(), j, nil); err != nil {
					t.Errorf("%s: wait: %v", tag, err)
				}
				alive[tag] = nil
				for _, fj := range f.jobs {
					if fj.comment == tag && !State(fj.state).Ended() {
						alive[tag] = append(alive[tag], fj.id)
					}
				}
			}
			if len(alive[tag]) != 1 || alive[tag][0] != id {
				t.Errorf("%s: got jobs %v, told %d; want that one alone", tag, alive[tag], id)
			}
		}
		t.Logf("%d submissions, %d calls of sbatch, %d twins that only Wait could see", len(told), f.called("sbatch"), twins)
	})
}
