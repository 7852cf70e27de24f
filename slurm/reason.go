package slurm

import "strings"

// A Class says whose move it is while a job waits.
type Class string

// The classes of pending reasons.
const (
	ClassWait Class = "wait"  // it goes away by itself
	ClassFix  Class = "fix"   // it never does: the request must change
	ClassAsk  Class = "admin" // an administrator must act
)

// An Explanation is a pending reason, or a reason of the end, in words.
type Explanation struct {
	Class  Class
	Text   string // "waits for free resources"; a phrase that follows "the job"
	Remedy string // what to do; may be empty
}

// reasons are those of slurm's job_state_reason_string. A name that ends in *
// stands for all that begin so; the first that fits counts.
var reasons = []struct {
	name string
	Explanation
}{
	{"None", Explanation{ClassWait, "waits to be looked at by the scheduler", ""}},
	{"Priority", Explanation{ClassWait, "waits behind jobs of higher priority", ""}},
	{"Resources", Explanation{ClassWait, "waits for free nodes, CPUs, memory or GPUs", ""}},
	{"Dependency", Explanation{ClassWait, "waits for another job that it depends on", ""}},
	{"BeginTime", Explanation{ClassWait, "waits for its begin time; a job that was put back in the queue waits two minutes", ""}},
	{"Licenses", Explanation{ClassWait, "waits for a licence", ""}},
	{"JobArrayTaskLimit", Explanation{ClassWait, "waits for other tasks of its array", ""}},
	{"Reservation", Explanation{ClassWait, "waits for its reservation to begin", ""}},
	{"Cleaning", Explanation{ClassWait, "waits for its earlier run to be cleaned up", ""}},
	{"Prolog", Explanation{ClassWait, "waits for its nodes to be made ready", ""}},
	{"BurstBuffer*", Explanation{ClassWait, "waits for its burst buffer", ""}},
	{"MaxPowerPerNode", Explanation{ClassWait, "waits for power to be available", ""}},
	{"PowerNotAvail", Explanation{ClassWait, "waits for power to be available", ""}},
	{"PowerReserved", Explanation{ClassWait, "waits for power to be available", ""}},

	{"ReqNodeNotAvail, UnavailableNodes*", Explanation{ClassAsk, "waits for nodes that are down, drained or reserved", "wait, choose another partition or GPU type, or ask the administrators when the nodes come back"}},
	{"ReqNodeNotAvail, May be reserved*", Explanation{ClassWait, "waits for nodes that are kept for another job or reserved", "ask for less time (--time) so that it fits before the reservation"}},
	{"ReqNodeNotAvail*", Explanation{ClassWait, "waits for nodes that can't be had now: in use, reserved, or down", ""}},
	{"NodeDown", Explanation{ClassAsk, "waits for a node that is down", "ask the administrators when it comes back"}},
	{"ResvAccessDenied", Explanation{ClassFix, "may not use that reservation", "leave out --reservation, or ask to be let in"}},

	{"DependencyNeverSatisfied", Explanation{ClassFix, "waits for a job that failed, so it never starts", "cancel it and submit it without that dependency"}},
	{"PartitionTimeLimit", Explanation{ClassFix, "asks for more time than its partition allows", "cancel it and ask for less with --time, or use another --partition"}},
	{"PartitionNodeLimit", Explanation{ClassFix, "asks for more nodes, CPUs or memory than its partition has", "cancel it and ask for less, or use another --partition"}},
	{"PartitionConfig", Explanation{ClassFix, "asks for what its partition doesn't give", "cancel it and ask for less, or use another --partition"}},
	{"TimeLimit", Explanation{ClassFix, "reached its time limit", "ask for more with --time"}},
	{"BadConstraints", Explanation{ClassFix, "asks for a combination that no node has", "cancel it and ask for something else; `hpcexec gpus` shows what there is"}},
	{"InvalidAccount", Explanation{ClassFix, "has an account that isn't valid", "cancel it and choose another --account"}},
	{"AccountNotAllowed", Explanation{ClassFix, "has an account that may not use the partition", "cancel it and choose another --account or --partition"}},
	{"InvalidQOS", Explanation{ClassFix, "has a QOS that isn't valid", "cancel it and choose another --qos"}},
	{"QOSNotAllowed", Explanation{ClassFix, "has a QOS that may not use the partition", "cancel it and choose another --qos or --partition"}},
	{"QOSUsageThreshold", Explanation{ClassFix, "has a QOS whose usage threshold is reached", "choose another --qos, or wait for the usage to decay"}},
	{"JobHeldUser", Explanation{ClassFix, "is held by its user", "`scontrol release JOBID` lets it go"}},
	{"job requeued in held state", Explanation{ClassFix, "was put back in the queue and is held", "`scontrol release JOBID` lets it go"}},
	{"launch failed requeued held", Explanation{ClassAsk, "couldn't be started on its node and is held", "ask the administrators about the node, then `scontrol release JOBID`"}},
	{"JobHoldMaxRequeue", Explanation{ClassFix, "was put back in the queue too often and is held", "look at why it fails, then `scontrol release JOBID`"}},

	{"JobHeldAdmin", Explanation{ClassAsk, "is held by an administrator", "ask them why"}},
	{"PartitionDown", Explanation{ClassAsk, "waits for a partition that is closed", "use another --partition, or ask the administrators when it opens"}},
	{"PartitionInactive", Explanation{ClassAsk, "waits for a partition that is closed", "use another --partition, or ask the administrators when it opens"}},
	{"FrontEndDown", Explanation{ClassAsk, "waits for a front-end node that is down", "ask the administrators"}},
	{"SystemFailure", Explanation{ClassAsk, "failed by a fault of the system", "ask the administrators"}},
	{"SchedDefer", Explanation{ClassWait, "waits for the scheduler, which is slowed down", ""}},
	{"ReservationDeleted", Explanation{ClassFix, "asks for a reservation that was deleted", "cancel it and leave out --reservation"}},

	// How jobs end.
	{"NonZeroExitCode", Explanation{ClassFix, "ended with an exit code that isn't 0", ""}},
	{"RaisedSignal:9*", Explanation{ClassFix, "was killed, maybe because it used more memory than it had asked for", "ask for more with --mem if its log says so"}},
	{"RaisedSignal:53*", Explanation{ClassFix, "couldn't start: its directory or the folder of its output isn't on the node", "use a folder on a shared file system"}},
	{"RaisedSignal*", Explanation{ClassFix, "was ended by a signal", ""}},
	{"OutOfMemory", Explanation{ClassFix, "used more memory than it had asked for", "ask for more with --mem"}},
	{"JobLaunchFailure", Explanation{ClassAsk, "couldn't be started on its node, or was killed there", "try again; if it stays, ask the administrators"}},
	{"NodeFail*", Explanation{ClassWait, "lost its node", "start it again"}},
	{"DeadLine", Explanation{ClassFix, "reached its deadline", ""}},
	{"InactiveLimit", Explanation{ClassFix, "was idle for too long", ""}},
}

