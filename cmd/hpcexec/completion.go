package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/hpcexec/hpcexec/internal/session"
)

// completeWord is the hidden command that the scripts ask for candidates.
const completeWord = "__complete"

// completionScripts ask hpcexec itself what could follow, so that they never
// go out of date and offer names of sessions and snapshots. Where it has
// nothing to offer, files are.
var completionScripts = map[string]string{
	"bash": `# bash completion for hpcexec: source <(hpcexec completion bash)
_hpcexec() {
    local IFS=$'\n'
    COMPREPLY=($(hpcexec __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _hpcexec hpcexec
`,
	"zsh": `#compdef hpcexec
# zsh completion for hpcexec: source <(hpcexec completion zsh)
_hpcexec() {
    local -a candidates
    candidates=(${(f)"$(hpcexec __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#candidates )); then compadd -a candidates; else _files; fi
}
compdef _hpcexec hpcexec
`,
	"fish": `# fish completion for hpcexec: hpcexec completion fish | source
function __hpcexec_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    hpcexec __complete $words[2..-1] "$current" 2>/dev/null
end
complete -c hpcexec -a '(__hpcexec_complete)'
`,
}

func (in *invocation) completionCommand() *cli.Command {
	return &cli.Command{
		Name:        "completion",
		Usage:       "print a completion script for a shell",
		UsageText:   "hpcexec completion bash|zsh|fish",
		Description: "EXAMPLES:\n   source <(hpcexec completion bash)\n   hpcexec completion fish | source",
		Action: func(*cli.Context) error {
			names, err := in.args(1, 1, "one shell: bash, zsh or fish")
			if err != nil {
				return err
			}
			script, ok := completionScripts[names[0]]
			if !ok {
				return usageError("no completion for %q", names[0]).WithHint("there is one for bash, zsh and fish")
			}
			_, err = io.WriteString(in.out, script)
			return err
		},
	}
}

// complete prints what the last of words could become, one candidate a line.
// Whatever goes wrong, it prints nothing.
func (in *invocation) complete(app *cli.App, words []string) {
	if len(words) == 0 || slices.Contains(words[:len(words)-1], "--") {
		return
	}
	before, word := words[:len(words)-1], words[len(words)-1]
	p := lineParser{app: app, commands: app.Commands}
	for i := 0; i < len(before); i++ {
		if len(before[i]) > 1 && before[i][0] == '-' {
			if i == len(before)-1 && p.wantsValue(before[i]) {
				offer(in.out, word, in.values(p.flagName(before[i])))
				return
			}
			used, _ := p.flag(before[i], before[i+1:])
			i += used
			continue
		}
		p.name(before[i])
	}
	switch {
	case strings.HasPrefix(word, "-"):
		flags := app.Flags
		if p.cmd != nil {
			flags = slices.Concat(p.cmd.Flags, flags)
		}
		list := []string{"--help"}
		for _, f := range flags {
			list = append(list, "--"+f.Names()[0])
		}
		offer(in.out, word, list)
	case len(p.commands) > 0:
		offer(in.out, word, commandNames(p.commands))
	default:
		offer(in.out, word, in.values(p.argument()))
	}
}

// wantsValue says whether a word is a flag whose value is the next word.
func (p *lineParser) wantsValue(word string) bool {
	f, _ := p.find(p.flagName(word))
	return f != nil && takesValue(f) && !strings.Contains(word, "=")
}

// flagName is the full name of the flag that a word is.
func (p *lineParser) flagName(word string) string {
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	if f, _ := p.find(name); f != nil {
		return f.Names()[0]
	}
	return name
}

// argument is what the next name of a command is, in the words of values.
func (p *lineParser) argument() string {
	switch p.path {
	case "shell", "session start", "session show", "session set", "session stop", "session rm", "snapshot create", "ssh config", "ssh proxy":
		return "session"
	case "snapshot restore":
		if len(p.names) == 0 {
			return "session"
		}
		return "snapshot"
	case "snapshot show", "snapshot fork", "snapshot rm", "snapshot verify":
		return "snapshot"
	case "forward":
		if len(p.names) == 0 {
			return "session"
		}
	case "completion":
		return "shell"
	case "cp", "sync":
		return "files"
	}
	return ""
}

// values are the values that a flag or argument of a kind may have.
func (in *invocation) values(kind string) []string {
	switch kind {
	case "on":
		return []string{"local", "slurm", "ssh:"}
	case "net":
		return []string{"none"}
	case "overlay":
		return []string{"dir"}
	case "shell":
		return []string{"bash", "zsh", "fish"}
	case "files":
		// Of what is on this machine, the shell knows more.
		names := in.values("session")
		for i := range names {
			names[i] += ":"
		}
		return names
	case "session", "snapshot":
		m, err := in.manager()
		if err != nil {
			return nil
		}
		if kind == "session" {
			names, _ := m.Dirs.Names()
			return slices.DeleteFunc(names, isEphemeral(m.Dirs))
		}
		return snapshotIDs(m)
	}
	return nil
}

// isEphemeral says of a session that nobody gave it its name.
func isEphemeral(d session.Dirs) func(name string) bool {
	return func(name string) bool {
		rec, err := d.Load(name)
		return err != nil || rec.Ephemeral
	}
}

func offer(w io.Writer, prefix string, list []string) {
	for _, s := range list {
		if strings.HasPrefix(s, prefix) {
			fmt.Fprintln(w, s)
		}
	}
}
