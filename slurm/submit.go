package slurm

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

// Submit submits a job and gives its id. It never makes two jobs of one token:
//
//	look up the token ── found ──▶ that job            (not when spec.Fresh)
//	      │ not found
//	      ▼
//	   sbatch ── id ──▶ done
//	      │      refused ──▶ error
//	      │ no answer, socket error, lost connection: nobody knows
//	      ▼
//	look up again and again, for as long as a late request could take ── found ──▶ that job
//	      │ not found
//	      ▼
//	   sbatch again
//
// Where ctx ends, a job that was made meanwhile is cancelled. Where the
// controller can't be asked for Options.Patience the error is of kind
// ErrUnavailable, or ErrUnknownEnd when there may be a job after all; Submit
// with the same token finds it later.
func (c *Client) Submit(ctx context.Context, spec JobSpec) (JobID, error) {
	if spec.Token == "" {
		spec.Token, spec.Fresh = hpcexec.NewID(), true
	}
	if err := spec.Check(); err != nil {
		return JobID{}, err
	}
	if ctx.Err() != nil {
		return JobID{}, context.Cause(ctx)
	}
	patience, stop := context.WithTimeoutCause(ctx, c.opt.Patience, errImpatient)
	defer stop()

	if !spec.Fresh {
		s, err := c.lookUp(patience, spec, true)
		if err != nil {
			return JobID{}, c.submitError(ctx, err, false, spec)
		}
		if !s.ID.IsZero() {
			return s.ID, nil
		}
	}
	doubt := false // the last call may have made a job
	late := false  // an earlier one may still do so
	pause := time.Second
	for {
		id, err := c.sbatch(ctx, spec)
		if err == nil {
			if late {
				if s, err := c.lookUp(context.WithoutCancel(ctx), spec, false); err == nil && !s.ID.IsZero() {
					id = s.ID
				}
			}
			return id, c.abandon(ctx, id, spec)
		}
		doubt = doubt || maybeDone(err)
		if !doubt && !canRetry(err) {
			return JobID{}, c.explainRefusal(ctx, spec, err)
		}
		c.log.Warn("sbatch failed, looking for the job before trying again", "err", err, "token", spec.Token)
		if doubt {
			s, lookErr := c.settle(patience, spec)
			if lookErr != nil {
				return JobID{}, c.submitError(ctx, errors.Join(err, lookErr), true, spec)
			}
			if !s.ID.IsZero() {
				return s.ID, c.abandon(ctx, s.ID, spec)
			}
			doubt, late = false, true
		}
		if !canRetry(err) {
			return JobID{}, c.explainRefusal(ctx, spec, err)
		}
		if sleep(patience, pause) != nil {
			return JobID{}, c.submitError(ctx, err, doubt, spec)
		}
		pause = min(2*pause, 30*time.Second)
	}
}

var errImpatient = errors.New("the controller couldn't be asked for too long")

// submitError says how a Submit ended that gave up.
func (c *Client) submitError(ctx context.Context, err error, doubt bool, spec JobSpec) error {
	switch {
	case ctx.Err() != nil:
		if doubt {
			c.log.Warn("a job may have been submitted that nobody waits for", "token", spec.Token)
		}
		return context.Cause(ctx)
	case doubt:
		return hpcexec.Errorf(hpcexec.ErrUnknownEnd, "sbatch gave no answer, and the queue can't be looked at: %v", err).
			WithHint("there may be a job named %s; the same call finds it when the controller is back", spec.JobName())
	}
	if hpcexec.KindName(err) == "internal" {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "the job can't be submitted: %w", err)
	}
	return err
}

// sbatch submits once. It isn't ended by ctx: a call that is killed half-way
// leaves it open whether there is a job.
func (c *Client) sbatch(ctx context.Context, spec JobSpec) (JobID, error) {
	out, err := c.run(context.WithoutCancel(ctx), call{
		prog: "sbatch", args: spec.args(), stdin: strings.NewReader(spec.script()), local: true,
	})
	if err != nil {
		return JobID{}, err
	}
	// A site's wrapper may print more: the id is the last line.
	lines := strings.Split(strings.TrimSpace(out), "\n")
	id, err := ParseJobID(strings.TrimSpace(lines[len(lines)-1]))
	if err != nil {
		return JobID{}, &hpcexec.Error{Kind: hpcexec.ErrUnknownEnd, Text: "sbatch printed no job id: " + firstLine(out),
			Err: &Failure{Program: "sbatch", Stderr: out, Maybe: true}}
	}
	return id, nil
}

// abandon cancels a job whose submitter has gone meanwhile.
func (c *Client) abandon(ctx context.Context, id JobID, spec JobSpec) error {
	if ctx.Err() == nil {
		return nil
	}
	inner, stop := context.WithTimeout(context.WithoutCancel(ctx), c.opt.CallTimeout)
	defer stop()
	if err := c.scancel(inner, id); err != nil {
		c.log.Warn("a job that nobody waits for couldn't be cancelled", "job", id.String(), "token", spec.Token, "err", err)
	}
	return context.Cause(ctx)
}

