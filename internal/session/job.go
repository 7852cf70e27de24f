package session

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/place"
	"github.com/hpcexec/hpcexec/internal/shell"
	"github.com/hpcexec/hpcexec/slurm"
)

// slurm is the client of this cluster, made once.
func (m *Manager) slurm() *slurm.Client {
	m.once.Do(func() { m.client = slurm.New(&hpcexec.Local{}, slurm.Options{}) })
	return m.client
}

// submit asks for the job of a start whose payload is the supervisor. The
// start's token makes it idempotent.
func (m *Manager) submit(ctx context.Context, rec *Record) error {
	o := rec.Options
	spec := slurm.JobSpec{
		Name: rec.Name, Token: rec.Start.Token, Fresh: true,
		Script:    "#!/bin/sh\nexec " + shell.Join(m.superviseArgv(rec)) + "\n",
		Partition: o.Partition, CPUs: o.CPUs, Mem: o.Mem, Nodes: o.Nodes, Time: time.Duration(o.Time),
		Account: o.Account, QOS: o.QOS, Constraint: o.Constraint, Reservation: o.Reservation, Extra: o.SlurmOpts,
		Output: m.Dirs.logPath(rec.Name),
	}
	if o.GPUs != "" {
		gpus, err := slurm.ParseGPURequest(o.GPUs)
		if err != nil {
			return err
		}
		spec.GPUs = gpus
	}
	log, err := openLog(m.Dirs, rec.Name) // its directory must be there, or the job fails without a word
	if err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "log: %w", err)
	}
	log.Close()
	plan, err := m.slurm().Preflight(ctx, spec)
	if err != nil {
		return err
	}
	id, err := m.slurm().Submit(ctx, plan.Spec)
	if err != nil {
		return err
	}
	rec.Start.JobID = id.String()
	if st, err := m.slurm().Job(ctx, id); err == nil {
		rec.Start.Submit = st.Submitted
	}
	m.say(Progress{Session: rec.Name, Stage: "submitted", JobID: id.String(), Text: fmt.Sprintf("job %s is submitted", id)})
	return m.Dirs.save(rec)
}

// A follower follows the job of a start while its supervisor is waited for.
type follower struct {
	ended chan error // how the job ended, if it ended
	stop  func()

	mu  sync.Mutex
	why string
}

func (f *follower) reason() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.why
}

// followJob tells what a job waits for, and when it has ended. Without a job
// it does nothing.
func (m *Manager) followJob(ctx context.Context, rec *Record, p place.Place) *follower {
	f := &follower{ended: make(chan error, 1), stop: func() {}, why: "it hasn't answered"}
	if p.Last().Kind != place.Slurm || rec.Start.JobID == "" {
		return f
	}
	id, err := slurm.ParseJobID(rec.Start.JobID)
	if err != nil {
		f.ended <- hpcexec.Errorf(hpcexec.ErrUnavailable, "job of session %s: %w", rec.Name, err)
		return f
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	f.stop = func() {
		cancel()
		wg.Wait()
	}
	wg.Go(func() {
		onChange := func(st slurm.Status) {
			text := pendingText(rec.Name, st)
			f.mu.Lock()
			f.why = text
			f.mu.Unlock()
			m.say(Progress{Session: rec.Name, Stage: strings.ToLower(string(st.State)), JobID: id.String(), Text: text})
		}
		if _, err := m.slurm().Wait(ctx, id, onChange); err != nil {
			if ctx.Err() == nil {
				f.ended <- err
			}
			return
		}
		// It runs. From here on the supervisor is the one to ask, but a job
		// that ends at once never has one.
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
			st, err := m.slurm().Job(ctx, id)
			if err == nil && (st.State.Ended() || st.State == slurm.Gone) {
				f.ended <- hpcexec.Errorf(hpcexec.ErrAllocationGone, "job %s of session %s %s", id, rec.Name, st.State.Words()).
					WithHint("see %s", m.Dirs.logPath(rec.Name))
				return
			}
		}
	})
	return f
}

func pendingText(session string, st slurm.Status) string {
	text := fmt.Sprintf("job %s of session %s %s", st.ID, session, st.State.Words())
	if st.State.Waiting() && st.Why.Text != "" {
		text = fmt.Sprintf("job %s of session %s %s", st.ID, session, st.Why.Text)
		if !st.Expected.IsZero() {
			text += ", expected at " + st.Expected.Local().Format("2006-01-02 15:04")
		}
		if st.Why.Remedy != "" && st.Why.Class != slurm.ClassWait {
			text += "; " + st.Why.Remedy
		}
	}
	return text
}

// job asks for the job of the latest start. ok is false where there is none.
func (m *Manager) job(ctx context.Context, rec *Record) (st slurm.Status, ok bool, err error) {
	if rec.Start == nil {
		return st, false, nil
	}
	id, err := m.findJob(ctx, rec)
	if err != nil || id.IsZero() {
		return st, false, err
	}
	st, err = m.slurm().Job(ctx, id)
	if err != nil {
		return st, true, err
	}
	// A number counts with our token only: it is used again after a reset.
	if st.Token != "" && st.Token != rec.Start.Token {
		return slurm.Status{ID: id, State: slurm.Gone}, true, nil
	}
	return st, true, nil
}

// jobGone says that the job of the latest start has ended, or that there never
// was one.
func (m *Manager) jobGone(ctx context.Context, rec *Record) (bool, error) {
	if !m.isSlurm(rec) {
		return false, nil
	}
	st, ok, err := m.job(ctx, rec)
	if err != nil {
		return false, err
	}
	return !ok || st.State.Ended() || st.State == slurm.Gone, nil
}

// jobOver is jobGone that waits while the job is being cleaned up: it can't
// serve any more then, and its node refuses logins at many sites.
func (m *Manager) jobOver(ctx context.Context, rec *Record) (bool, error) {
	if !m.isSlurm(rec) {
		return false, nil
	}
	for deadline := time.Now().Add(time.Minute); ; {
		st, ok, err := m.job(ctx, rec)
		switch {
		case err != nil:
			return false, err
		case !ok || st.State.Ended() || st.State == slurm.Gone:
			return true, nil
		case st.State != slurm.Completing || time.Now().After(deadline):
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// cancelJob ends the job of the latest start, if it hasn't ended.
func (m *Manager) cancelJob(ctx context.Context, rec *Record) error {
	if !m.isSlurm(rec) || rec.Start == nil {
		return nil
	}
	id, err := m.findJob(ctx, rec)
	if err != nil || id.IsZero() {
		return err
	}
	_, err = m.slurm().Cancel(ctx, id, slurm.Match{Token: rec.Start.Token})
	return err
}

// findJob is the job of the latest start; zero where there is none. A client
// that died between sbatch and its record left the token alone.
func (m *Manager) findJob(ctx context.Context, rec *Record) (slurm.JobID, error) {
	if rec.Start.JobID != "" {
		return slurm.ParseJobID(rec.Start.JobID)
	}
	jobs, err := m.slurm().Jobs(ctx)
	if err != nil {
		return slurm.JobID{}, err
	}
	for _, j := range jobs {
		if j.Token == rec.Start.Token {
			return j.ID, nil
		}
	}
	return slurm.JobID{}, nil
}
