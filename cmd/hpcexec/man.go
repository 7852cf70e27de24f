package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
)

func (in *invocation) manCommand() *cli.Command {
	return &cli.Command{
		Name:        "man",
		Usage:       "print the manual page",
		UsageText:   "hpcexec man",
		Description: "EXAMPLES:\n   hpcexec man | man -l -\n   hpcexec man > ~/.local/share/man/man1/hpcexec.1",
		Action: func(c *cli.Context) error {
			if _, err := in.args(0, 0, "no name"); err != nil {
				return err
			}
			_, err := io.WriteString(in.out, manPage(c.App))
			return err
		},
	}
}

// manPage is the manual page in man(7) macros. urfave/cli's own goes through a
// Markdown parser, whose start alone took every command half a millisecond.
func manPage(app *cli.App) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`.TH HPCEXEC 1 "" "hpcexec %s" "User Commands"`, roff(version))
	line(".SH NAME\nhpcexec \\- %s", roff(app.Usage))
	line(".SH SYNOPSIS\n.nf\n%s\n.fi", roff(app.UsageText))
	line(".SH GLOBAL OPTIONS")
	manFlags(&b, app.Flags)
	line(".SH COMMANDS")
	manCommands(&b, app.Name, app.Commands)
	line(".SH EXIT STATUS")
	for _, row := range exitTable {
		line(".TP\n.B %s\n%s", roff(row.code), roff(row.meaning))
	}
	line(".SH FILES\n.TP\n.B ~/.config/hpcexec/config.toml\ndefaults of new sessions" +
		"\n.TP\n.B /etc/hpcexec/policy.toml\nlimits of the site" +
		"\n.TP\n.B $HPCEXEC_HOME, ~/.local/state/hpcexec\nsessions and logs" +
		"\n.TP\n.B $HPCEXEC_SCRATCH\nwritable layers and snapshots")
	return b.String()
}

func manCommands(b *strings.Builder, path string, commands []*cli.Command) {
	for _, c := range commands {
		name := path + " " + c.Name
		if len(c.Subcommands) > 0 {
			manCommands(b, name, c.Subcommands)
			continue
		}
		fmt.Fprintf(b, ".SS %s\n%s.\n.PP\n.nf\n%s\n.fi\n.PP\n.nf\n%s\n.fi\n",
			roff(name), roff(strings.ToUpper(c.Usage[:1])+c.Usage[1:]), roff(c.UsageText), roff(c.Description))
		manFlags(b, c.Flags)
	}
}

func manFlags(b *strings.Builder, flags []cli.Flag) {
	for _, f := range flags {
		d, ok := f.(cli.DocGenerationFlag)
		if !ok {
			continue
		}
		// As in --help, the value's name stands between backquotes.
		var value string
		if parts := strings.Split(d.GetUsage(), "`"); len(parts) == 3 && d.TakesValue() {
			value = " " + parts[1]
		}
		var names []string
		for _, n := range f.Names() {
			if n = "--" + n; len(n) == 3 {
				n = n[1:]
			}
			names = append(names, n+value)
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(strings.Join(names, ", ")), roff(strings.ReplaceAll(d.GetUsage(), "`", "")))
	}
}

// roff escapes text: backslashes, hyphens that must stay what they are, and
// lines that would be requests.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
