package slurm

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hpcexec/hpcexec"
)

func TestCancel(t *testing.T) {
	submitted := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // where synctest's clock begins
	for _, tt := range []struct {
		name    string
		change  func(*fakeJob)
		want    Match
		calls   int // of scancel
		state   State
		wantErr error
	}{
		{"ours", nil, Match{}, 1, Cancelled, nil},
		{"by token", nil, Match{Token: testToken}, 1, Cancelled, nil},
		{"by token and time", nil, Match{testToken, submitted}, 1, Cancelled, nil},
		{"another token", nil, Match{Token: "another-token"}, 0, Pending, ErrNotOurs},
		{"another time: the number was used again", nil, Match{testToken, submitted.Add(-time.Hour)}, 0, Pending, ErrNotOurs},
		{"no tag", func(j *fakeJob) { j.comment = "" }, Match{}, 0, Pending, ErrNotOurs},
		{"a tag in the middle", func(j *fakeJob) { j.comment = "x " + tagPrefix + testToken }, Match{}, 0, Pending, ErrNotOurs},
		{"over already", func(j *fakeJob) { j.state = "COMPLETED" }, Match{}, 0, Completed, nil},
		{"over already and not ours", func(j *fakeJob) { j.state, j.comment = "COMPLETED", "" }, Match{}, 0, Completed, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeSite{}
				id := f.put(tt.change)
				s, err := fakeClient(t, f).Cancel(t.Context(), id, tt.want)
				if !errors.Is(err, tt.wantErr) || (err == nil) != (tt.wantErr == nil) || s.State != tt.state {
					t.Errorf("got %s, %v; want %s, %v", s.State, err, tt.state, tt.wantErr)
				}
				if errors.Is(err, ErrNotOurs) && !errors.Is(err, hpcexec.ErrDenied) {
					t.Errorf("got %v, want ErrDenied too", err)
				}
				if n := f.called("scancel"); n != tt.calls {
					t.Errorf("got %d calls of scancel, want %d", n, tt.calls)
				}
			})
		})
	}
}

// TestCancelWaitsForTheEnd has a job that takes its time to end.
func TestCancelWaitsForTheEnd(t *testing.T) {
	for _, tt := range []struct {
		name    string
		takes   time.Duration
		state   State
		wantErr error
	}{
		{"ten seconds", 10 * time.Second, Cancelled, nil},
		{"for ever", time.Hour, Completing, hpcexec.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeSite{}
				id := f.put(func(j *fakeJob) { j.state = "RUNNING" })
				f.answer = func(prog string, args []string, stdin string) (string, string, int, error) {
					if prog == "scancel" {
						f.jobs[0].state = "COMPLETING"
						time.AfterFunc(tt.takes, func() { f.mu.Lock(); f.jobs[0].state = "CANCELLED"; f.mu.Unlock() })
						return "", "", 0, nil
					}
					stdout, stderr, exit := f.slurm(prog, args, stdin)
					return stdout, stderr, exit, nil
				}
				s, err := fakeClient(t, f).Cancel(t.Context(), id, Match{})
				if !errors.Is(err, tt.wantErr) || (err == nil) != (tt.wantErr == nil) || s.State != tt.state {
					t.Errorf("got %s, %v; want %s, %v", s.State, err, tt.state, tt.wantErr)
				}
			})
		})
	}
}

// TestCancelOfAnothersJob has a job that isn't among the user's, with a tag
// that looks like ours.
func TestCancelOfAnothersJob(t *testing.T) {
	f := &fakeSite{}
	f.answer = func(prog string, args []string, stdin string) (string, string, int, error) {
		if prog == "scontrol" {
			return "JobId=7 JobName=x UserId=bob(2002) JobState=RUNNING Reason=None Comment=" + tagPrefix + testToken + " Partition=gpu\n", "", 0, nil
		}
		stdout, stderr, exit := f.slurm(prog, args, stdin)
		return stdout, stderr, exit, nil
	}
	_, err := fakeClient(t, f).Cancel(t.Context(), JobID{Job: 7}, Match{Token: testToken})
	if !errors.Is(err, ErrNotOurs) || f.called("scancel") != 0 {
		t.Errorf("got %v after %d calls of scancel, want ErrNotOurs and none", err, f.called("scancel"))
	}
}
