package slurm

import (
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/shell"
)

// The tag of our jobs: the comment is tagPrefix and the token. Only jobs with
// it are ever changed.
const (
	tagPrefix  = "hpcexec:v1:"
	namePrefix = "hpcexec-"
)

// A JobSpec says what job to submit.
type JobSpec struct {
	// Name follows "hpcexec-" in the job's name: letters, digits and ._-
	Name string

	// Token makes Submit idempotent: a job that carries it is found again
	// instead of made twice. 8 to 64 letters, digits, _ and -; empty: one is
	// made, and nothing can be found again.
	Token string

	// Fresh: the token was made for this very call and used nowhere before,
	// so it isn't looked for before the first sbatch.
	Fresh bool

	// Script is the batch script, with its "#!" line. Argv is a command to
	// run in its place. One of the two is needed.
	Script string
	Argv   []string

	Partition string
	GPUs      GPURequest // on each node
	CPUs      int        // on each node; 0: as many as the site gives
	Mem       string     // on each node, "8G"; empty: as much as the site gives
	Nodes     int        // 0: 1

	// Time is the limit. 0: the partition's own default; Preflight sets an
	// hour, or the partition's limit where that is less.
	Time time.Duration

	Account, QOS, Constraint, Reservation string

	// Warn has SIGTERM sent to the batch script alone that long before the
	// time limit; Slurm may send it up to a minute earlier still.
	Warn time.Duration

	// Output is the file of the script's stdout and stderr, absolute and on
	// a file system that the nodes share; empty: /dev/null. Slurm replaces
	// %j in it with the job's number.
	Output string

	// Dir is the job's working directory, "/" by default. Where it is
	// missing on the node the job fails.
	Dir string

	// Extra are further options of sbatch, as they are.
	Extra []string
}

// forbidden options of sbatch in Extra: hpcexec gives them itself, or its jobs
// would be no jobs that it could find and hold.
var forbidden = []string{"--comment", "--job-name", "-J", "--parsable", "--wrap", "--export", "--export-file", "--get-user-env", "--requeue",
	"--no-requeue", "--clusters", "--cluster", "-M", "--wait", "-W", "--test-only", "--array", "-a", "--output", "-o", "--error", "-e",
	"--chdir", "-D", "--signal", "--help", "-h", "--usage", "--version", "-V", "--uid", "--gid", "--quiet", "-Q"}

// Check says whether the spec is well formed; it asks nobody.
func (s JobSpec) Check() error {
	invalid := func(format string, args ...any) error {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "job: "+format, args...)
	}
	if s.Token != "" && (len(s.Token) < 8 || len(s.Token) > 64 || !plainWord(s.Token)) {
		return invalid("token %q is not 8 to 64 letters, digits, _ or -", s.Token)
	}
	if strings.Trim(s.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" || len(s.Name) > 128 {
		return invalid("name %q has other characters than letters, digits and ._-", s.Name)
	}
	switch {
	case s.Script == "" && len(s.Argv) == 0, s.Script != "" && len(s.Argv) > 0:
		return invalid("it needs a script or a command, and not both")
	case s.Script != "" && !strings.HasPrefix(s.Script, "#!"):
		return invalid("the script doesn't begin with #! and an interpreter")
	case strings.Contains(s.Script, "\r\n"):
		return invalid("the script has DOS line ends")
	case strings.Contains(s.Script, "\x00") || strings.Contains(strings.Join(s.Argv, ""), "\x00"):
		return invalid("the script has a NUL byte")
	case s.CPUs < 0 || s.Nodes < 0 || s.GPUs.Count < 0 || s.Time < 0 || s.Warn < 0:
		return invalid("a number is negative")
	}
	if s.Mem != "" {
		if _, err := memoryMB(s.Mem); err != nil {
			return err
		}
	}
	if s.GPUs.Type != "" && !gpuType(s.GPUs.Type) {
		return invalid("GPU type %q has a space, comma, colon, quote or bracket", s.GPUs.Type)
	}
	for what, v := range map[string]string{"partition": s.Partition, "account": s.Account, "qos": s.QOS, "constraint": s.Constraint, "reservation": s.Reservation} {
		for _, c := range v {
			if c <= ' ' || c == 0x7f {
				return invalid("%s %q has a space or control character", what, v)
			}
		}
	}
	if s.Output != "" && !path.IsAbs(s.Output) {
		return invalid("output %q is not an absolute path", s.Output)
	}
	if s.Dir != "" && !path.IsAbs(s.Dir) {
		return invalid("directory %q is not an absolute path", s.Dir)
	}
	for _, o := range s.Extra {
		if err := checkExtra(o); err != nil {
			return err
		}
	}
	return nil
}

