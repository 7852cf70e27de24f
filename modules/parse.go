package modules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hpcexec/hpcexec"
)

// loadAnswer is the answer of loadScript.
type loadAnswer struct {
	before, after []string // environments
	rc            int      // exit code of module load
}

// parseLoad finds the two environments between the marks. Whatever a profile
// printed on the same descriptor comes before the first mark.
func parseLoad(out, mark string) (loadAnswer, error) {
	_, rest, ok := strings.Cut(out, mark+" before\n")
	if !ok {
		return loadAnswer{}, errors.New("no first environment")
	}
	before, rest, ok := strings.Cut(rest, mark+" after ")
	if !ok {
		return loadAnswer{}, errors.New("module load didn't return")
	}
	code, rest, ok := strings.Cut(rest, "\n")
	rc, err := strconv.Atoi(code)
	if !ok || err != nil {
		return loadAnswer{}, fmt.Errorf("exit code %q", clip(code, 20))
	}
	after, _, ok := strings.Cut(rest, mark+" end\n")
	if !ok {
		return loadAnswer{}, errors.New("no second environment")
	}
	return loadAnswer{parseEnv(before), parseEnv(after), rc}, nil
}

// parseEnv parses the output of env -0. Entries that no Request could carry
// are left out: exported functions (BASH_FUNC_module%%) above all.
func parseEnv(s string) []string {
	var out []string
	for e := range strings.SplitSeq(s, "\x00") {
		if name, _, ok := strings.Cut(e, "="); ok && hpcexec.ValidEnvName(name) {
			out = append(out, e)
		}
	}
	return hpcexec.MergeEnv(out)
}

// shellOwn are variables that a shell changes by itself.
var shellOwn = []string{"_", "SHLVL", "PWD", "OLDPWD", "LINES", "COLUMNS"}

// diff tells what changed from one environment to another.
func diff(before, after []string) Delta {
	was := map[string]string{}
	for _, e := range before {
		name, value, _ := strings.Cut(e, "=")
		was[name] = value
	}
	var d Delta
	for _, e := range after {
		name, value, _ := strings.Cut(e, "=")
		old, had := was[name]
		delete(was, name)
		if name == "LOADEDMODULES" {
			d.Loaded = strings.FieldsFunc(value, func(r rune) bool { return r == ':' })
		}
		if (!had || old != value) && !slices.Contains(shellOwn, name) {
			d.Set = append(d.Set, e)
		}
	}
	for name := range was {
		if !slices.Contains(shellOwn, name) {
			d.Unset = append(d.Unset, name)
		}
	}
	slices.Sort(d.Unset)
	return d
}

// isLoaded says whether a module is among the loaded, by its whole name or
// without the version.
func isLoaded(loaded []string, name string) bool {
	name = strings.TrimSuffix(name, "/")
	return slices.ContainsFunc(loaded, func(l string) bool { return l == name || strings.HasPrefix(l, name+"/") })
}

// parseAvail parses `module -t avail`: a directory with ':' at its end, then
// one module a line. Marks after a name, "(default)", "(D)" and " <L>", are cut
// off; names of directories of versions, which end in '/', are left out.
func parseAvail(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasSuffix(line, ":") || strings.HasSuffix(line, "/") || strings.HasPrefix(line, "-") {
			continue
		}
		if i := strings.IndexAny(line, "( <"); i >= 0 {
			line = line[:i]
		}
		name := strings.TrimSuffix(line, "@")
		if checkNames([]string{name}) == nil && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// closeNames are the n names most like one that is wrong: those that have it
// in them, then those that are a slip of the fingers away.
func closeNames(wrong string, names []string, n int) []string {
	type scored struct {
		name  string
		score int
	}
	wrong = strings.ToLower(wrong)
	stem, _, _ := strings.Cut(wrong, "/")
	var found []scored
	for _, name := range names {
		low := strings.ToLower(name)
		base, _, _ := strings.Cut(low, "/")
		score := 100
		switch {
		case base == stem:
			score = 0
		case strings.Contains(low, wrong) || len(stem) > 2 && strings.Contains(base, stem):
			score = 1
		default:
			if d := distance(stem, base); d <= 1+len(stem)/5 {
				score = 1 + d
			}
		}
		if score < 100 {
			found = append(found, scored{name, score})
		}
	}
	slices.SortStableFunc(found, func(a, b scored) int { return cmp.Compare(a.score, b.score) })
	var out []string
	for _, f := range found[:min(n, len(found))] {
		out = append(out, f.name)
	}
	return out
}

// distance counts the insertions, deletions and replacements between two
// words. Words longer than 64 bytes are never close.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost = 1 + min(diag, row[j], row[j+1])
			}
			diag, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
