package slurm

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// releases are those whose real outputs are in testdata.
var releases = []string{"20.11.4", "22.05.8", "24.11.5", "26.05.5"}

// fixture is one of them. A test names its file, so it fails where it is gone.
func fixture(t testing.TB, release, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", release, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// eachRelease runs a test for each release.
func eachRelease(t *testing.T, fn func(t *testing.T, release string)) {
	for _, r := range releases {
		t.Run(r, func(t *testing.T) { fn(t, r) })
	}
}

// A transcript is one command of a fixture with what it printed.
type transcript struct {
	title, command, stdout, stderr string
	exit                           int
}

// transcripts reads a fixture of the form "### title, $ command, --- stdout,
// --- stderr, --- exit N (seconds)".
func transcripts(t testing.TB, release, name string) []transcript {
	t.Helper()
	var all []transcript
	for _, part := range strings.Split("\n"+fixture(t, release, name), "\n### ")[1:] {
		var tr transcript
		tr.exit = -1
		tr.title, part, _ = strings.Cut(part, "\n")
		into := &tr.command
		for line := range strings.Lines(part) {
			switch {
			case strings.HasPrefix(line, "--- stdout"):
				into = &tr.stdout
			case strings.HasPrefix(line, "--- stderr"):
				into = &tr.stderr
			case strings.HasPrefix(line, "--- exit "):
				word, _, _ := strings.Cut(strings.TrimPrefix(line, "--- exit "), " ")
				tr.exit, _ = strconv.Atoi(word)
				into = new(string)
			default:
				*into += line
			}
		}
		tr.command = strings.TrimPrefix(strings.TrimSpace(tr.command), "$ ")
		all = append(all, tr)
	}
	if len(all) == 0 {
		t.Fatalf("%s/%s has no transcripts", release, name)
	}
	return all
}

func titled(t testing.TB, release, name, title string) transcript {
	t.Helper()
	for _, tr := range transcripts(t, release, name) {
		if tr.title == title {
			return tr
		}
	}
	t.Fatalf("%s/%s has no transcript %q", release, name, title)
	panic("unreachable")
}
