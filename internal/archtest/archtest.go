// Package archtest holds the repository to its rules: who may import whom, one
// comment for each package, no huge files, nothing that names the machine it
// was written on. The rules about imports are data, in table.go; a package
// without a row there fails, so that somebody decides where it belongs.
//
//	cmd/hpcexec
//	    │
//	internal/session, internal/place
//	    │
//	sshmux  apptainer  slurm  modules  overlay  snapshots     never each other
//	    │
//	internal/wire, shell, atomicfile, hostid, rundir, proctree
//	    │
//	the root package: the contract, and Local
package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// maxLines is the most that a Go file may have.
const maxLines = 600

// A pkg is what a directory has of Go.
type pkg struct {
	dir      string   // "." for the root
	comments []string // files with a package comment
	imports  map[string][]use
}

// A use is an import.
type use struct {
	file string
	test bool
}

// Check returns what is wrong with a module's tree, with the reasons.
func Check(root string) (problems []string, err error) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	pkgs := map[string]*pkg{}
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (d.Name() == ".git" || rel == "bin" || rel == "dist"):
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		checkText(root, rel, data, problem)
		if !strings.HasSuffix(rel, ".go") || strings.Contains("/"+rel, "/testdata/") {
			return nil
		}
		return checkGo(pkgs, rel, data, problem)
	})
	if err != nil {
		return nil, err
	}
	checkPackages(pkgs, problem)
	return problems, nil
}

// checkText looks at any file.
func checkText(root, rel string, data []byte, problem func(string, ...any)) {
	if bytes.IndexByte(data, 0) >= 0 {
		return // no text
	}
	forbidden := []struct{ text, why string }{
		{root + "/", "the repository may be anywhere"},
		{"<<<<" + "<<< ", "a conflict isn't resolved"},
		{">>>>" + ">>> ", "a conflict isn't resolved"},
		{"DO NOT " + "COMMIT", "it was committed"},
		{"FIX" + "ME", "do it, or write an issue"},
	}
	for _, f := range forbidden {
		if i := bytes.Index(data, []byte(f.text)); i >= 0 {
			problem("%s:%d has %q: %s", rel, 1+bytes.Count(data[:i], []byte("\n")), f.text, f.why)
		}
	}
}

// checkGo looks at a Go file and notes it in its package.
func checkGo(pkgs map[string]*pkg, rel string, data []byte, problem func(string, ...any)) error {
	if n := bytes.Count(data, []byte("\n")); n > maxLines {
		problem("%s has %d lines, more than %d: nobody reads it whole", rel, n, maxLines)
	}
	f, err := parser.ParseFile(token.NewFileSet(), rel, data, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir := path.Dir(filepath.ToSlash(rel))
	p := pkgs[dir]
	if p == nil {
		p = &pkg{dir: dir, imports: map[string][]use{}}
		pkgs[dir] = p
	}
	test := strings.HasSuffix(rel, "_test.go")
	if f.Doc != nil && !test {
		p.comments = append(p.comments, rel)
	}
	for _, spec := range f.Imports {
		name := strings.Trim(spec.Path.Value, "`\"")
		p.imports[name] = append(p.imports[name], use{rel, test})
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			problem("%s has an init function: what a package needs is made by whoever uses it", rel)
		}
	}
	return nil
}

func checkPackages(pkgs map[string]*pkg, problem func(string, ...any)) {
	rows := table()
	for dir, r := range rows {
		if pkgs[dir] == nil && !r.planned {
			problem("internal/archtest has a row for %s, which isn't there", dir)
		}
	}
	for dir, p := range pkgs {
		if len(p.comments) != 1 {
			problem("package %s has %d package comments (%s), want one", dir, len(p.comments), strings.Join(p.comments, ", "))
		}
		r, ok := rows[dir]
		if !ok {
			problem("package %s has no row in internal/archtest/table.go: say there what it may import", dir)
		}
		for name, uses := range p.imports {
			if rel, ours := inModule(name); ours && ok && !slices.Contains(r.may, rel) {
				for _, u := range uses {
					if !u.test {
						problem("%s imports %s, which %s may not: %s", u.file, rel, dir, r.why)
					}
				}
			}
			checkLimits(dir, name, uses, problem)
		}
	}
}

func checkLimits(dir, name string, uses []use, problem func(string, ...any)) {
	for _, l := range limits() {
		below := strings.Contains(l.path, ".") && strings.HasPrefix(name, l.path+"/") // log/slog isn't log
		if name != l.path && !below {
			continue
		}
		if slices.Contains(l.by, dir) || len(l.not) > 0 && !slices.Contains(l.not, dir) {
			continue
		}
		for _, u := range uses {
			if !u.test || !l.tests {
				problem("%s imports %s: %s", u.file, name, l.why)
			}
		}
	}
}

// inModule is the directory of a package of this module.
func inModule(name string) (dir string, ok bool) {
	if name == module {
		return ".", true
	}
	return strings.CutPrefix(name, module+"/")
}
