package policy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hpcexec/hpcexec"
)

func write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.toml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadConfig(t *testing.T) {
	tests := []struct {
		name    string
		text    string
		want    Defaults
		wantErr string // part of the text, after the file's name
	}{
		{name: "empty"},
		{name: "all kinds", text: "[defaults]\non = 'slurm'\nbind = ['/a', '/b:/c:ro']\nidle = 'never'\ntime = '1h30m'\nnodes = 2\nfakeroot = true\nslurm-opt = ['--exclusive']\n",
			want: Defaults{Place: "slurm", Binds: []string{"/a", "/b:/c:ro"}, Idle: -1, Time: Duration(90 * time.Minute), Nodes: 2, Fakeroot: true, SlurmOpts: []string{"--exclusive"}}},
		{name: "unknown key", text: "[defaults]\n\nplaec = 'slurm'\n", wantErr: `:3: unknown key "defaults.plaec"`},
		{name: "unknown table", text: "[default]\non = 'slurm'\n", wantErr: `:1: unknown key "default"`},
		{name: "a duration that is none", text: "[defaults]\nidle = 'soon'\n", wantErr: `:2:8: duration "soon": write it as 90s`},
		{name: "wrong type", text: "[defaults]\ncpus = 'two'\n", wantErr: ":2:"},
		{name: "broken", text: "[defaults\n", wantErr: ":1:"},
		{name: "negative", text: "[defaults]\ncpus = -1\n", wantErr: "can't be negative"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := write(t, tt.text)
			got, err := LoadConfig(path, false)
			if tt.wantErr == "" && err != nil {
				t.Fatal(err)
			}
			if tt.wantErr != "" {
				if !errors.Is(err, hpcexec.ErrInvalid) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error: got %v, want ErrInvalid with %q", err, path+tt.wantErr)
				}
				return
			}
			if diff := cmp.Diff(Config{tt.want}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	missing := filepath.Join(t.TempDir(), "none.toml")
	if c, err := LoadConfig(missing, false); err != nil || !cmp.Equal(c, Config{}) {
		t.Errorf("a file that isn't there: got %v, %v, want nothing", c, err)
	}
	if _, err := LoadConfig(missing, true); !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("a required file that isn't there: got %v, want %v", err, hpcexec.ErrInvalid)
	}
}

func TestConfigPath(t *testing.T) {
	tests := []struct {
		name string
		env  map[string]string
		want string
	}{
		{"home", map[string]string{"HOME": "/home/ada"}, "/home/ada/.config/hpcexec/config.toml"},
		{"XDG", map[string]string{"HOME": "/home/ada", "XDG_CONFIG_HOME": "/cfg"}, "/cfg/hpcexec/config.toml"},
		{"XDG that is not absolute", map[string]string{"HOME": "/home/ada", "XDG_CONFIG_HOME": "cfg"}, "/home/ada/.config/hpcexec/config.toml"},
		{"nothing", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := ConfigPath(func(k string) string { return tt.env[k] }); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPolicy(t *testing.T) {
	const limits = "max_time = '30m'\nmax_gpus = 2\nforbid_places = ['local', 'ssh:login1']\n"
	tests := []struct {
		name    string
		text    string
		use     Use
		want    Use // checked where there is no error
		wantErr error
	}{
		{"no limits", "", Use{Place: "local"}, Use{Place: "local"}, nil},
		{"within", limits, Use{"slurm", 20 * time.Minute, "a100:2"}, Use{"slurm", 20 * time.Minute, "a100:2"}, nil},
		{"the default is over it", limits, Use{Place: "slurm"}, Use{Place: "slurm", Time: 30 * time.Minute}, nil},
		{"the default is within it", "max_time = '5h'", Use{Place: "slurm"}, Use{Place: "slurm", Time: time.Hour}, nil},
		{"another host", limits, Use{Place: "ssh:gpu1"}, Use{Place: "ssh:gpu1"}, nil},
		{"no time limit where there is no job", limits, Use{"ssh:gpu1", 5 * time.Hour, ""}, Use{"ssh:gpu1", 5 * time.Hour, ""}, nil},

		{"too long", limits, Use{Place: "slurm", Time: time.Hour}, Use{}, hpcexec.ErrDenied},
		{"too many GPUs", limits, Use{Place: "slurm", GPUs: "3"}, Use{}, hpcexec.ErrDenied},
		{"too many GPUs of a type", limits, Use{Place: "slurm", GPUs: "a100:3"}, Use{}, hpcexec.ErrDenied},
		{"no GPUs at all", "max_gpus = 0", Use{Place: "slurm", GPUs: "1"}, Use{}, hpcexec.ErrDenied},
		{"kind of place", limits, Use{Place: "local"}, Use{}, hpcexec.ErrDenied},
		{"place on the way", limits, Use{Place: "ssh:login1/slurm"}, Use{}, hpcexec.ErrDenied},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := load(write(t, tt.text), os.Geteuid())
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Check(tt.use)
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("error: got %v, want %v", err, tt.wantErr)
			}
			if err == nil && got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	tests := []struct {
		name  string
		text  string
		mode  os.FileMode
		owner int // the uid that must own it
	}{
		{"unknown key", "max_tiem = '1h'", 0o644, os.Geteuid()},
		{"wrong place", "forbid_places = ['moon']", 0o644, os.Geteuid()},
		{"negative", "max_gpus = -1", 0o644, os.Geteuid()},
		{"group may write", "", 0o664, os.Geteuid()},
		{"another owner", "", 0o644, os.Geteuid() + 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := write(t, tt.text)
			if err := os.Chmod(path, tt.mode); err != nil {
				t.Fatal(err)
			}
			p, err := load(path, tt.owner)
			if !errors.Is(err, hpcexec.ErrDenied) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, %v, want an error that names the file and is %v", p, err, hpcexec.ErrDenied)
			}
		})
	}
	if p, err := Load(filepath.Join(t.TempDir(), "none")); p != nil || err != nil {
		t.Errorf("no policy: got %v, %v, want nil, nil", p, err)
	}
	if u, err := (*Policy)(nil).Check(Use{Place: "local"}); err != nil || u.Place != "local" {
		t.Errorf("nil policy: got %v, %v, want the use as it was", u, err)
	}
}

func FuzzLoadConfig(f *testing.F) {
	f.Add("[defaults]\non = 'slurm'\nidle = 'never'\n")
	f.Add("[defaults]\nplaec = 1\n[x.y]\n")
	f.Add("[defaults")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := LoadConfig(write(t, text), true); err != nil && !errors.Is(err, hpcexec.ErrInvalid) {
			t.Errorf("got %v, want one of kind ErrInvalid", err)
		}
	})
}
