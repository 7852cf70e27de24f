package slurm

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

// squeueFormat is asked of squeue. The job's name and comment may have a | of
// their own; ours don't (parseJobLine).
const squeueFormat = "%i|%A|%F|%K|%t|%T|%r|%R|%N|%M|%l|%L|%b|%q|%a|%P|%j|%V|%S|%e|%k|%Q"

// sacctFields are asked of sacct; Restarts isn't one, since 20.11 and 22.05
// refuse the whole call for it. The name comes last: it may have a |.
const sacctFields = "JobID,JobIDRaw,User,Account,Partition,QOS,State,ExitCode,Reason,Submit,Start,End,TimelimitRaw,NodeList,Comment,JobName"

// A listing is one squeue that runs, and those who wait for it.
type listing struct {
	done    chan struct{}
	waiters int // guarded by Client.mu
	cancel  context.CancelFunc
	jobs    []Status // after done
	err     error
}

// Jobs asks for all jobs of the user, of hpcexec or not, those included that
// ended in the last minutes. One call of squeue answers for all jobs, and for
// all who ask at the same time.
func (c *Client) Jobs(ctx context.Context) ([]Status, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	c.mu.Lock()
	l := c.inflight
	if l == nil {
		inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
		l = &listing{done: make(chan struct{}), cancel: cancel}
		c.inflight = l
		go func() {
			defer cancel()
			l.jobs, l.err = c.squeue(inner)
			c.mu.Lock()
			if c.inflight == l {
				c.inflight = nil
			}
			c.mu.Unlock()
			close(l.done)
		}()
	}
	l.waiters++
	c.mu.Unlock()

	select {
	case <-l.done:
		return l.jobs, l.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	if l.waiters--; l.waiters == 0 {
		if c.inflight == l {
			c.inflight = nil // the next who asks begins anew
		}
		l.cancel()
	}
	last := l.waiters == 0
	c.mu.Unlock()
	if last {
		<-l.done // nothing runs on after the last has left
	}
	return nil, context.Cause(ctx)
}

// squeue asks now, and for itself alone: a look before a second sbatch must be
// younger than the first one.
func (c *Client) squeue(ctx context.Context) ([]Status, error) {
	asked := time.Now()
	out, err := c.run(ctx, call{prog: "squeue", args: []string{"--me", "-h", "-t", "all", "-o", squeueFormat}})
	if err != nil {
		return nil, err
	}
	jobs, strange := ParseJobs(out)
	for i := range jobs {
		jobs[i].AsOf = asked
	}
	if len(strange) > 0 {
		c.log.Warn("squeue printed lines that can't be read", "lines", len(strange), "first", strange[0])
	}
	return jobs, nil
}

// ParseJobs reads the output of squeue in our format. Lines that can't be read
// are given in strange, as they came.
func ParseJobs(out string) (jobs []Status, strange []string) {
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		if line == "" {
			continue
		}
		s, ok := parseJobLine(line)
		if !ok {
			strange = append(strange, line)
			continue
		}
		jobs = append(jobs, s)
	}
	return jobs, strange
}

func parseJobLine(line string) (Status, bool) {
	f := strings.Split(line, "|")
	const name, tail = 16, 5 // fields before the name, and after it
	if len(f) < name+1+tail {
		return Status{}, false
	}
	id, err := ParseJobID(f[0])
	if err != nil {
		return Status{}, false
	}
	s := Status{
		ID: id, State: ParseState(f[5]), Reason: f[6], Nodes: ParseHostlist(f[8]),
		GRES: none(f[12]), QOS: none(f[13]), Account: none(f[14]), Partition: f[15], From: "squeue",
	}
	s.Raw, _ = number64(f[1])
	if d, ok := parseLimit(f[10]); ok {
		s.Limit = d
	}
	// The name ends where the submit time stands; what is then left over
	// belongs to the comment.
	end := name + 1
	for end < len(f)-tail && parseTime(f[end]).IsZero() {
		end++
	}
	s.Name = strings.Join(f[name:end], "|")
	s.Submitted = parseTime(f[end])
	s.setTimes(parseTime(f[end+1]), parseTime(f[end+2]))
	s.setComment(strings.Join(f[end+3:len(f)-1], "|"))
	s.Why = explainStatus(s)
	return s, true
}

