package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/hpcexec/hpcexec"
)

func TestParseWhere(t *testing.T) {
	tests := []struct {
		arg                string
		session, ssh, path string // session and ssh empty: here
		wantErr            error
	}{
		{arg: "file", path: "file"},
		{arg: "./a:b", path: "./a:b"},
		{arg: "/x/a:b", path: "/x/a:b"},
		{arg: "dir/a:b", path: "dir/a:b"},
		{arg: "train:x", session: "train", path: "x"},
		{arg: "train:/x/y:z", session: "train", path: "/x/y:z"},
		{arg: "train:", session: "train", path: "."},
		{arg: "train:~", session: "train", path: "."},
		{arg: "train:~/x/", session: "train", path: "x/"},
		{arg: "train:~bob/x", session: "train", path: "~bob/x"},
		{arg: "ssh:gpu1:", ssh: "gpu1", path: "."},
		{arg: "ssh:gpu1:/x", ssh: "gpu1", path: "/x"},
		{arg: "ssh:ada@gpu1:x:y", ssh: "ada@gpu1", path: "x:y"},
		{arg: "ssh:gpu1:2222:/x", ssh: "gpu1:2222", path: "/x"},
		{arg: "ssh:gpu1:2222", ssh: "gpu1", path: "2222"},
		{arg: "ssh:gpu1:./2222:x", ssh: "gpu1", path: "./2222:x"},
		{arg: "ssh:[fe80::1]:/x", ssh: "[fe80::1]", path: "/x"},
		{arg: "ssh:[fe80::1]:22:/x", ssh: "[fe80::1]:22", path: "/x"},
		{arg: "", wantErr: hpcexec.ErrInvalid},
		{arg: "Train:x", wantErr: hpcexec.ErrInvalid},
		{arg: ":x", wantErr: hpcexec.ErrInvalid},
		{arg: "ssh:gpu1", wantErr: hpcexec.ErrInvalid},
		{arg: "ssh::x", wantErr: hpcexec.ErrInvalid},
		{arg: "ssh:-oProxyCommand=x:y", wantErr: hpcexec.ErrInvalid},
	}
	for _, tt := range tests {
		w, err := parseWhere(tt.arg)
		if !errors.Is(err, tt.wantErr) {
			t.Errorf("%q: got error %v, want %v", tt.arg, err, tt.wantErr)
		}
		if err != nil {
			continue
		}
		var session, ssh string
		if w.want != nil {
			session = w.want.Name
			ssh = strings.TrimPrefix(w.want.Options.Place, "ssh:")
		}
		if session != tt.session || ssh != tt.ssh || w.path != tt.path {
			t.Errorf("%q: got session %q, ssh %q, path %q", tt.arg, session, ssh, w.path)
		}
	}
}

func FuzzParseWhere(f *testing.F) {
	for _, s := range []string{"file", "train:x", "ssh:ada@gpu1:22:/x", "ssh:[fe80::1]:x", "./a:b", "ssh:", "a::"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		w, err := parseWhere(arg)
		switch {
		case err != nil && !errors.Is(err, hpcexec.ErrInvalid):
			t.Errorf("%q: got %v", arg, err)
		case err == nil && w.want == nil && w.path != arg:
			t.Errorf("%q: got the local path %q", arg, w.path)
		case err == nil && w.want != nil && w.path == "":
			t.Errorf("%q: got an empty path", arg)
		}
	})
}

func TestShowPath(t *testing.T) {
	for path, want := range map[string]string{"a b": "a b", "ü": "ü", "a\nb": `"a\nb"`, "\x1b[31m": `"\x1b[31m"`, "\xff": `"\xff"`} {
		if got := showPath(path); got != want {
			t.Errorf("%q: got %s, want %s", path, got, want)
		}
	}
}
