package exectest

import (
	"strings"

	"github.com/hpcexec/hpcexec"
)

func environmentClauses() []Clause {
	return []Clause{
		{"Env", "Env is added to the environment of the place; values are any bytes but NUL.", env},
		{"EnvHuge", "An environment of 300 KiB arrives whole.", envHuge},
		{"EnvLastWins", "Of several entries with one name the last wins; Secrets win over Env, Env over the place.", envLastWins},
		{"EnvBad", "A name that isn't [A-Za-z_][A-Za-z0-9_]* is ErrInvalid.", envBad},
		{"Secrets", "Secrets reach the environment of the command and no argv in the place, nor an error text.", secrets},
		{"Dir", "Dir is the working directory, and PWD says so.", dir},
		{"DirMissing", "A Dir that is missing, no directory or not searchable is ErrInvalid with its name; the command never runs elsewhere.", dirMissing},
	}
}

// hostileValues is what goes wrong where an environment becomes text. It has
// every byte but NUL.
func hostileValues() map[string]string {
	var all []byte
	for b := 1; b < 256; b++ {
		all = append(all, byte(b))
	}
	return map[string]string{
		"EXECTEST_EMPTY": "", "EXECTEST_SPACES": "  a  b  ", "EXECTEST_NEWLINE": "a\nb\n", "EXECTEST_EQUALS": "a=b=c", "EXECTEST_COMMA": "a,b,c",
		"EXECTEST_QUOTES": `it's "x" \n \`, "EXECTEST_DOLLAR": "$HOME $(id) `id` ${PATH}", "EXECTEST_FUNCTION": "() { :; }; echo no",
		"EXECTEST_INVALID": "\xff\xfe\x80", "EXECTEST_GLOB": "* ? [a] ~", "_EXECTEST_1": "underscore", "EXECTEST_ALL": string(all), "exectest_lower": "x",
	}
}

func env(t *T) {
	req := t.sh("exec env")
	values := hostileValues()
	for name, v := range values {
		req.Env = append(req.Env, name+"="+v)
	}
	r := t.ok(req)
	out := "\n" + r.stdout
	for name, v := range values {
		if !strings.Contains(out, "\n"+name+"="+v+"\n") {
			_, after, _ := strings.Cut(out, "\n"+name+"=")
			t.Errorf("%s: got %q…, want %q", name, after[:min(len(after), len(v)+10)], v)
		}
	}
	if !strings.Contains(out, "\nPATH=") {
		t.Errorf("the environment of the place is gone: no PATH in %q", clip(out))
	}
	// Without a shell, which may clean up.
	r = t.ok(hpcexec.Request{Args: []string{"env"}, Env: []string{"EXECTEST_NEWLINE=a\nb"}})
	if !strings.Contains("\n"+r.stdout, "\nEXECTEST_NEWLINE=a\nb\n") {
		t.Errorf("by env itself: got %q, want EXECTEST_NEWLINE in it", clip(r.stdout))
	}
}

func envHuge(t *T) {
	req := t.sh(`printf %s "$EXECTEST_0$EXECTEST_1$EXECTEST_2$EXECTEST_3$EXECTEST_4"`)
	want := ""
	for i, c := range "abcde" {
		v := strings.Repeat(string(c), 60<<10)
		want += v
		req.Env = append(req.Env, "EXECTEST_"+string(rune('0'+i))+"="+v)
	}
	t.wantOutput(t.ok(req).stdout, want)
}

func envLastWins(t *T) {
	req := t.sh(`printf '%s,%s,%s,%s' "$EXECTEST_A" "$EXECTEST_B" "$HOME" "$(env | grep -c '^EXECTEST_A=')"`)
	req.Env = append(req.Env, "EXECTEST_A=1", "EXECTEST_B=1", "HOME=/exectest", "EXECTEST_A=2")
	req.Secrets = []string{"EXECTEST_B=2", "EXECTEST_B=3"}
	t.wantOutput(t.ok(req).stdout, "2,3,/exectest,1")
}

func envBad(t *T) {
	for _, name := range []string{"", "1A", "A-B", "A B", "A.B", "ümlaut", "A\n", "BASH_FUNC_x%%"} {
		path := t.temp()
		req := t.sh(`: >"$1"`, path)
		req.Env = append(req.Env, name+"=v")
		if r := t.run(t.ctx, req); hpcexec.KindName(r.err) != "invalid" {
			t.Errorf("name %q: got error %v, want ErrInvalid", name, r.err)
		}
		if t.exists(path) {
			t.Errorf("name %q: the command ran", name)
		}
	}
}

func secrets(t *T) {
	secret := "exectest-secret-" + hpcexec.NewID()
	req := t.sh(`printf '%s\nup\n' "$EXECTEST_SECRET"; read -r x`)
	req.Secrets = []string{"EXECTEST_SECRET=" + secret}
	req.Stdin = t.stuck("")
	rn := t.launch(req, "up\n")
	if got := rn.out.String(); got != secret+"\nup\n" {
		t.Errorf("the command has %q, want the secret", got)
	}
	// Shell builtins only: what looks for it mustn't have it in its argv.
	found := t.probe(secret+"\n", `read -r s
		cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\000' '\n' | while IFS= read -r l; do
			case $l in *"$s"*) echo found ;; esac
		done`)
	if found != "" {
		t.Error("the secret is in the argv of a process")
	}
	rn.cancel(nil)
	if r := rn.wait(); r.err == nil || strings.Contains(r.err.Error(), secret) {
		t.Errorf("after cancel: got error %v, want one without the secret", r.err)
	}
	for _, bad := range []hpcexec.Request{
		{Args: []string{"true"}, Dir: "/exectest/no/such/dir"},
		{Args: []string{"true", strings.Repeat("x", 200<<10)}},
		{Args: []string{"/exectest/no/such/program"}},
	} {
		bad.Secrets = req.Secrets
		r := t.run(t.ctx, bad)
		if r.err != nil && strings.Contains(r.err.Error()+hpcexec.Hint(r.err), secret) || strings.Contains(r.stderr, secret) {
			t.Errorf("the secret is told: %v, %q", r.err, r.stderr)
		}
	}
}

func dir(t *T) {
	path := t.temp() + "/a b'c$d"
	t.ok(t.sh(`mkdir -p "$1"`, path))
	for _, d := range []string{"/", path} {
		req := t.sh(`pwd -P; printf '%s\n' "$PWD"`)
		req.Dir = d
		r := t.ok(req)
		real := t.probe("", `cd -- "$1" && pwd -P`, d)
		t.wantOutput(r.stdout, real+"\n"+d+"\n")
	}
	// The one in Dir is meant, wherever the Executor itself is.
	req := hpcexec.Request{Args: []string{"ls"}, Dir: path[:strings.LastIndex(path, "/")]}
	t.wantOutput(t.ok(req).stdout, "a b'c$d\n")
}

func dirMissing(t *T) {
	base := t.temp()
	t.ok(t.sh(`mkdir -p "$1" && : >"$1/file"`, base))
	for _, d := range []string{base + "/missing", base + "/file", base + "/file/below"} {
		mark := base + "/ran"
		req := t.sh(`: >"$1"`, mark)
		req.Dir = d
		r := t.run(t.ctx, req)
		if hpcexec.KindName(r.err) != "invalid" || !strings.Contains(r.err.Error(), d) {
			t.Errorf("%s: got exit code %d, error %v, want ErrInvalid with its name", d, r.ExitCode, r.err)
		}
		if t.exists(mark) {
			t.Errorf("%s: the command ran", d)
		}
	}
	if t.probe("", `id -u`) == "0" {
		return // everything is searchable for root
	}
	t.ok(t.sh(`mkdir "$1/locked" && chmod 0 "$1/locked"`, base))
	req := t.sh(`pwd`)
	req.Dir = base + "/locked"
	if r := t.run(t.ctx, req); hpcexec.KindName(r.err) != "invalid" {
		t.Errorf("not searchable: got exit code %d, error %v, want ErrInvalid", r.ExitCode, r.err)
	}
}