func (s *Status) setComment(comment string) {
	s.Comment = none(comment)
	if token, ok := strings.CutPrefix(s.Comment, tagPrefix); ok && plainWord(token) {
		s.Token = token
	}
}

// explainStatus leaves out what says nothing: the reason of a job that runs.
func explainStatus(s Status) Explanation {
	if s.State == Running || s.Reason == "None" && !s.State.Waiting() {
		return Explanation{}
	}
	return explain(s.Reason)
}

func none(s string) string {
	if s == "(null)" || s == "N/A" {
		return ""
	}
	return s
}

// Job asks for one job: squeue first, then, where that doesn't list it, sacct
// and scontrol. Where the controller can't be asked the State is Unknown and
// the error says why; where nobody knows the job it is Gone.
func (c *Client) Job(ctx context.Context, id JobID) (Status, error) {
	s, _, err := c.job(ctx, id)
	return s, err
}

// job is Job with the list that it looked at.
func (c *Client) job(ctx context.Context, id JobID) (Status, []Status, error) {
	jobs, err := c.Jobs(ctx)
	if err != nil {
		return unknown(id, err), nil, err
	}
	s, ok := pick(jobs, id)
	if !ok {
		s, err = c.elsewhere(ctx, id)
		return s, jobs, err
	}
	if s.State.Ended() {
		c.fillEnd(ctx, &s)
	}
	return s, jobs, nil
}

func unknown(id JobID, err error) Status {
	return Status{ID: id, State: Unknown, Reason: err.Error(), AsOf: time.Now()}
}

// pick finds a job in a list. Of the parts of an array or het job, where the
// whole was asked for, one that hasn't ended counts before one that has.
func pick(jobs []Status, id JobID) (Status, bool) {
	var best Status
	found := false
	for _, s := range jobs {
		switch {
		case s.ID.local() == id.local():
			return s, true
		case id.Part == Whole && id.Step == "" && (s.ID.Job == id.Job || s.Raw == id.Job):
			if !found || best.State.Ended() && !s.State.Ended() {
				best, found = s, true
			}
		}
	}
	return best, found
}

// elsewhere asks for a job that squeue doesn't list. The accounting may lag by
// seconds, so it is believed only where it says that the job has ended.
func (c *Client) elsewhere(ctx context.Context, id JobID) (Status, error) {
	if recorded, ok := c.sacct(ctx, "-j", id.local()); ok {
		if s, ok := pick(recorded, id); ok && s.State.Ended() {
			return s, nil
		}
	}
	s, err := c.show(ctx, id)
	switch {
	case err == nil:
		return s, nil
	case errors.Is(err, ErrNoSuchJob):
		return Status{ID: id, State: Gone, AsOf: time.Now()}, nil
	}
	return unknown(id, err), err
}

// sacct asks the accounting, which many sites don't have; ok is false then.
func (c *Client) sacct(ctx context.Context, args ...string) ([]Status, bool) {
	asked := time.Now()
	out, err := c.run(ctx, call{prog: "sacct", args: append([]string{"-P", "-X", "--format=" + sacctFields}, args...)})
	if err != nil {
		if !errors.Is(err, ErrNoAccounting) && !errors.Is(err, ErrNoProgram) && ctx.Err() == nil {
			c.log.Debug("sacct failed", "err", err)
		}
		return nil, false
	}
	jobs := ParseAccounting(out)
	for i := range jobs {
		jobs[i].AsOf = asked
	}
	return jobs, true
}

