package place

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hpcexec/hpcexec"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name    string
		in      string
		want    []Hop
		wantErr error
	}{
		{"local", "local", []Hop{{Kind: Local}}, nil},
		{"slurm", "slurm", []Hop{{Kind: Slurm}}, nil},
		{"host", "ssh:gpu1", []Hop{{SSH, "gpu1"}}, nil},
		{"user and port", "ssh:ada@gpu1.example.org:2222", []Hop{{SSH, "ada@gpu1.example.org:2222"}}, nil},
		{"user with an at sign", "ssh:ada@realm@gpu1", []Hop{{SSH, "ada@realm@gpu1"}}, nil},
		{"address", "ssh:ada@[2001:db8::1]:22", []Hop{{SSH, "ada@[2001:db8::1]:22"}}, nil},
		{"chain", "ssh:login/slurm", []Hop{{SSH, "login"}, {Kind: Slurm}}, nil},
		{"two hosts", "ssh:a/ssh:b/slurm", []Hop{{SSH, "a"}, {SSH, "b"}, {Kind: Slurm}}, nil},

		{"empty", "", nil, hpcexec.ErrInvalid},
		{"unknown", "moon", nil, hpcexec.ErrInvalid},
		{"ssh without host", "ssh", nil, hpcexec.ErrInvalid},
		{"ssh with empty host", "ssh:", nil, hpcexec.ErrInvalid},
		{"an option of ssh", "ssh:-oProxyCommand=x", nil, hpcexec.ErrInvalid},
		{"an option as user", "ssh:-l@host", nil, hpcexec.ErrInvalid},
		{"port zero", "ssh:h:0", nil, hpcexec.ErrInvalid},
		{"port too large", "ssh:h:65536", nil, hpcexec.ErrInvalid},
		{"port missing", "ssh:h:", nil, hpcexec.ErrInvalid},
		{"bracket open", "ssh:[::1", nil, hpcexec.ErrInvalid},
		{"bracket tail", "ssh:[::1]x", nil, hpcexec.ErrInvalid},
		{"space", "ssh:a b", nil, hpcexec.ErrInvalid},
		{"newline", "ssh:a\nb", nil, hpcexec.ErrInvalid},
		{"empty part", "ssh:a//slurm", nil, hpcexec.ErrInvalid},
		{"trailing slash", "slurm/", nil, hpcexec.ErrInvalid},
		{"through slurm", "slurm/ssh:a", nil, hpcexec.ErrInvalid},
		{"local in a chain", "ssh:a/local", nil, hpcexec.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(tt.in)
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("Parse(%q) error: got %v, want %v", tt.in, err, tt.wantErr)
			}
			if diff := cmp.Diff(tt.want, got.Hops); diff != "" {
				t.Errorf("Parse(%q) (-want +got):\n%s", tt.in, diff)
			}
			if err == nil && got.String() != tt.in {
				t.Errorf("String: got %q, want %q", got, tt.in)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"local", "slurm", "ssh:ada@gpu1:22", "ssh:login/slurm", "ssh:[::1]:22", "ssh:a@b@c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Parse(s)
		if err != nil {
			return
		}
		if p.String() != s {
			t.Errorf("Parse(%q).String() = %q", s, p)
		}
		for _, h := range p.Hops {
			if h.Kind == SSH && (h.Host == "" || h.Host[0] == '-') {
				t.Errorf("Parse(%q) lets %q through to ssh", s, h.Host)
			}
		}
	})
}