// explain gives a reason in words. Reasons that aren't known are passed on as
// they came, and taken as such that go away.
func explain(reason string) Explanation {
	if reason == "" {
		return Explanation{}
	}
	for _, r := range reasons {
		prefix, wild := strings.CutSuffix(r.name, "*")
		if r.name == reason || wild && strings.HasPrefix(reason, prefix) {
			return r.Explanation
		}
	}
	if what, ok := strings.CutPrefix(reason, "QOS"); ok {
		return explainLimit(what, "QOS", "--qos")
	}
	if what, ok := strings.CutPrefix(reason, "Assoc"); ok {
		return explainLimit(what, "account", "--account")
	}
	if what, ok := strings.CutPrefix(reason, "Association"); ok {
		return explainLimit(what, "account", "--account")
	}
	if strings.HasPrefix(reason, "(") || strings.Contains(reason, "Unavailable") {
		return Explanation{ClassWait, "waits: " + reason, ""}
	}
	return Explanation{ClassWait, "waits: " + reason, ""}
}

// explainLimit explains the hundred reasons that are named by a scheme: whose
// limit, of what, counted over what (QOSMaxGRESPerUser, AssocGrpCPUMinutesLimit).
func explainLimit(what, whose, flag string) Explanation {
	switch {
	case strings.Contains(what, "PerJob"), strings.Contains(what, "PerNode"), strings.Contains(what, "MaxWall"),
		strings.HasPrefix(what, "Min"), what == "JobLimit", what == "TimeLimit":
		return Explanation{ClassFix, "asks for more (or less) than its " + whose + " allows for one job: " + what,
			"cancel it and ask for less, or use another " + flag}
	case strings.Contains(what, "RunMinutes"):
		return Explanation{ClassWait, "waits until the running jobs of its " + whose + " have less time left: " + what,
			"ask for less time (--time)"}
	case strings.Contains(what, "Minutes"), strings.Contains(what, "Billing"):
		return Explanation{ClassAsk, "waits because the budget of its " + whose + " is spent: " + what,
			"ask for more budget, or use another " + flag}
	case strings.HasPrefix(what, "Grp"):
		return Explanation{ClassWait, "waits for other jobs of its " + whose + " to end, which together reach its limit: " + what, ""}
	}
	return Explanation{ClassWait, "waits for your other jobs to end, which together reach the limit of the " + whose + ": " + what, ""}
}