// ParseAccounting reads the output of `sacct -P` with its header; columns are
// found by their names.
func ParseAccounting(out string) []Status {
	header, body, _ := strings.Cut(out, "\n")
	columns := strings.Split(header, "|")
	var jobs []Status
	for line := range strings.Lines(body) {
		values := strings.SplitN(strings.TrimRight(line, "\n"), "|", len(columns))
		if len(values) < len(columns) {
			continue
		}
		f := map[string]string{}
		for i, name := range columns {
			f[name] = values[i]
		}
		id, err := ParseJobID(f["JobID"])
		if err != nil {
			continue
		}
		s := Status{
			ID: id, State: ParseState(f["State"]), Reason: f["Reason"], Nodes: ParseHostlist(f["NodeList"]),
			Name: f["JobName"], User: f["User"], Account: f["Account"], Partition: f["Partition"], QOS: f["QOS"],
			Submitted: parseTime(f["Submit"]), From: "sacct",
		}
		s.Raw, _ = number64(f["JobIDRaw"])
		if d, ok := parseLimit(f["TimelimitRaw"]); ok {
			s.Limit = d
		}
		s.setTimes(parseTime(f["Start"]), parseTime(f["End"]))
		s.setExit(f["ExitCode"])
		s.setComment(f["Comment"])
		s.Why = explainStatus(s)
		jobs = append(jobs, s)
	}
	return jobs
}

// show asks scontrol for one job.
func (c *Client) show(ctx context.Context, id JobID) (Status, error) {
	asked := time.Now()
	out, err := c.run(ctx, call{prog: "scontrol", args: []string{"show", "job", "-o", id.local()}})
	if err != nil {
		return Status{}, err
	}
	jobs := ParseJobRecords(out)
	s, ok := pick(jobs, id)
	if !ok {
		return Status{}, hpcexec.Errorf(hpcexec.ErrUnavailable, "scontrol show job %s printed nothing that can be read", id)
	}
	s.AsOf = asked
	return s, nil
}

// ParseJobRecords reads the output of `scontrol show job`.
func ParseJobRecords(out string) []Status {
	var jobs []Status
	for _, r := range parseRecords(out, "JobId") {
		number := r["JobId"]
		s := Status{From: "scontrol"}
		s.Raw, _ = number64(number)
		switch {
		case r["ArrayJobId"] != "" && strings.ContainsAny(r["ArrayTaskId"], "-,%"):
			number = r["ArrayJobId"] + "_[" + r["ArrayTaskId"] + "]"
		case r["ArrayJobId"] != "":
			number = r["ArrayJobId"] + "_" + r["ArrayTaskId"]
		case r["HetJobId"] != "":
			number = r["HetJobId"] + "+" + r["HetJobOffset"]
		}
		id, err := ParseJobID(number)
		if err != nil {
			continue
		}
		s.ID = id
		s.State, s.Reason = ParseState(r["JobState"]), r["Reason"]
		s.Name, s.Account, s.Partition, s.QOS = r["JobName"], r.text("Account"), r["Partition"], r.text("QOS")
		s.User, _, _ = strings.Cut(r["UserId"], "(")
		s.Nodes = ParseHostlist(r["NodeList"])
		s.Submitted = parseTime(r["SubmitTime"])
		s.GRES = r.text("TresPerNode")
		if d, ok := parseLimit(r["TimeLimit"]); ok {
			s.Limit = d
		}
		s.setTimes(parseTime(r["StartTime"]), parseTime(r["EndTime"]))
		if s.State.Ended() {
			s.setExit(r["ExitCode"])
		}
		s.setComment(r["Comment"])
		s.Why = explainStatus(s)
		jobs = append(jobs, s)
	}
	return jobs
}

// setExit reads an exit code as Slurm writes it, CODE:SIGNAL. One of a job
// that hasn't ended is 0:0 and says nothing.
func (s *Status) setExit(v string) {
	code, signal, ok := strings.Cut(v, ":")
	c, err1 := strconv.Atoi(code)
	sig, err2 := strconv.Atoi(signal)
	if ok && err1 == nil && err2 == nil && s.State.Ended() {
		s.ExitCode, s.Signal, s.ExitKnown = c, sig, true
	}
}

// fillEnd adds what squeue doesn't print of a job that has ended. Failing is
// no matter: the state is known.
func (c *Client) fillEnd(ctx context.Context, s *Status) {
	if d, err := c.show(ctx, s.ID); err == nil && d.State == s.State {
		s.ExitCode, s.Signal, s.ExitKnown = d.ExitCode, d.Signal, d.ExitKnown
	}
}
