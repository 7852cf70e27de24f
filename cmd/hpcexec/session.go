package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/hpcexec/hpcexec/internal/session"
)

func (in *invocation) sessionCommand() *cli.Command {
	return &cli.Command{
		Name:  "session",
		Usage: "named environments that outlive their allocation",
		Description: `A session is a place, an image, a writable layer and an allocation under one
name. Its files stay when the job ends, the node restarts or the connection
is lost; the next exec in it starts it again.`,
		Subcommands: []*cli.Command{
			{
				Name: "start", Usage: "make a session where need be, and start it",
				UsageText: "hpcexec session start NAME [flags]",
				Description: `Returns when a command can run in it. Starting a session that runs is no
error; an option that differs from the session's is.

EXAMPLES:
   hpcexec session start train --on slurm --gpus a100:1 --image base.sif --time 4h
   hpcexec session start dev --image base.sif --bind ~/proj:/proj`,
				Flags: append([]cli.Flag{
					&cli.StringFlag{Category: "Command", Name: "wait", Usage: "wait at most `D` for the start, and exit with 75"},
				}, sessionFlags()...),
				Action: in.sessionStart,
			},
			{
				Name: "ls", Usage: "list the sessions", UsageText: "hpcexec session ls",
				Description: "EXAMPLES:\n   hpcexec session ls\n   hpcexec session ls --json | jq -r '.sessions[].name'",
				Action:      in.sessionLs,
			},
			{
				Name: "show", Usage: "say what is known of a session", UsageText: "hpcexec session show NAME",
				Description: "It starts nothing.\n\nEXAMPLES:\n   hpcexec session show train\n   ssh -S $(hpcexec session show train --json | jq -r .control_path) x hostname",
				Action:      in.sessionShow,
			},
			{
				Name: "set", Usage: "change options of a session that is stopped", UsageText: "hpcexec session set NAME [flags]",
				Description: "EXAMPLES:\n   hpcexec session set train --gpus h100:2 --time 8h",
				Flags:       sessionFlags(),
				Action:      in.sessionSet,
			},
			{
				Name: "stop", Usage: "end sessions and keep their files", UsageText: "hpcexec session stop NAME…",
				Description: "Ends the commands, the instance and the allocation, and returns when they are\ngone. The writable layer stays.\n\nEXAMPLES:\n   hpcexec session stop train",
				Action:      in.sessionStop,
			},
			{
				Name: "rm", Usage: "remove sessions with their files", UsageText: "hpcexec session rm NAME… [--yes]",
				Description: "Snapshots of the session stay. It asks, unless --yes is given.\n\nEXAMPLES:\n   hpcexec session rm train\n   hpcexec session rm --yes old1 old2",
				Flags:       []cli.Flag{&cli.BoolFlag{DisableDefaultText: true, Name: "yes", Aliases: []string{"y"}, Usage: "don't ask"}},
				Action:      in.sessionRm,
			},
		},
	}
}

func (in *invocation) sessionStart(c *cli.Context) error {
	names, err := in.args(1, 1, "one name")
	if err != nil {
		return err
	}
	if err := session.CheckName(names[0]); err != nil {
		return err
	}
	w, err := in.want(c, names[0])
	if err != nil {
		return err
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	if w.Options, err = in.options(m, w.Name, w.Options); err != nil {
		return err
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		info, err := m.Ensure(ctx, w)
		if err != nil {
			return err
		}
		return in.printInfo(info)
	})
}

func (in *invocation) sessionLs(c *cli.Context) error {
	if _, err := in.args(0, 0, "no name"); err != nil {
		return err
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		list, err := m.List(ctx)
		if err != nil {
			return err
		}
		if in.json {
			return printJSON(in.out, map[string]any{"sessions": notNil(list)})
		}
		t := newTable("NAME", "STATE", "PLACE", "NODE", "JOB", "IMAGE")
		for _, i := range list {
			t.row(i.Name, i.State, i.Place, i.Node, i.JobID, i.Image)
		}
		return t.print(in.out)
	})
}

func (in *invocation) sessionShow(c *cli.Context) error {
	return in.onSession(c, func(ctx context.Context, m *session.Manager, name string) (session.Info, error) {
		return m.Show(ctx, name)
	})
}

