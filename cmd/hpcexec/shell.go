package main

import (
	"github.com/urfave/cli/v2"
	"golang.org/x/term"
)

func (in *invocation) shellCommand() *cli.Command {
	return &cli.Command{
		Name:      "shell",
		Usage:     "open a terminal in a session",
		UsageText: "hpcexec shell [NAME] [flags]",
		Description: `Runs bash, or sh where there is none, as a login shell on a terminal in the
session NAME, which is made and started where need be. Without NAME the place
is gone after. It ends with the shell's exit status.

EXAMPLES:
   hpcexec shell train
   hpcexec shell --on slurm --gpus 1 --image base.sif`,
		Flags: append([]cli.Flag{
			&cli.StringSliceFlag{Category: "Command", Name: "env", Aliases: []string{"e"}, Usage: "set `K=V`, or K to its value here; may be repeated"},
			&cli.StringSliceFlag{Category: "Command", Name: "secret", Usage: "set `NAME`, as for exec"},
			&cli.StringFlag{Category: "Command", Name: "dir", Aliases: []string{"C"}, Usage: "start in `DIR`"},
			&cli.StringFlag{Category: "Command", Name: "wait", Usage: "wait at most `D` for a start, and exit with 75"},
		}, sessionFlags()...),
		Action: in.shell,
	}
}

func (in *invocation) shell(c *cli.Context) error {
	names, err := in.args(0, 1, "one name at most")
	if err != nil {
		return err
	}
	if in.json {
		return usageError("a shell has no JSON output").WithHint("`hpcexec exec --json -- CMD…` has")
	}
	if !term.IsTerminal(int(in.in.Fd())) {
		return usageError("stdin is not a terminal").WithHint("`hpcexec exec -i [-s NAME] -- sh` runs what comes by a pipe")
	}
	r := execRun{in: in, tty: true, stdin: true}
	var name string
	if len(names) == 1 {
		if name = names[0]; name == "" {
			return usageError("the session's name is empty")
		}
	}
	if r.want, err = in.want(c, name); err != nil {
		return err
	}
	if r.req, err = in.request(c); err != nil {
		return err
	}
	r.req.Args = loginShell()
	return r.run(c.Context)
}

// loginShell is the argv of the best shell that a place has.
func loginShell() []string {
	return []string{"sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l"}
}
