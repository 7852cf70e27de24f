package slurm

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hpcexec/hpcexec"
)

// put puts a job of ours into the fake's queue.
func (f *fakeSite) put(change func(*fakeJob)) JobID {
	j := f.submit([]string{"--comment=" + tagPrefix + testToken, "--job-name=hpcexec-train-abcdefgh"}, "")
	if change != nil {
		change(j)
	}
	return JobID{Job: j.id}
}

func TestWaitNoticesAStart(t *testing.T) {
	for _, tt := range []struct {
		after, within time.Duration
		most          int // calls of squeue
	}{
		{time.Second, 200 * time.Millisecond, 12},
		{10 * time.Second, 1100 * time.Millisecond, 40},
		{10 * time.Minute, 31 * time.Second, 90},
	} {
		t.Run(tt.after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeSite{}
				begun := time.Now()
				id := f.put(func(j *fakeJob) { j.runsAt = begun.Add(tt.after) })
				s, err := fakeClient(t, f).Wait(t.Context(), id, nil)
				if err != nil || s.State != Running || len(s.Nodes) != 1 || s.Nodes[0] != "gpu1" {
					t.Fatalf("got %+v, %v; want RUNNING on gpu1", s, err)
				}
				if late := time.Since(begun) - tt.after; late > tt.within {
					t.Errorf("noticed %v late, want at most %v", late, tt.within)
				}
				if n := f.called("squeue"); n > tt.most {
					t.Errorf("asked %d times, want at most %d", n, tt.most)
				}
			})
		})
	}
}

func TestWaitKeepsTheFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSite{}
		id := f.put(func(j *fakeJob) { j.runsAt = time.Now().Add(10 * time.Minute) })
		c := New(f, Options{PollFloor: time.Minute})
		if _, err := c.Wait(t.Context(), id, nil); err != nil {
			t.Fatal(err)
		}
		if n := f.called("squeue"); n > 12 {
			t.Errorf("asked %d times in 10 minutes, want 11: one a minute", n)
		}
	})
}

func TestWaitTellsOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSite{}
		begun := time.Now()
		var job *fakeJob
		id := f.put(func(j *fakeJob) { job = j; j.runsAt = begun.Add(20 * time.Second) })
		time.AfterFunc(5*time.Second, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			job.reason, job.expected = "Resources", begun.Add(time.Hour).UTC().Format("2006-01-02T15:04:05")
		})
		var told []string
		_, err := fakeClient(t, f).Wait(t.Context(), id, func(s Status) {
			told = append(told, string(s.State)+": "+s.Why.Text)
			if s.Reason == "Resources" && s.Expected.IsZero() {
				t.Errorf("got no expected start of %+v", s)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		want := "PENDING: waits to be looked at by the scheduler\nPENDING: waits for free nodes, CPUs, memory or GPUs\nRUNNING: "
		if got := strings.Join(told, "\n"); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
}

func TestWaitEnds(t *testing.T) {
	for _, tt := range []struct {
		name    string
		change  func(*fakeJob)
		wantErr error
		text    string
	}{
		{"cancelled before it started", func(j *fakeJob) { j.state = "CANCELLED" }, hpcexec.ErrAllocationGone, "was cancelled before it started"},
		{"failed", func(j *fakeJob) { j.state, j.reason = "FAILED", "RaisedSignal:53" }, hpcexec.ErrAllocationGone, "couldn't start"},
		{"node failed", func(j *fakeJob) { j.state, j.reason = "NODE_FAIL", "NodeDown" }, hpcexec.ErrAllocationGone, "a node failed"},
		{"out of memory", func(j *fakeJob) { j.state, j.reason = "OUT_OF_MEMORY", "OutOfMemory" }, hpcexec.ErrAllocationGone, "ran out of memory"},
		{"already over", func(j *fakeJob) { j.state = "COMPLETED" }, hpcexec.ErrAllocationGone, "ended"},
		{"never starts", func(j *fakeJob) { j.reason = "PartitionTimeLimit" }, hpcexec.ErrInvalid, "more time than its partition allows"},
		{"limit of one job", func(j *fakeJob) { j.reason = "QOSMaxGRESPerJob" }, hpcexec.ErrInvalid, "QOS allows for one job"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeSite{}
				id := f.put(tt.change)
				_, err := fakeClient(t, f).Wait(t.Context(), id, nil)
				if !errors.Is(err, tt.wantErr) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("got %v, want %v with %q", err, tt.wantErr, tt.text)
				}
			})
		})
	}
}

// TestWaitReasonThatClears has a reason that stands there for a moment while
// the scheduler looks: nobody gives up for it.
func TestWaitReasonThatClears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSite{}
		begun := time.Now()
		f.put(nil)
		f.jobs[0].reason, f.jobs[0].runsAt = "PartitionConfig", begun.Add(time.Second)
		if _, err := fakeClient(t, f).Wait(t.Context(), JobID{Job: 1}, nil); err != nil {
			t.Error(err)
		}
	})
}