func (in *invocation) sessionSet(c *cli.Context) error {
	o, err := sessionOptions(c)
	if err != nil {
		return err
	}
	if c.NumFlags() == 0 {
		return usageError("no option to change").WithHint("`hpcexec session set --help` lists them")
	}
	return in.onSession(c, func(ctx context.Context, m *session.Manager, name string) (session.Info, error) {
		if err := in.checkPolicy(m, name, o); err != nil {
			return session.Info{}, err
		}
		return m.Set(ctx, name, o)
	})
}

// onSession does one thing with the one session that is named.
func (in *invocation) onSession(c *cli.Context, do func(context.Context, *session.Manager, string) (session.Info, error)) error {
	names, err := in.args(1, 1, "one name")
	if err != nil {
		return err
	}
	if err := session.CheckName(names[0]); err != nil {
		return err
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		info, err := do(ctx, m, names[0])
		if err != nil {
			return err
		}
		return in.printInfo(info)
	})
}

func (in *invocation) sessionStop(c *cli.Context) error {
	return in.eachSession(c, func(ctx context.Context, m *session.Manager, name string) (any, error) {
		info, err := m.Stop(ctx, name)
		return info, err
	})
}

func (in *invocation) sessionRm(c *cli.Context) error {
	if len(in.names) > 0 && !c.Bool("yes") {
		if err := in.confirm("remove " + strings.Join(in.names, ", ") + " with all files in it?"); err != nil {
			return err
		}
	}
	return in.eachSession(c, func(ctx context.Context, m *session.Manager, name string) (any, error) {
		return map[string]any{"name": name, "removed": true}, m.Remove(ctx, name)
	})
}

// eachSession does one thing with every session that is named.
func (in *invocation) eachSession(c *cli.Context, do func(context.Context, *session.Manager, string) (any, error)) error {
	names, err := in.args(1, 1000, "names")
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := session.CheckName(name); err != nil {
			return err
		}
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		return in.each(names, func(name string) (any, error) { return do(ctx, m, name) })
	})
}

// each does one thing for every name. It goes on after a failure, says each,
// and returns the last.
func (in *invocation) each(names []string, do func(name string) (any, error)) error {
	var failed error
	for _, name := range names {
		result, err := do(name)
		switch {
		case err != nil && failed != nil:
			in.printFailure(failed)
			fallthrough
		case err != nil:
			failed = err
		case in.json:
			printJSON(in.out, result)
		}
	}
	return failed
}

func (in *invocation) printInfo(i session.Info) error {
	in.progress.clear()
	if in.json {
		return printJSON(in.out, i)
	}
	lines := [][2]string{
		{"name", i.Name}, {"state", i.State}, {"reason", i.Reason}, {"place", i.Place}, {"node", i.Node},
		{"job", i.JobID}, {"image", i.Image}, {"control path", i.Control},
	}
	if i.Overlay != nil {
		lines = append(lines, [2]string{"overlay", i.Overlay.Kind + " " + i.Overlay.Path})
	}
	if !i.Started.IsZero() {
		lines = append(lines, [2]string{"started", i.Started.Local().Format(time.DateTime)})
	}
	for _, l := range lines {
		if l[1] != "" {
			fmt.Fprintf(in.out, "%-13s %s\n", l[0], safeText([]byte(l[1])))
		}
	}
	return nil
}

// confirm asks a person. Without a terminal there is nobody to ask.
func (in *invocation) confirm(question string) error {
	if !term.IsTerminal(int(in.in.Fd())) || !term.IsTerminal(int(in.err.Fd())) {
		return usageError("there is no terminal to ask on: %s", question).WithHint("add --yes")
	}
	fmt.Fprintf(in.err, "hpcexec: %s [y/N] ", question)
	answer, _ := bufio.NewReader(in.in).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return usageError("nothing was done")
}

// interruptible runs do with a context that a signal ends.
func (in *invocation) interruptible(parent context.Context, do func(context.Context) error) error {
	ctx, relay := startRelay(parent, nil)
	defer relay.stop()
	return do(ctx)
}

func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
