package slurm

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

// jobIDs says which job of the fixtures is which.
func jobIDs(t *testing.T, release string) map[string]string {
	t.Helper()
	var ids map[string]string
	if err := json.Unmarshal([]byte(fixture(t, release, "job-ids.json")), &ids); err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestJobsOfEachRelease(t *testing.T) {
	eachRelease(t, func(t *testing.T, release string) {
		ids := jobIDs(t, release)
		jobs, strange := ParseJobs(fixture(t, release, "squeue-all-states.txt"))
		if len(strange) > 1 || len(strange) == 1 && !strings.HasPrefix(strange[0], "JOBID|") {
			t.Errorf("lines that can't be read: %q", strange)
		}
		get := func(name string) Status {
			t.Helper()
			id, err := ParseJobID(ids[name])
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			s, ok := pick(jobs, id)
			if !ok {
				t.Fatalf("%s, job %s, isn't in the list", name, id)
			}
			return s
		}
		for _, tt := range []struct {
			name   string
			state  State
			reason string
			class  Class
		}{
			{"fail3", Failed, "NonZeroExitCode", ClassFix},
			{"ok", Completed, "None", ""},
			{"cancelled_run", Cancelled, "None", ""},
			{"suspended", Suspended, "None", ""},
			{"run_cpu", Running, "None", ""},
			{"pd_resources", Pending, "Resources", ClassWait},
			{"pd_qos", Pending, "QOSMaxGRESPerUser", ClassWait},
			{"pd_dependency", Pending, "Dependency", ClassWait},
			{"pd_begin", Pending, "BeginTime", ClassWait},
			{"pd_held", Pending, "JobHeldUser", ClassFix},
			{"pd_parttimelimit", Pending, "PartitionTimeLimit", ClassFix},
			{"pd_partdown", Pending, "PartitionDown", ClassAsk},
			{"depnever", Pending, "DependencyNeverSatisfied", ClassFix},
			{"requeuehold", Pending, "job requeued in held state", ClassFix},
		} {
			s := get(tt.name)
			if s.State != tt.state || s.Reason != tt.reason || s.Why.Class != tt.class {
				t.Errorf("%s: got %s, %q, %q; want %s, %q, %q", tt.name, s.State, s.Reason, s.Why.Class, tt.state, tt.reason, tt.class)
			}
		}
		run := get("run_gpu_a100_2")
		if !reflect.DeepEqual(run.Nodes, []string{"gpu1"}) || run.Partition != "gpu" || run.Limit != 10*time.Minute || run.Account != "proj" ||
			run.QOS != "normal" || run.EndsBy.Sub(run.Started) != 10*time.Minute || run.Submitted.IsZero() || !run.Expected.IsZero() {
			t.Errorf("run_gpu_a100_2: got %+v", run)
		}
		gres, _ := ParseGRES(run.GRES)
		if n := gpuCounts(gres)["a100"]; n != 2 {
			t.Errorf("GRES %q: got %d a100, want 2", run.GRES, n)
		}
		pending := get("pd_resources")
		if pending.Expected.IsZero() || !pending.Started.IsZero() || pending.Nodes != nil {
			t.Errorf("pd_resources: got %+v, want an expected start and no start", pending)
		}
		if s := get("pd_qos"); !s.Expected.IsZero() {
			t.Errorf("pd_qos: got expected start %v, want none", s.Expected)
		}
		if s := get("run_cpu"); s.Comment != "hpcexec:abc" || s.Ours() {
			t.Errorf("run_cpu: got comment %q, ours %v; want hpcexec:abc, which isn't our tag", s.Comment, s.Ours())
		}
		// An array: the tasks that wait are one line, with the array's number.
		array, _ := ParseJobID(ids["array"])
		var running, waiting Status
		for _, s := range jobs {
			if s.ID.Job == array.Job && s.ID.Part == Task {
				running = s
			}
			if s.ID.Job == array.Job && s.ID.Part == TaskSet {
				waiting = s
			}
		}
		if running.State != Running || running.Raw == array.Job || waiting.State != Pending || waiting.Raw != array.Job || waiting.ID.Tasks != "1-5%2" {
			t.Errorf("array %s: got %+v and %+v", array, running, waiting)
		}
		if s := get("het2"); s.ID.Part != Component || s.ID.Index != 0 {
			t.Errorf("het2: got %+v, want the first component", s.ID)
		}
	})
}

func TestJobLines(t *testing.T) {
	line := func(name, comment string) string {
		return "5|5|5|N/A|R|RUNNING|None|n1|n1|0:01|10:00|9:59|N/A|normal|proj|cpu|" + name +
			"|2026-11-30T20:18:34|2026-11-30T20:18:35|2026-11-30T20:28:35|" + comment + "|1"
	}
	for _, tt := range []struct{ name, comment, token string }{
		{"plain", "(null)", ""},
		{"a|b c", "(null)", ""},
		{"a||b", "x|y", ""},
		{"hpcexec-train-abcdefgh", tagPrefix + testToken, testToken},
		{"with|bar", tagPrefix + testToken, testToken},
		{"x", tagPrefix, ""},
		{"x", tagPrefix + "a b", ""},
	} {
		jobs, strange := ParseJobs(line(tt.name, tt.comment) + "\n")
		if len(jobs) != 1 || len(strange) > 0 {
			t.Errorf("%q: got %d jobs, strange %q", tt.name, len(jobs), strange)
			continue
		}
		s := jobs[0]
		if s.Name != tt.name || s.Comment != none(tt.comment) || s.Token != tt.token || s.State != Running ||
			!s.Submitted.Equal(time.Date(2026, 11, 30, 20, 18, 34, 0, time.UTC)) {
			t.Errorf("got %+v, want name %q, comment %q, token %q", s, tt.name, tt.comment, tt.token)
		}
	}
	jobs, strange := ParseJobs("nonsense\n\nslurm_load_jobs error: x|y\n" + line("ok", ""))
	if len(jobs) != 1 || len(strange) != 2 {
		t.Errorf("got %d jobs and strange %q, want 1 and 2 lines", len(jobs), strange)
	}
}

func TestAccountingOfEachRelease(t *testing.T) {
	eachRelease(t, func(t *testing.T, release string) {
		ids := jobIDs(t, release)
		jobs := ParseAccounting(fixture(t, release, "sacct-P.txt"))
		get := func(name string) Status {
			t.Helper()
			id, _ := ParseJobID(ids[name])
			s, ok := pick(jobs, id)
			if !ok {
				t.Fatalf("%s, job %s, isn't in the list", name, id)
			}
			return s
		}
		for _, tt := range []struct {
			name         string
			state        State
			code, signal int // signal -1: differs by release
		}{
			{"fail3", Failed, 3, 0},
			{"sig9", Failed, 0, 9},
			{"ok", Completed, 0, 0},
			{"cancelled_run", Cancelled, 0, -1},
			{"cancelled_pd", Cancelled, 0, 0},
			{"timeout", Timeout, 0, -1},
		} {
			s := get(tt.name)
			if s.State != tt.state || s.ExitCode != tt.code || tt.signal >= 0 && s.Signal != tt.signal {
				t.Errorf("%s: got %s, %d:%d; want %s, %d:%d", tt.name, s.State, s.ExitCode, s.Signal, tt.state, tt.code, tt.signal)
			}
		}
		states := map[State]int{}
		for _, s := range jobs {
			states[s.State]++
			if s.ExitKnown != s.State.Ended() {
				t.Errorf("job %s, %s: exit code known %v", s.ID, s.State, s.ExitKnown)
			}
		}
		if len(states) < 4 {
			t.Errorf("got states %v, want at least 4", states)
		}
		if s := get("pd_partdown"); s.Limit != 0 || s.Nodes != nil || !s.Expected.IsZero() {
			t.Errorf("pd_partdown: got limit %v, nodes %v, expected %v; want none", s.Limit, s.Nodes, s.Expected)
		}
		if s := get("timeout"); s.Limit != time.Minute || s.Ended.Before(s.Started) || s.Ended.IsZero() || s.User != "ada" {
			t.Errorf("timeout: got %+v", s)
		}
	})
}

func TestJobRecordsOfEachRelease(t *testing.T) {
	eachRelease(t, func(t *testing.T, release string) {
		for _, tt := range []struct {
			file         string
			state        State
			code, signal int
		}{
			{"scontrol-show-job-fail3.txt", Failed, 3, 0},
			{"scontrol-show-job-sig9.txt", Failed, 0, 9},
			{"scontrol-show-job-timeout.txt", Timeout, 0, -1},
		} {
			jobs := ParseJobRecords(fixture(t, release, tt.file))
			if len(jobs) != 1 {
				t.Fatalf("%s: got %d jobs, want 1", tt.file, len(jobs))
			}
			s := jobs[0]
			if s.State != tt.state || s.ExitCode != tt.code || tt.signal >= 0 && s.Signal != tt.signal || !s.ExitKnown || s.User != "ada" || s.Account != "proj" || s.Ended.IsZero() {
				t.Errorf("%s: got %+v; want %s, %d:%d", tt.file, s, tt.state, tt.code, tt.signal)
			}
		}
		one := ParseJobRecords(fixture(t, release, "scontrol-show-job-d-oneliner.txt"))
		if len(one) != 1 || one[0].State != Running || !reflect.DeepEqual(one[0].Nodes, []string{"gpu1"}) || one[0].Limit != 10*time.Minute {
			t.Errorf("one line: got %+v", one)
		}
		all := ParseJobRecords(fixture(t, release, "scontrol-show-job.txt"))
		if len(all) < 25 {
			t.Errorf("got %d jobs, want all of them", len(all))
		}
		array := ParseJobRecords(fixture(t, release, "scontrol-show-job-array.txt"))
		parts := map[Part]int{}
		for _, s := range array {
			parts[s.ID.Part]++
		}
		if parts[Task] == 0 || parts[TaskSet] != 1 {
			t.Errorf("array: got parts %v, want tasks and one set", parts)
		}
	})
}

func TestDevicesOfAJobOfEachRelease(t *testing.T) {
	eachRelease(t, func(t *testing.T, release string) {
		if got := parseJobDevices(fixture(t, release, "scontrol-show-job-d.txt"), "gpu1"); got != "2,3" {
			t.Errorf("got %q, want 2,3", got)
		}
		if got := parseJobDevices(fixture(t, release, "scontrol-show-job-d.txt"), "gpu2"); got != "" {
			t.Errorf("another node: got %q, want none", got)
		}
	})
}

func TestReasons(t *testing.T) {
	for _, tt := range []struct {
		reason string
		class  Class
		text   string
	}{
		{"Resources", ClassWait, "free nodes"},
		{"ReqNodeNotAvail, UnavailableNodes:gpu1", ClassAsk, "down, drained"},
		{"ReqNodeNotAvail, May be reserved for other job", ClassWait, "kept for another job"},
		{"ReqNodeNotAvail", ClassWait, "can't be had now"},
		{"QOSMaxGRESPerUser", ClassWait, "your other jobs"},
		{"QOSMaxGRESPerJob", ClassFix, "for one job"},
		{"QOSMaxWallDurationPerJobLimit", ClassFix, "for one job"},
		{"QOSMinGRES", ClassFix, "for one job"},
		{"AssocGrpGRES", ClassWait, "other jobs of its account"},
		{"AssocGrpCPUMinutesLimit", ClassAsk, "budget of its account is spent"},
		{"QOSGrpGRESRunMinutes", ClassWait, "less time left"},
		{"AssocMaxJobsLimit", ClassWait, "your other jobs"},
		{"JobHeldAdmin", ClassAsk, "held by an administrator"},
		{"SomethingNew", ClassWait, "SomethingNew"},
		{"", "", ""},
	} {
		got := explain(tt.reason)
		if got.Class != tt.class || !strings.Contains(got.Text, tt.text) {
			t.Errorf("%q: got %q, %q; want %q, %q", tt.reason, got.Class, got.Text, tt.class, tt.text)
		}
	}
}

func TestStates(t *testing.T) {
	for in, want := range map[string]State{
		"RUNNING": Running, "CANCELLED by 2001": Cancelled, "CANCELLED+": Cancelled, "completing": Completing,
		"": Unknown, "SOMETHING_NEW": "SOMETHING_NEW",
	} {
		if got := ParseState(in); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
	for _, s := range []State{Pending, Running, Completing, Suspended, Unknown, Requeued, "SOMETHING_NEW"} {
		if s.Ended() {
			t.Errorf("%s counts as ended", s)
		}
	}
	for _, s := range []State{Completed, Cancelled, Failed, Timeout, NodeFail, Preempted, OutOfMemory, Deadline, Gone} {
		if !s.Ended() {
			t.Errorf("%s doesn't count as ended", s)
		}
	}
}

// TestJobElsewhere has a job that squeue doesn't list any more.
func TestJobElsewhere(t *testing.T) {
	const header = "JobID|JobIDRaw|User|Account|Partition|QOS|State|ExitCode|Reason|Submit|Start|End|TimelimitRaw|NodeList|Comment|JobName\n"
	record := func(state, exit string) string {
		return header + "7|7|ada|proj|gpu|normal|" + state + "|" + exit + "|None|2026-11-30T20:18:34|2026-11-30T20:18:35|2026-11-30T20:19:35|10|gpu1||a|b\n"
	}
	const noJob, noDB = "slurm_load_jobs error: Invalid job id specified\n", "Slurm accounting storage is disabled\n"
	for _, tt := range []struct {
		name                 string
		sacct, sacctErr      string
		scontrol, controlErr string
		state                State
		code                 int
		from                 string
		wantErr              error
	}{
		{name: "in the accounting", sacct: record("FAILED", "3:0"), controlErr: noJob, state: Failed, code: 3, from: "sacct"},
		{name: "cancelled by", sacct: record("CANCELLED by 2001", "0:0"), controlErr: noJob, state: Cancelled, from: "sacct"},
		{name: "the accounting lags", sacct: record("RUNNING", "0:0"), controlErr: noJob, state: Gone},
		{name: "no accounting", sacctErr: noDB, controlErr: noJob, state: Gone},
		{name: "no accounting, the controller knows it", sacctErr: noDB, scontrol: "JobId=7 JobName=x UserId=ada(2001) JobState=COMPLETED ExitCode=0:0\n", state: Completed, from: "scontrol"},
		{name: "the controller is down by now", sacctErr: noDB, controlErr: "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", state: Unknown, wantErr: ErrController},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &fakeSite{answer: func(prog string, args []string, _ string) (string, string, int, error) {
				exit := func(stderr string) int { return min(len(stderr), 1) }
				switch prog {
				case "sacct":
					return tt.sacct, tt.sacctErr, exit(tt.sacctErr), nil
				case "scontrol":
					return tt.scontrol, tt.controlErr, exit(tt.controlErr), nil
				}
				return "", "", 0, nil
			}}
			s, err := fakeClient(t, f).Job(t.Context(), JobID{Job: 7})
			if !errors.Is(err, tt.wantErr) || (err == nil) != (tt.wantErr == nil) || s.State != tt.state || s.ExitCode != tt.code || s.From != tt.from {
				t.Errorf("got %+v, %v; want %s, exit code %d, from %q, %v", s, err, tt.state, tt.code, tt.from, tt.wantErr)
			}
			if tt.from == "sacct" && s.Name != "a|b" {
				t.Errorf("got name %q, want a|b", s.Name)
			}
		})
	}
}