func TestWaitWhileTheControllerIsDown(t *testing.T) {
	for _, tt := range []struct {
		name    string
		outage  time.Duration
		wantErr error
	}{
		{"five minutes", 5 * time.Minute, nil},
		{"for good", 24 * time.Hour, hpcexec.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeSite{}
				begun := time.Now()
				id := f.put(func(j *fakeJob) { j.runsAt = begun.Add(tt.outage / 2) })
				f.answer = func(prog string, args []string, stdin string) (string, string, int, error) {
					if since := time.Since(begun); since > time.Second && since < tt.outage {
						return "", "slurm_load_jobs error: Socket timed out on send/recv operation\n", 1, nil
					}
					stdout, stderr, exit := f.slurm(prog, args, stdin)
					return stdout, stderr, exit, nil
				}
				var states []State
				s, err := fakeClient(t, f).Wait(t.Context(), id, func(s Status) { states = append(states, s.State) })
				if !errors.Is(err, tt.wantErr) || (err == nil) != (tt.wantErr == nil) || err == nil && s.State != Running {
					t.Fatalf("got %s, %v; want %v", s.State, err, tt.wantErr)
				}
				if len(states) < 2 || states[1] != Unknown {
					t.Errorf("told %v, want that it isn't known", states)
				}
				if n := f.called("squeue"); n > 60 {
					t.Errorf("asked %d times, want few: a controller in trouble is left alone", n)
				}
			})
		})
	}
}

// TestAbsenceOnceProvesNothing has a job that one answer leaves out.
func TestAbsenceOnceProvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSite{}
		begun := time.Now()
		id := f.put(func(j *fakeJob) {
			j.hiddenTill, j.runsAt = begun.Add(50*time.Millisecond), begun.Add(time.Second)
		})
		if _, err := fakeClient(t, f).Wait(t.Context(), id, nil); err != nil {
			t.Errorf("got %v, want the job", err)
		}
		f.mu.Lock()
		f.jobs[0].hiddenTill = begun.Add(time.Hour)
		f.mu.Unlock()
		s, err := fakeClient(t, f).Wait(t.Context(), id, nil)
		if !errors.Is(err, hpcexec.ErrAllocationGone) || s.State != Gone {
			t.Errorf("got %s, %v; want GONE and ErrAllocationGone", s.State, err)
		}
	})
}

func TestWaitersShareOneQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSite{}
		id := f.put(func(j *fakeJob) { j.runsAt = time.Now().Add(2 * time.Second) })
		release := make(chan struct{})
		first := true
		f.answer = func(prog string, args []string, stdin string) (string, string, int, error) {
			if first {
				first = false
				<-release
			}
			stdout, stderr, exit := f.slurm(prog, args, stdin)
			return stdout, stderr, exit, nil
		}
		c := fakeClient(t, f)
		if _, err := c.Site(t.Context()); err != nil {
			t.Fatal(err)
		}
		const n = 20
		done := make(chan error, n)
		for range n {
			go func() { _, err := c.Job(t.Context(), id); done <- err }()
		}
		synctest.Wait() // all ask
		close(release)
		for range n {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if got := f.called("squeue"); got != 1 {
			t.Errorf("%d asked with %d calls, want 1", n, got)
		}
	})
}

func TestOneWhoLeavesDoesntTakeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSite{}
		id := f.put(nil)
		release := make(chan struct{})
		f.answer = func(prog string, args []string, stdin string) (string, string, int, error) {
			<-release
			stdout, stderr, exit := f.slurm(prog, args, stdin)
			return stdout, stderr, exit, nil
		}
		c := fakeClient(t, f)
		if _, err := c.Site(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		left, stays := make(chan error, 1), make(chan error, 1)
		go func() { _, err := c.Job(ctx, id); left <- err }()
		synctest.Wait()
		go func() { _, err := c.Job(t.Context(), id); stays <- err }()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		close(release)
		if err := <-stays; err != nil {
			t.Errorf("got %v, want the answer", err)
		}
	})
}

func TestWaitOrCancel(t *testing.T) {
	for _, tt := range []struct {
		name    string
		change  func(*fakeJob)
		token   string
		alive   int
		wantErr error
	}{
		{"time is up", nil, testToken, 0, context.DeadlineExceeded},
		{"never starts", func(j *fakeJob) { j.reason = "BadConstraints" }, testToken, 0, hpcexec.ErrInvalid},
		{"not ours", nil, "another-token", 1, context.DeadlineExceeded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeSite{}
				id := f.put(tt.change)
				ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
				defer stop()
				_, err := fakeClient(t, f).WaitOrCancel(ctx, id, Match{Token: tt.token}, nil)
				if !errors.Is(err, tt.wantErr) {
					t.Errorf("got %v, want %v", err, tt.wantErr)
				}
				if got := len(f.alive()); got != tt.alive {
					t.Errorf("got %d jobs alive, want %d", got, tt.alive)
				}
			})
		})
	}
}
