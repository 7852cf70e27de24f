package slurm

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

// Causes of failures, for errors.Is beside the kinds of package hpcexec.
var (
	// ErrController: the controller can't be asked now. It says nothing about
	// any job.
	ErrController = errors.New("slurm controller can't be asked")

	// ErrNoSuchJob: the controller answered that it has no such job. It
	// forgets jobs MinJobAge (5 minutes by default) after their end.
	ErrNoSuchJob = errors.New("slurm controller has no such job")

	// ErrNoAccounting: the site keeps no accounting database, or it can't be
	// reached.
	ErrNoAccounting = errors.New("no slurm accounting")

	// ErrNoProgram: the program isn't there.
	ErrNoProgram = errors.New("no such slurm program")

	// ErrNotOurs: the job doesn't carry the tag that was asked for.
	ErrNotOurs = errors.New("not a job of hpcexec's")

	errAccount   = errors.New("account refused")
	errQOS       = errors.New("qos refused")
	errPartition = errors.New("partition refused")
	errBusy      = errors.New("job is pending")
)

// A Failure is a program of Slurm's that failed; errors.As finds it in the
// errors of this package.
type Failure struct {
	Program  string
	ExitCode int
	Stderr   string // as it came, for logs

	// Maybe: the controller may have done what was asked all the same.
	Maybe bool

	// Retry: the same call may work later.
	Retry bool

	cause error
}

func (f *Failure) Error() string {
	return fmt.Sprintf("%s: exit code %d: %s", f.Program, f.ExitCode, firstLine(f.Stderr))
}

// Unwrap makes errors.Is match the cause.
func (f *Failure) Unwrap() error { return f.cause }

// A sign is a piece of text by which a failure is known, and what it means.
// The texts are those of slurm_errno.c, the same in all releases; they have no
// translations.
type sign struct {
	text  string
	kind  error
	cause error
	maybe bool
	retry bool
	hint  string
}