func checkExtra(o string) error {
	name, _, _ := strings.Cut(o, "=")
	if len(o) < 2 || o[0] != '-' || strings.ContainsAny(o, "\x00\n") {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "option for sbatch %q doesn't begin with -", o).
			WithHint("write options with their value in one word: --slurm-opt=--nice=100")
	}
	for _, f := range forbidden {
		short := len(f) == 2 && strings.HasPrefix(o, f) && !strings.HasPrefix(o, "--")
		if name == f || short {
			return hpcexec.Errorf(hpcexec.ErrInvalid, "option %s of sbatch can't be given: hpcexec sets it itself", f)
		}
	}
	return nil
}

// memoryMB reads an amount of memory as sbatch's --mem takes it: a number of
// MiB, or with K, M, G or T.
func memoryMB(s string) (int, error) {
	unit := strings.TrimLeft(s, "0123456789")
	n, ok := parseCount(s)
	switch {
	case !ok:
	case unit == "":
		if n < 1<<40 {
			return int(n), nil
		}
	case strings.Contains("kKmMgGtT", unit):
		return int((n + 1<<20 - 1) >> 20), nil
	}
	return 0, hpcexec.Errorf(hpcexec.ErrInvalid, "memory %q is not like 500M or 8G", s)
}

// Tag is the comment of the job.
func (s JobSpec) Tag() string { return tagPrefix + s.Token }

// JobName is the job's name, as squeue shows it. It has a piece of the token,
// by which the accounting can be asked: that keeps no comments at most sites.
func (s JobSpec) JobName() string {
	name := namePrefix
	if s.Name != "" {
		name += s.Name + "-"
	}
	return name + s.Token[:8]
}

// args are the options of sbatch. Ours come after Extra, so that they hold.
func (s JobSpec) args() []string {
	args := append([]string(nil), s.Extra...)
	add := func(option, value string) {
		if value != "" {
			args = append(args, "--"+option+"="+value)
		}
	}
	number := func(option string, n int) {
		if n > 0 {
			add(option, strconv.Itoa(n))
		}
	}
	add("partition", s.Partition)
	add("account", s.Account)
	add("qos", s.QOS)
	add("constraint", s.Constraint)
	add("reservation", s.Reservation)
	add("nodes", strconv.Itoa(max(1, s.Nodes)))
	// One task a node: without it a job of N nodes may get them unevenly.
	args = append(args, "--ntasks-per-node=1")
	number("cpus-per-task", s.CPUs)
	add("mem", s.Mem)
	if s.GPUs.Count > 0 {
		add("gres", s.GPUs.gres())
	}
	if s.Time > 0 {
		add("time", strconv.FormatInt(int64((s.Time+time.Minute-1)/time.Minute), 10))
	}
	if s.Warn > 0 {
		add("signal", "B:TERM@"+strconv.FormatInt(int64((s.Warn+time.Second-1)/time.Second), 10))
	}
	output, dir := s.Output, s.Dir
	if output == "" {
		output = "/dev/null"
	}
	if dir == "" {
		dir = "/"
	}
	add("output", output)
	add("chdir", dir)
	add("job-name", s.JobName())
	add("comment", s.Tag())
	// A batch job is put back in the queue by default when its node fails,
	// and would start afresh under the same number, with nothing of before.
	return append(args, "--no-requeue", "--parsable")
}

func (s JobSpec) script() string {
	if s.Script != "" {
		return s.Script
	}
	return "#!/bin/sh\nexec " + shell.Join(s.Argv) + "\n"
}