// lookUp finds the job of a token. Of several, which only a late request can
// make, the first counts and the others are cancelled. accounting: also ask
// for jobs that ended so long ago that the controller has forgotten them.
func (c *Client) lookUp(ctx context.Context, spec JobSpec, accounting bool) (Status, error) {
	var jobs []Status
	pause := time.Second
	for {
		var err error
		if jobs, err = c.squeue(ctx); err == nil {
			break
		}
		if !canRetry(err) || sleep(ctx, pause) != nil {
			return Status{}, err
		}
		pause = min(2*pause, 30*time.Second)
	}
	if s, ok := c.dedupe(ctx, jobs, spec.Token); ok {
		return s, nil
	}
	if accounting {
		recorded, _ := c.sacct(ctx, "--name="+spec.JobName(), "-S", "now-30days")
		for _, s := range recorded {
			if s.Name == spec.JobName() && s.ID.Part == Whole {
				return s, nil
			}
		}
	}
	return Status{}, nil
}

// dedupe gives the first job of a token and cancels the others.
func (c *Client) dedupe(ctx context.Context, jobs []Status, token string) (Status, bool) {
	var same []Status
	for _, s := range jobs {
		if s.Token == token {
			same = append(same, s)
		}
	}
	if len(same) == 0 {
		return Status{}, false
	}
	slices.SortFunc(same, func(a, b Status) int {
		switch {
		case a.State.Ended() != b.State.Ended():
			if a.State.Ended() {
				return 1
			}
			return -1
		case a.ID.Job < b.ID.Job:
			return -1
		case a.ID.Job > b.ID.Job:
			return 1
		}
		return 0
	})
	c.dropTwins(ctx, jobs, same[0])
	return same[0], true
}

// dropTwins cancels other jobs with the token of one that is kept.
func (c *Client) dropTwins(ctx context.Context, jobs []Status, keep Status) {
	for _, s := range jobs {
		if s.Token == "" || s.Token != keep.Token || s.State.Ended() || s.State == Completing || s.ID.Job == keep.ID.Job {
			continue
		}
		c.log.Warn("two jobs of one token: one is cancelled", "job", s.ID.String(), "kept", keep.ID.String())
		if err := c.scancel(ctx, s.ID.Whole()); err != nil {
			c.log.Warn("it couldn't be cancelled", "job", s.ID.String(), "err", err)
		}
	}
}

// settling are the pauses between looks for a job whose sbatch gave no answer.
// A controller that hangs has the request in its queue and may take it up
// when it wakes, after the client has left: one look proves nothing.
var settling = [...]time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 6 * time.Second}

func (c *Client) settle(ctx context.Context, spec JobSpec) (Status, error) {
	for _, pause := range settling {
		if err := sleep(ctx, pause); err != nil {
			return Status{}, err
		}
		s, err := c.lookUp(ctx, spec, false)
		if err != nil || !s.ID.IsZero() {
			return s, err
		}
	}
	return Status{}, nil
}

// explainRefusal adds the valid choices to a refusal of account or QOS, where
// the accounting tells them.
func (c *Client) explainRefusal(ctx context.Context, spec JobSpec, err error) error {
	var e *hpcexec.Error
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case errors.Is(err, errAccount), errors.Is(err, errQOS):
		site, siteErr := c.Site(ctx)
		if siteErr != nil {
			return err
		}
		assoc, assocErr := c.Associations(ctx)
		if assocErr != nil {
			return err
		}
		if len(assoc) == 0 {
			return e.WithHint("%s has no account in Slurm: ask the administrators for one", site.User)
		}
		var choices []string
		for _, a := range assoc {
			choices = append(choices, a.String())
		}
		return e.WithHint("yours are: %s", strings.Join(choices, "; "))
	case errors.Is(err, errPartition):
		if parts, partErr := c.Partitions(ctx); partErr == nil {
			return e.WithHint("partitions here: %s", partitionNames(parts))
		}
	}
	return err
}

// An Association is an account that the user may use.
type Association struct {
	Account   string
	Partition string   // only in this one; empty: in all
	QOS       []string // that may be used with it
}

func (a Association) String() string {
	s := "account " + a.Account
	if a.Partition != "" {
		s += " in partition " + a.Partition
	}
	if len(a.QOS) > 0 {
		s += " (qos " + strings.Join(a.QOS, ", ") + ")"
	}
	return s
}

// Associations asks the accounting for the user's accounts. Without one the
// error matches ErrNoAccounting; any account is accepted then.
func (c *Client) Associations(ctx context.Context) ([]Association, error) {
	site, err := c.Site(ctx)
	if err != nil {
		return nil, err
	}
	out, err := c.run(ctx, call{prog: "sacctmgr", args: []string{"-nP", "show", "assoc", "where", "user=" + site.User, "format=account,partition,qos"}})
	if err != nil {
		return nil, err
	}
	return parseAssociations(out), nil
}

func parseAssociations(out string) []Association {
	var list []Association
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimRight(line, "\n"), "|")
		if len(f) < 3 || f[0] == "" {
			continue
		}
		a := Association{Account: f[0], Partition: f[1]}
		if f[2] != "" {
			a.QOS = strings.Split(f[2], ",")
		}
		list = append(list, a)
	}
	return list
}
