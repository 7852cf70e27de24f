package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// buildTags are the Makefile's.
const buildTags = "urfave_cli_no_docs"

// list runs `go list -deps` on the binary.
func list(t *testing.T, format string) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "-tags", buildTags, "-f", format, ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return strings.Fields(string(out))
}

// Every module that the binary has code of stands in NOTICE, and no other.
func TestNotice(t *testing.T) {
	b, err := os.ReadFile("../../NOTICE")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(b), "\nmodule ")
	var got []string
	for line := range strings.Lines(table) {
		if name, _, _ := strings.Cut(line, " "); strings.Contains(name, "/") {
			got = append(got, name)
		}
	}
	want := list(t, "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}")
	slices.Sort(want)
	if want = slices.Compact(want); !slices.Equal(got, want) {
		t.Errorf("NOTICE: got %q, want %q", got, want)
	}
}

// Every command, and every shim, starts a process that runs the initialization
// of all packages. A regular expression at package level costs it up to a
// millisecond: compile it where it is used, by sync.OnceValue.
func TestNoRegexpAtStart(t *testing.T) {
	files := list(t, "{{$d := .Dir}}{{with .Module}}{{if .Main}}{{range $.GoFiles}}{{$d}}/{{.}} {{end}}{{end}}{{end}}")
	if len(files) < 20 {
		t.Fatalf("files of the binary: got %d, want more", len(files))
	}
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.VAR {
				continue
			}
			ast.Inspect(gen, func(n ast.Node) bool {
				if _, ok := n.(*ast.FuncLit); ok {
					return false // called later
				}
				if sel, ok := n.(*ast.SelectorExpr); ok && strings.HasPrefix(sel.Sel.Name, "MustCompile") {
					t.Errorf("%s has a regular expression at package level", filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path)))
				}
				return true
			})
		}
	}
}