// signs are tried in this order, each against all lines: what is wrong with
// the controller or with munge comes first, since srun adds "Expired or
// invalid job" to that as well.
var signs = []sign{
	{text: "Unable to contact slurm controller", kind: hpcexec.ErrUnavailable, cause: ErrController, maybe: true, retry: true,
		hint: "the Slurm controller is down or restarting; jobs go on meanwhile. Try again in some minutes (scontrol ping shows when it is back)"},
	{text: "Socket timed out", kind: hpcexec.ErrUnavailable, cause: ErrController, maybe: true, retry: true,
		hint: "the Slurm controller is too busy to answer. Try again in some minutes"},
	{text: "temporarily unable to accept job", kind: hpcexec.ErrUnavailable, cause: ErrController, maybe: true, retry: true,
		hint: "the Slurm controller takes no jobs just now. Try again in some minutes"},
	{text: "Munge encode failed", kind: hpcexec.ErrUnavailable, cause: ErrController, retry: true,
		hint: "munged doesn't run on this machine: tell the administrators"},
	{text: "Protocol authentication error", kind: hpcexec.ErrUnavailable, cause: ErrController, retry: true,
		hint: "Slurm's authentication (munge) fails here: tell the administrators"},
	{text: "Invalid authentication credential", kind: hpcexec.ErrUnavailable, cause: ErrController, retry: true,
		hint: "Slurm's authentication (munge) fails here, maybe by a wrong clock: tell the administrators"},
	{text: "Problem talking to the database", kind: hpcexec.ErrUnavailable, cause: ErrNoAccounting, retry: true},
	{text: "Sending PersistInit msg", kind: hpcexec.ErrUnavailable, cause: ErrNoAccounting, retry: true},
	{text: "Slurm accounting storage is disabled", kind: hpcexec.ErrUnavailable, cause: ErrNoAccounting},
	{text: "not running a supported accounting_storage plugin", kind: hpcexec.ErrUnavailable, cause: ErrNoAccounting},
	{text: "Could not establish a configuration source", kind: hpcexec.ErrUnavailable, cause: ErrController,
		hint: "this machine belongs to no Slurm cluster (no slurm.conf): use a login node of the cluster"},
	{text: "Unable to process configuration file", kind: hpcexec.ErrUnavailable, cause: ErrController,
		hint: "Slurm's configuration on this machine is broken: tell the administrators"},

	{text: "Job is pending execution", kind: hpcexec.ErrUnavailable, cause: errBusy, retry: true,
		hint: "the allocation hasn't started yet, or was put back in the queue"},
	{text: "has expired", kind: hpcexec.ErrAllocationGone, cause: ErrNoSuchJob, hint: "the job has ended: start another one"},
	{text: "Job/step already completing or completed", kind: hpcexec.ErrAllocationGone, cause: ErrNoSuchJob, hint: "the job has ended: start another one"},
	{text: "Invalid job id specified", kind: hpcexec.ErrAllocationGone, cause: ErrNoSuchJob, hint: "the job has ended: start another one"},

	{text: "Invalid account or account/partition combination", kind: hpcexec.ErrInvalid, cause: errAccount,
		hint: "choose another one with --account; `sacctmgr show assoc user=$USER format=account,partition,qos` lists yours"},
	{text: "Invalid qos specification", kind: hpcexec.ErrInvalid, cause: errQOS,
		hint: "choose another one with --qos; `sacctmgr show assoc user=$USER format=account,qos` lists yours"},
	{text: "Invalid partition name specified", kind: hpcexec.ErrInvalid, cause: errPartition, hint: "`sinfo -s` lists the partitions"},
	{text: "group not permitted to use this partition", kind: hpcexec.ErrInvalid, cause: errPartition,
		hint: "choose another partition, or ask the administrators to be let into the group"},
	{text: "Partition in DOWN state", kind: hpcexec.ErrUnavailable, cause: errPartition, hint: "choose another partition with --partition"},
	{text: "Requested time limit is invalid", kind: hpcexec.ErrInvalid, hint: "ask for less with --time"},
	{text: "Job violates accounting/QOS policy", kind: hpcexec.ErrInvalid, cause: errQOS,
		hint: "the request is over a limit of your account or QOS (number of jobs, size, or time): ask for less or use another --qos"},
	{text: "Invalid generic resource (gres) specification", kind: hpcexec.ErrInvalid, hint: "`hpcexec gpus` shows what there is"},
	{text: "Memory required by task is not available", kind: hpcexec.ErrInvalid, hint: "the job has less memory: make it with more (--mem)"},
	{text: "Memory specification can not be satisfied", kind: hpcexec.ErrInvalid, hint: "ask for less with --mem"},
	{text: "CPU count per node can not be satisfied", kind: hpcexec.ErrInvalid, hint: "ask for less with --cpus"},
	{text: "More processors requested than permitted", kind: hpcexec.ErrInvalid, hint: "ask for less with --cpus"},
	{text: "Node count specification invalid", kind: hpcexec.ErrInvalid, hint: "ask for less with --nodes"},
	{text: "Requested node configuration is not available", kind: hpcexec.ErrInvalid,
		hint: "no node can ever give that (or those that could are down): `hpcexec gpus` shows what there is"},
	{text: "Invalid node name specified", kind: hpcexec.ErrInvalid},
	{text: "Invalid feature specification", kind: hpcexec.ErrInvalid, hint: "`sinfo -o '%N %f'` lists the features"},
	{text: "Access denied to requested reservation", kind: hpcexec.ErrInvalid, hint: "ask the administrators to be let into the reservation"},
	{text: "Requested reservation is invalid", kind: hpcexec.ErrInvalid, hint: "`scontrol show reservation` lists them"},
	{text: "Job dependency problem", kind: hpcexec.ErrInvalid},
	{text: "Access/permission denied", kind: hpcexec.ErrDenied, hint: "the job belongs to another user"},
	{text: "Invalid user id", kind: hpcexec.ErrDenied, hint: "the job belongs to another user"},
	{text: "Requested nodes are busy", kind: hpcexec.ErrUnavailable, cause: errBusy, retry: true,
		hint: "another step holds what the command needs"},

	{text: "Only allocated", kind: hpcexec.ErrInvalid},
	{text: "unrecognized option", kind: hpcexec.ErrInvalid, hint: "this release of Slurm has no such option"},
	{text: "specification", kind: hpcexec.ErrInvalid}, // "Invalid --time specification"
	{text: "Batch script", kind: hpcexec.ErrInvalid},
	{text: "does not look like a batch script", kind: hpcexec.ErrInvalid},
	{text: "NULL character", kind: hpcexec.ErrInvalid},

	// These come of a reply that was lost, so nobody knows.
	{text: "Zero Bytes were transmitted or received", kind: hpcexec.ErrUnavailable, cause: ErrController, maybe: true, retry: true},
	{text: "Unexpected message received", kind: hpcexec.ErrUnavailable, cause: ErrController, maybe: true, retry: true},
	{text: "Communication connection failure", kind: hpcexec.ErrUnavailable, cause: ErrController, maybe: true, retry: true,
		hint: "slurmd doesn't answer on the node"},
	{text: "Communication shutdown failure", kind: hpcexec.ErrUnavailable, cause: ErrController, maybe: true, retry: true},
	{text: "Transport endpoint is not connected", kind: hpcexec.ErrUnavailable, cause: ErrController, maybe: true, retry: true},
}

