package main

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/session"
)

// stdio is what a command line is connected to. The streams are files, so that
// their descriptors can be passed to the process that a command belongs to.
type stdio struct {
	in, out, err *os.File
}

// An invocation is one run of a command line.
type invocation struct {
	stdio
	line

	json, quiet, verbose bool
	config               string // --config, or empty

	progress *progress
}

// runCLI runs one command line and returns the exit code of the process.
func runCLI(argv []string, io stdio) int {
	in := &invocation{stdio: io}
	app := in.newApp()
	if len(argv) > 1 && argv[1] == completeWord {
		in.complete(app, argv[2:])
		return 0
	}
	l, err := parseLine(app, argv)
	in.line, in.json = l, l.json
	if err == nil {
		if l.cmd != nil && !l.help && !needsTree(l.cmd) {
			l.slim(app)
		}
		err = app.RunContext(context.Background(), l.flags)
	}
	if in.progress != nil {
		in.progress.clear()
	}
	var exit exitError
	if err != nil && !errors.As(err, &exit) {
		in.printFailure(err)
	}
	return exitCode(err)
}

// needsTree says whether a command prints what the other commands are.
func needsTree(c *cli.Command) bool { return c.Name == "man" }

// printFailure says an error where the caller looks for it: with --json on
// stdout, else on stderr.
func (in *invocation) printFailure(err error) {
	e := describe(err)
	switch {
	case in.json && in.path == "exec":
		// Scripts read the same fields whether the command ran or not.
		printJSON(in.out, execResult{ExitCode: exitCode(err), Error: e})
	case in.json:
		printJSON(in.out, map[string]*errorJSON{"error": e})
	default:
		printError(in.err, e)
	}
}

// newApp is the command line interface as urfave/cli takes it.
func (in *invocation) newApp() *cli.App {
	app := &cli.App{
		Name:     "hpcexec",
		HelpName: "hpcexec",
		Usage:    "run commands on a cluster: here, on a host, in a Slurm job, bare or in a container",
		UsageText: "hpcexec COMMAND [flags] [names] [-- CMD…]\n\n" +
			"hpcexec exec -s train --on slurm --gpus a100:1 --image base.sif -- python3 train.py",
		Writer:                    in.out,
		ErrWriter:                 in.err,
		HideVersion:               true,
		HideHelpCommand:           true,
		DisableSliceFlagSeparator: true, // else -e A=1,2 were two values
		ExitErrHandler:            func(*cli.Context, error) {},
		CustomAppHelpTemplate:     cli.AppHelpTemplate + exitHelp(),
		Flags: []cli.Flag{
			&cli.BoolFlag{DisableDefaultText: true, Name: "json", Usage: "print one JSON object (docs/json.md) instead of text", Destination: &in.json},
			&cli.BoolFlag{DisableDefaultText: true, Name: "verbose", Aliases: []string{"v"}, Usage: "say more on stderr", Destination: &in.verbose},
			&cli.BoolFlag{DisableDefaultText: true, Name: "quiet", Aliases: []string{"q"}, Usage: "no progress on stderr", Destination: &in.quiet},
			&cli.StringFlag{Name: "config", Usage: "read `FILE` instead of ~/.config/hpcexec/config.toml", Destination: &in.config},
		},
		Commands: []*cli.Command{
			in.execCommand(),
			in.shellCommand(),
			in.sessionCommand(),
			in.cpCommand(),
			in.syncCommand(),
			in.snapshotCommand(),
			in.overlayCommand(),
			in.sshCommand(),
			in.forwardCommand(),
			in.gpusCommand(),
			in.doctorCommand(),
			in.versionCommand(),
			in.completionCommand(),
			in.manCommand(),
		},
	}
	// No flag of urfave/cli's own: --help and -h are told apart in line.go.
	app.OnUsageError = onUsageError
	for _, c := range app.Commands {
		setUp(c)
	}
	return app
}

// setUp gives a command what urfave/cli doesn't inherit.
func setUp(c *cli.Command) {
	c.OnUsageError = onUsageError
	c.HideHelpCommand = true
	c.CustomHelpTemplate = cli.CommandHelpTemplate + globalHelp
	if len(c.Subcommands) > 0 {
		c.CustomHelpTemplate = cli.SubcommandHelpTemplate + globalHelp
	}
	for _, sub := range c.Subcommands {
		setUp(sub)
	}
}

// onUsageError takes the place of urfave/cli's printing help to stdout.
func onUsageError(c *cli.Context, err error, _ bool) error {
	name := strings.TrimSpace("hpcexec " + strings.TrimPrefix(c.Command.FullName(), "hpcexec"))
	text := strings.Replace(err.Error(), "flag -", "flag --", 1)
	return usageError("%s", strings.TrimSuffix(text, ": parse error")).WithHint("`%s --help` lists the flags", name)
}

const globalHelp = `
GLOBAL OPTIONS:
   --json, --verbose (-v), --quiet (-q), --config FILE; see ` + "`hpcexec --help`" + `

EXIT STATUS:
   ` + "`hpcexec --help`" + ` has the table
`

func exitHelp() string {
	var b strings.Builder
	b.WriteString("\nEXIT STATUS:\n")
	for _, row := range exitTable {
		b.WriteString("   " + row.code + strings.Repeat(" ", max(2, 20-len(row.code))) + row.meaning + "\n")
	}
	return b.String()
}

// args checks how many names stand on the command line.
func (in *invocation) args(least, most int, what string) ([]string, error) {
	if in.dash {
		return nil, usageError("`hpcexec %s` takes no `--`", in.path)
	}
	if len(in.names) < least || len(in.names) > most {
		return nil, usageError("`hpcexec %s` takes %s, got %d names", in.path, what, len(in.names)).
			WithHint("`hpcexec %s --help` has examples", in.path)
	}
	return in.names, nil
}

// manager is the client of the sessions of this user.
func (in *invocation) manager() (*session.Manager, error) {
	dirs, err := session.FindDirs(os.Getenv)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "path of hpcexec: %w", err)
	}
	in.progress = newProgress(in.err, in.quiet)
	return &session.Manager{Dirs: dirs, Exe: exe, Progress: in.progress.report}, nil
}
