package archtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRepository(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	problems, err := Check(root)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(problems)
	for _, p := range problems {
		t.Error(p)
	}
}

// The table has no cycle, and nobody may import what isn't in it.
func TestTable(t *testing.T) {
	rows := table()
	state := map[string]int{} // 1 under way, 2 done
	var visit func(dir string, from []string)
	visit = func(dir string, from []string) {
		switch {
		case state[dir] == 2:
			return
		case state[dir] == 1 && leaf(dir): // leaves may name each other
			return
		case state[dir] == 1:
			t.Errorf("a cycle: %s", strings.Join(append(from, dir), " -> "))
			return
		}
		state[dir] = 1
		for _, next := range rows[dir].may {
			if _, ok := rows[next]; !ok {
				t.Errorf("%s may import %s, which has no row", dir, next)
			}
			if next != dir {
				visit(next, append(from, dir))
			}
		}
		state[dir] = 2
	}
	for dir, r := range rows {
		if r.why == "" {
			t.Errorf("%s: the row says no reason", dir)
		}
		visit(dir, nil)
	}
}

func leaf(dir string) bool { return slices.Contains(leaves, dir) }

// Each rule finds what breaks it.
func TestCheckFinds(t *testing.T) {
	tests := []struct {
		name, file, text string
		want             string
	}{
		{"sibling", "apptainer/x.go", "package apptainer\nimport _ \"" + module + "/slurm\"\n", "siblings meet through plain values"},
		{"sibling in a test", "apptainer/x_test.go", "package apptainer\nimport _ \"" + module + "/slurm\"\n", ""},
		{"root imports a part", "x.go", "package hpcexec\nimport _ \"" + module + "/sshmux\"\n", "the contract is everybody's"},
		{"leaf imports a part", "internal/shell/x.go", "package shell\nimport _ \"" + module + "/sshmux\"\n", "a leaf"},
		{"flags elsewhere", "slurm/x.go", "package slurm\nimport _ \"github.com/urfave/cli/v2\"\n", "only the command line knows flags"},
		{"flags in a test", "slurm/x_test.go", "package slurm\nimport _ \"github.com/urfave/cli/v2\"\n", "only the command line knows flags"},
		{"ssh elsewhere", "slurm/x.go", "package slurm\nimport _ \"golang.org/x/crypto/ssh/agent\"\n", "everybody else speaks to an Executor"},
		{"ssh in sshmux", "sshmux/x.go", "package sshmux\nimport _ \"golang.org/x/crypto/ssh/agent\"\n", ""},
		{"ssh in a test", "slurm/x_test.go", "package slurm\nimport _ \"golang.org/x/crypto/ssh\"\n", ""},
		{"process by hand", "internal/shim/x.go", "package shim\nimport _ \"os/exec\"\n", "Local starts the processes here"},
		{"process elsewhere", "slurm/x.go", "package slurm\nimport _ \"os/exec\"\n", ""},
		{"log", "slurm/x.go", "package slurm\nimport _ \"log\"\n", "a library takes a *slog.Logger"},
		{"slog", "slurm/x.go", "package slurm\nimport _ \"log/slog\"\n", ""},
		{"no row", "internal/new/x.go", "// Package new is new.\npackage new\n", "has no row"},
		{"second comment", "slurm/x.go", "// Package slurm again.\npackage slurm\n", "has 2 package comments"},
		{"init", "slurm/x.go", "package slurm\nfunc init() {}\n", "has an init function"},
		{"method init", "slurm/x.go", "package slurm\nfunc (c *c) init() {}\n", ""},
		{"huge", "slurm/x.go", "package slurm\n" + strings.Repeat("//\n", 601), "more than 600"},
		{"conflict", "README.md", "<<<<" + "<<< HEAD\n", "a conflict isn't resolved"},
		{"binary", "x.bin", "\x00<<<<" + "<<< HEAD\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := tree(t)
			write(t, root, tt.file, tt.text)
			problems, err := Check(root)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tt.want == "" && len(problems) > 0:
				t.Errorf("got %q, want none", problems)
			case tt.want != "" && (len(problems) != 1 || !strings.Contains(problems[0], tt.want)):
				t.Errorf("got %q, want one that has %q", problems, tt.want)
			}
		})
	}
	t.Run("missing package", func(t *testing.T) {
		root := tree(t)
		if err := os.RemoveAll(root + "/slurm"); err != nil {
			t.Fatal(err)
		}
		if problems, err := Check(root); err != nil || len(problems) != 1 || !strings.Contains(problems[0], "which isn't there") {
			t.Errorf("got %q, %v, want one about the missing package", problems, err)
		}
	})
	t.Run("path of the machine", func(t *testing.T) {
		root := tree(t)
		write(t, root, "README.md", "see "+root+"/docs\n")
		if problems, err := Check(root); err != nil || len(problems) != 1 || !strings.Contains(problems[0], "may be anywhere") {
			t.Errorf("got %q, %v, want one about the path", problems, err)
		}
	})
}

// tree is a module that keeps every rule.
func tree(t *testing.T) string {
	root := t.TempDir()
	for dir, r := range table() {
		if !r.planned {
			write(t, root, dir+"/doc.go", "// Package p is p.\npackage p\n")
		}
	}
	return root
}

func write(t *testing.T, root, file, text string) {
	t.Helper()
	path := filepath.Join(root, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
