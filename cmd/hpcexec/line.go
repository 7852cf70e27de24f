package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// A line is a command line taken apart. urfave/cli stops at the first
// positional argument, so that flags after a name would be names; it also
// takes `help` among the arguments for its own command. So flags and names are
// told apart here, in one place, and it is given flags alone.
type line struct {
	flags []string // for urfave/cli: program, global flags, command, its flags
	cmd   *cli.Command
	path  string   // names of the command, such as "session start"; empty: none
	names []string // what stands before "--" and is no flag
	dash  bool     // there is a "--"
	rest  []string // what follows it, verbatim
	json  bool     // --json was given, known before anything can fail
	help  bool     // help is asked for

	given []cli.Flag // the flags of the command that occur
}

// slim leaves of the app what the line uses. urfave/cli looks at every flag of
// every command that it is shown, with regular expressions: most of a
// millisecond.
func (l *line) slim(app *cli.App) {
	app.Commands = slices.DeleteFunc(app.Commands, func(c *cli.Command) bool { return c.Name != strings.Fields(l.path)[0] })
	l.cmd.Flags = l.given
}

// parseLine takes apart argv, in which argv[0] is the program. The line is
// filled as far as it got, also with an error.
func parseLine(app *cli.App, argv []string) (line, error) {
	p := lineParser{app: app, commands: app.Commands}
	argv = argv[1:]
	if i := slices.Index(argv, "--"); i >= 0 {
		p.dash, p.rest, argv = true, argv[i+1:], argv[:i]
	}
	p.json = slices.Contains(argv, "--json") // an early error is JSON, too
	err := p.words(argv)
	if err == nil && p.help {
		p.local = append(p.local, "--help")
	}
	p.flags = slices.Concat([]string{app.Name}, p.global, strings.Fields(p.path), p.local)
	if err == nil && !p.help && p.cmd != nil && len(p.commands) > 0 {
		err = usageError("%s needs a command: %s", p.path, orList(commandNames(p.commands))).
			WithHint("`hpcexec %s --help` says what they do", p.path)
	}
	return p.line, err
}

type lineParser struct {
	line
	app           *cli.App
	commands      []*cli.Command // those that the next name may be
	global, local []string
}

func (p *lineParser) words(argv []string) error {
	for i := 0; i < len(argv); i++ {
		word := argv[i]
		if len(word) < 2 || word[0] != '-' {
			if err := p.name(word); err != nil {
				return err
			}
			continue
		}
		used, err := p.flag(word, argv[i+1:])
		if err != nil {
			return err
		}
		i += used
	}
	return nil
}

// name takes a word that is no flag.
func (p *lineParser) name(word string) error {
	if len(p.commands) == 0 {
		p.names = append(p.names, word)
		return nil
	}
	if word == "help" && !p.help {
		p.help = true
		return nil
	}
	for _, c := range p.commands {
		if c.HasName(word) {
			p.cmd, p.commands = c, c.Subcommands
			p.path = strings.TrimSpace(p.path + " " + c.Name)
			return nil
		}
	}
	names := commandNames(p.commands)
	e := usageError("unknown command %q", strings.TrimSpace(p.path+" "+word)).
		WithHint("`%s --help` lists the commands", strings.TrimSpace("hpcexec "+p.path))
	if c := closest(word, names); c != "" {
		e = e.WithHint("did you mean `%s`?", strings.Join(strings.Fields("hpcexec "+p.path+" "+c), " "))
	}
	return e
}

// flag takes a word that starts with '-' and says how many of the words after
// it belong to it.
func (p *lineParser) flag(word string, after []string) (used int, err error) {
	name, value, hasValue := strings.Cut(word, "=")
	if !strings.HasPrefix(name, "--") {
		return p.short(word[1:], after)
	}
	name = name[2:]
	if name == "help" {
		p.help = true
		return 0, nil
	}
	if name == "version" && p.cmd == nil {
		return 0, p.name(name)
	}
	f, global := p.find(name)
	if f == nil || len(name) < 2 {
		return 0, p.unknown(word)
	}
	if takesValue(f) && !hasValue {
		if len(after) == 0 {
			return 0, usageError("flag %s needs a value", word)
		}
		value, hasValue, used = after[0], true, 1
	}
	p.add(f, global, value, hasValue)
	return used, nil
}

// short takes letters that follow one '-': several switches, of which the
// last may have a value, attached or as the next word.
func (p *lineParser) short(letters string, after []string) (used int, err error) {
	for i, r := range letters {
		if r == 'h' {
			p.help = true
			continue
		}
		f, global := p.find(string(r))
		if f == nil {
			return 0, p.unknown("-" + letters)
		}
		if !takesValue(f) {
			p.add(f, global, "", false)
			continue
		}
		value := strings.TrimPrefix(letters[i+len(string(r)):], "=")
		if value == "" {
			if len(after) == 0 {
				return 0, usageError("flag -%c needs a value", r)
			}
			value, used = after[0], 1
		}
		p.add(f, global, value, true)
		return used, nil
	}
	return 0, nil
}

func (p *lineParser) add(f cli.Flag, global bool, value string, hasValue bool) {
	word := "--" + f.Names()[0]
	if hasValue {
		word += "=" + value
	}
	if global {
		p.global = append(p.global, word)
	} else {
		p.local = append(p.local, word)
		if !slices.Contains(p.given, f) {
			p.given = append(p.given, f)
		}
	}
}

// find looks a flag up in the command and among the global ones.
func (p *lineParser) find(name string) (f cli.Flag, global bool) {
	if p.cmd != nil {
		if f := findFlag(p.cmd.Flags, name); f != nil {
			return f, false
		}
	}
	return findFlag(p.app.Flags, name), true
}

func (p *lineParser) unknown(word string) error {
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	where := strings.TrimSpace("hpcexec " + p.path)
	e := usageError("unknown flag %s for `%s`", strings.SplitN(word, "=", 2)[0], where).
		WithHint("`%s --help` lists the flags", where)
	var names []string
	flags := p.app.Flags
	if p.cmd != nil {
		flags = slices.Concat(p.cmd.Flags, flags)
	}
	for _, f := range flags {
		for _, n := range f.Names() {
			if len(n) > 1 {
				names = append(names, n)
			}
		}
	}
	if c := closest(name, names); c != "" {
		e = e.WithHint("did you mean --%s?", c)
	} else if p.path == "" {
		e = e.WithHint("flags of a command stand after its name: `hpcexec COMMAND --%s`", name)
	}
	return e
}

func findFlag(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

func commandNames(commands []*cli.Command) []string {
	var names []string
	for _, c := range commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return names
}