// classify is the one place that reads what Slurm's programs say when they
// fail. What it doesn't know is ErrInvalid from sbatch (a refusal) and
// ErrUnavailable from the others, with the program's own words.
func classify(prog string, exit int, stderr, stdout string) error {
	f := &Failure{Program: prog, ExitCode: exit, Stderr: stderr}
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	for _, s := range signs {
		for _, line := range lines {
			if strings.Contains(line, s.text) {
				f.cause, f.Maybe, f.Retry = s.cause, s.maybe, s.retry
				return &hpcexec.Error{Kind: s.kind, Text: prog + ": " + plain(line), Hint: s.hint, Err: f}
			}
		}
	}
	text := firstLine(stderr)
	if text == "" {
		text = firstLine(stdout) // scontrol says "Node x not found" there
	}
	if text == "" {
		text = fmt.Sprintf("exit code %d and no message", exit)
	}
	kind := hpcexec.ErrUnavailable
	if prog == "sbatch" {
		// A signal (128+n) or silence proves nothing, so the job is looked for.
		kind, f.Maybe = hpcexec.ErrInvalid, true
		if exit > 128 && exit != 255 {
			kind = hpcexec.ErrUnknownEnd
		}
	}
	return &hpcexec.Error{Kind: kind, Text: prog + ": " + plain(text), Err: f}
}

// plain takes the programs' prefixes from a message.
func plain(line string) string {
	line = strings.TrimSpace(line)
	for _, cut := range []string{": error: ", "Batch job submission failed: ", "Job submit/allocate failed: ", "slurm_load_jobs error: "} {
		if i := strings.Index(line, cut); i >= 0 {
			line = line[i+len(cut):]
		}
	}
	return line
}

// timedOut is the error of a program that gave no answer in time.
func timedOut(prog string, after time.Duration) error {
	return &hpcexec.Error{
		Kind: hpcexec.ErrUnavailable,
		Text: fmt.Sprintf("%s gave no answer in %v", prog, after),
		Hint: "the Slurm controller is too busy to answer. Try again in some minutes",
		Err:  &Failure{Program: prog, Stderr: "no answer", Maybe: true, Retry: true, cause: ErrController},
	}
}

// maybeDone says whether a call that failed may have been carried out all the
// same: the reply was lost, or the connection on which the program ran.
func maybeDone(err error) bool {
	var f *Failure
	if errors.As(err, &f) {
		return f.Maybe
	}
	return errors.Is(err, hpcexec.ErrUnknownEnd)
}

// canRetry says whether the same call may work later.
func canRetry(err error) bool {
	var f *Failure
	if errors.As(err, &f) {
		return f.Retry
	}
	return errors.Is(err, hpcexec.ErrUnavailable) || errors.Is(err, hpcexec.ErrUnknownEnd)
}
