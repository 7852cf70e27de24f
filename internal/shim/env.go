package shim

import (
	"os"
	"path/filepath"
	"strings"
)

// ownVars are variables that are about the shim's process, not about the
// place. Those that begin with HPCEXEC_SHIM_ are too.
var ownVars = map[string]bool{"HPCEXEC_ID": true, "PWD": true, "OLDPWD": true, "SHLVL": true, "_": true}

// commandEnv is what commands get of the shim's environment.
func commandEnv(env []string) []string {
	out := make([]string, 0, len(env))
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if !ownVars[name] && !strings.HasPrefix(name, "HPCEXEC_SHIM_") {
			out = append(out, e)
		}
	}
	return out
}

func getenv(env []string, name string) string {
	value := ""
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			value = v
		}
	}
	return value
}

// dir is where a command starts that names no directory.
func (s *server) dir() string {
	if filepath.IsAbs(s.home) {
		if st, err := os.Stat(s.home); err == nil && st.IsDir() {
			return s.home
		}
	}
	return "/"
}

// shell is the shell of plain SSH requests: bash, which other people's tools
// expect, or sh where the image has no bash.
func (s *server) shell() string {
	for _, dir := range filepath.SplitList(getenv(s.local.Env, "PATH")) {
		if !filepath.IsAbs(dir) {
			continue
		}
		bash := filepath.Join(dir, "bash")
		if st, err := os.Stat(bash); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return bash
		}
	}
	return "/bin/sh"
}
