package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/place"
	"github.com/hpcexec/hpcexec/internal/session"
)

func (in *invocation) doctorCommand() *cli.Command {
	return &cli.Command{
		Name:      "doctor",
		Usage:     "say what works here, what doesn't, why, and whose move it is",
		UsageText: "hpcexec doctor [--on PLACE]",
		Description: `Looks and changes nothing. Exits with 125 if something fails that every use
of hpcexec needs; what only some uses need, such as a container runtime or
Slurm, is told and doesn't count.

--on ssh:HOST looks on that host, through the connection that exec would use.
--on slurm looks at what a job needs, without asking for one.

EXAMPLES:
   hpcexec doctor
   hpcexec doctor --on ssh:gpu1
   hpcexec doctor --json | jq '.checks[] | select(.ok | not)'`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "on", Usage: "look at `PLACE`: local, ssh:HOST or slurm"},
		},
		Action: in.doctor,
	}
}

// A check is one thing that works or doesn't.
type check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Needed bool   `json:"needed"` // every use of hpcexec needs it
	Detail string `json:"detail"`
	Remedy string `json:"remedy"` // what to do; empty where it is ok
	Whose  string `json:"whose"`  // whose move: "user", "admin", or empty
}

// checkup is what doctor --json prints.
type checkup struct {
	OK     bool    `json:"ok"` // nothing that is needed fails
	Place  string  `json:"place"`
	Host   string  `json:"host"`
	Checks []check `json:"checks"`
}

// checkTime bounds each check: one that hangs is a finding, too.
const checkTime = 20 * time.Second

func (in *invocation) doctor(c *cli.Context) error {
	if _, err := in.args(0, 0, "no name"); err != nil {
		return err
	}
	on := c.String("on")
	if on == "" {
		on = "local"
	}
	p, err := place.Parse(on)
	if err != nil {
		return err
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		up := checkup{Place: on}
		switch {
		case len(p.Hops) > 1:
			return usageError("doctor looks at one place at a time, not at %s", on).
				WithHint("`hpcexec doctor --on %s` first, and then there", p.Hops[0])
		case p.Last().Kind == place.SSH:
			up = in.checkHost(ctx, on)
		case p.Last().Kind == place.Slurm:
			up.Host, _ = os.Hostname()
			up.Checks = runChecks(ctx, []checkFunc{checkHomeShared, checkSlurm, checkPartitions, checkAssociation})
		default:
			up.Host, _ = os.Hostname()
			up.Checks = runChecks(ctx, in.localChecks())
		}
		return in.printCheckup(up)
	})
}

func (in *invocation) printCheckup(up checkup) error {
	up.OK = true
	for _, c := range up.Checks {
		up.OK = up.OK && (c.OK || !c.Needed)
	}
	if in.json {
		if err := printJSON(in.out, up); err != nil {
			return err
		}
	} else {
		for _, c := range up.Checks {
			mark := "ok  "
			switch {
			case !c.OK && c.Needed:
				mark = "FAIL"
			case !c.OK:
				mark = "no  "
			}
			fmt.Fprintf(in.out, "%s  %-18s %s\n", mark, c.Name, safeText([]byte(c.Detail)))
			if c.Remedy != "" {
				fmt.Fprintf(in.out, "      %-18s -> %s: %s\n", "", c.Whose, safeText([]byte(c.Remedy)))
			}
		}
	}
	if !up.OK {
		return exitError(exitFailed)
	}
	return nil
}

// checkHost runs doctor on another host, and says whether it got there.
func (in *invocation) checkHost(ctx context.Context, on string) checkup {
	up := checkup{Place: on}
	fail := func(err error) checkup {
		up.Checks = append(up.Checks, check{Name: "connection", Needed: true, Detail: err.Error(),
			Remedy: hintOr(err, "see whether `ssh -v "+strings.TrimPrefix(on, "ssh:")+"` works"), Whose: "user"})
		return up
	}
	m, err := in.manager()
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 2*checkTime, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s doesn't answer within %v", on, 2*checkTime))
	defer cancel()
	var out, errOut bytes.Buffer
	began := time.Now()
	resp, err := m.Exec(ctx, session.Want{Options: session.Options{Place: on}}, hpcexec.Request{
		Args: []string{m.Exe, "doctor", "--json"}, Stdout: &out, Stderr: &errOut, Timeout: 2 * checkTime,
	})
	if err != nil {
		return fail(err)
	}
	up.Checks = append(up.Checks, check{Name: "connection", OK: true, Needed: true, Detail: fmt.Sprintf("connected in %d ms", time.Since(began).Milliseconds())})
	var there checkup
	if err := json.Unmarshal(out.Bytes(), &there); err != nil {
		up.Checks = append(up.Checks, check{Name: "hpcexec", Needed: true, Whose: "user",
			Detail: fmt.Sprintf("%s doesn't run there (exit code %d) %s", m.Exe, resp.ExitCode, firstLine(errOut.String())),
			Remedy: "put hpcexec on a file system that both see, under the same path",
		})
		return up
	}
	up.Host = there.Host
	up.Checks = append(up.Checks, there.Checks...)
	return up
}

type checkFunc func(ctx context.Context) []check

// runChecks makes all checks at the same time and keeps their order.
func runChecks(ctx context.Context, funcs []checkFunc) []check {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	results := make([][]check, len(funcs))
	var wg sync.WaitGroup
	for i, f := range funcs {
		wg.Go(func() { results[i] = f(ctx) })
	}
	wg.Wait()
	var all []check
	for _, r := range results {
		all = append(all, r...)
	}
	return all
}

func hintOr(err error, text string) string {
	if h := hpcexec.Hint(err); h != "" {
		return h
	}
	return text
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// output runs a program of this machine and gives its first line.
func output(ctx context.Context, argv ...string) (string, error) {
	var both bytes.Buffer
	resp, err := (&hpcexec.Local{}).Run(ctx, hpcexec.Request{Args: argv, Stdout: &both, Stderr: &both, Timeout: checkTime})
	if err != nil {
		return "", err
	}
	if resp.ExitCode != 0 {
		return "", fmt.Errorf("%s: exit code %d: %s", argv[0], resp.ExitCode, firstLine(both.String()))
	}
	return firstLine(both.String()), nil
}
