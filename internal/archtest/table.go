package archtest

// Module is the path of the module whose packages the table names; "." is its
// root package.
const module = "github.com/hpcexec/hpcexec"

// A row says what a package may import of this module.
type row struct {
	may []string
	why string // printed when it is broken

	planned bool // the package may be missing as yet
}

// leaves import nothing of this module but the root and one another.
var leaves = []string{
	"internal/atomicfile", "internal/hostid", "internal/proctree", "internal/rundir", "internal/shell", "internal/wire",
}

// parts are the packages that session and place introduce to each other.
var parts = []string{"apptainer", "modules", "overlay", "slurm", "snapshots", "sshmux"}

const (
	leafWhy    = "a leaf, which everybody may import, imports the root and other leaves at most"
	siblingWhy = "siblings meet through plain values; internal/session and internal/place introduce them"
)

// table has a row for each package.
func table() map[string]row {
	belowParts := join(leaves, ".")
	all := join(leaves, parts, ".", "internal/audit", "internal/place", "internal/files", "internal/policy", "internal/session", "internal/shim")
	return map[string]row{
		".": {may: []string{"internal/proctree"}, why: "the contract is everybody's and depends on nothing but the standard library"},

		"internal/atomicfile": {may: []string{"."}, why: leafWhy},
		"internal/hostid":     {may: []string{"."}, why: leafWhy},
		"internal/proctree":   {why: "the root package imports it"},
		"internal/rundir":     {may: []string{".", "internal/atomicfile", "internal/hostid"}, why: leafWhy},
		"internal/shell":      {may: []string{"."}, why: leafWhy},
		"internal/wire":       {may: []string{"."}, why: leafWhy},

		"internal/shim": {may: []string{".", "internal/proctree", "internal/wire"},
			why: "the shim runs in every container: it stays small and knows of no place"},
		"sshmux":    {may: []string{".", "internal/proctree", "internal/shell", "internal/wire"}, why: siblingWhy},
		"apptainer": {may: belowParts, why: siblingWhy},
		"modules":   {may: belowParts, why: siblingWhy},
		"overlay":   {may: belowParts, why: siblingWhy},
		"slurm":     {may: belowParts, why: siblingWhy},
		"snapshots": {may: belowParts, why: siblingWhy},

		"internal/files": {may: []string{"."}, why: "it copies over any stream and knows no place"},

		"internal/audit":   {may: belowParts, why: "it is told what ran, it doesn't ask", planned: true},
		"internal/policy":  {may: belowParts, why: "it judges plain values"},
		"internal/place":   {may: join(leaves, parts, "."), why: "it joins parts to places and knows no session"},
		"internal/session": {may: join(leaves, parts, ".", "internal/audit", "internal/place", "internal/policy", "internal/shim"), why: "the command line is above it"},
		"cmd/hpcexec":      {may: all, why: "the command line is thin: what it does is in packages"},
		"testbed/bench":    {may: all, why: "it measures what users get"},

		"internal/archtest": {why: "it judges the others"},
		"internal/exectest": {may: []string{"."}, why: "the suite tests any Executor and knows none"},
		"internal/sshtest":  {may: belowParts, why: "a test's server isn't the server under test", planned: true},
		"internal/testenv":  {may: belowParts, why: "it is for tests", planned: true},
	}
}

// A limit says who may import a package from outside, or what begins with its
// path and a slash. Tests may, too, where tests says so.
type limit struct {
	path  string
	by    []string // who may
	not   []string // who may not, where by is nil: everybody else may
	tests bool
	why   string
}

func limits() []limit {
	return []limit{
		{path: "github.com/urfave/cli", by: []string{"cmd/hpcexec"}, why: "only the command line knows flags"},
		{path: "golang.org/x/crypto/ssh", by: []string{"internal/shim", "internal/sshtest", "internal/wire", "sshmux"}, tests: true,
			why: "everybody else speaks to an Executor"},
		{path: "al.essio.dev/pkg/shellescape", by: []string{"internal/shell"}, why: "an argv becomes a line in internal/shell and nowhere else"},
		{path: "os/exec", not: []string{".", "internal/shim"}, tests: true,
			why: "Local starts the processes here; a reaper takes children that it doesn't know for orphans"},
		{path: "log", by: nil, tests: true, why: "a library takes a *slog.Logger or returns an error"},
		{path: "testing", by: []string{"internal/exectest", "internal/sshtest", "internal/testenv"}, tests: true, why: "it adds flags to the program"},
		{path: "go.uber.org/goleak", by: []string{"internal/exectest"}, tests: true, why: "it is for tests"},
		{path: "github.com/stretchr", by: nil, why: "tests here need no assertion library"},
	}
}

func join(lists []string, more ...any) []string {
	out := append([]string(nil), lists...)
	for _, m := range more {
		switch m := m.(type) {
		case string:
			out = append(out, m)
		case []string:
			out = append(out, m...)
		}
	}
	return out
}
