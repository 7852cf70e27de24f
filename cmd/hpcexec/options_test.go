package main

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/policy"
	"github.com/hpcexec/hpcexec/internal/session"
)

func TestParseSlurmTime(t *testing.T) {
	tests := []struct {
		name    string
		in      string
		want    time.Duration
		wantErr error
	}{
		{"minutes", "90", 90 * time.Minute, nil},
		{"minutes and seconds", "10:30", 11 * time.Minute, nil},
		{"clock", "1:30:00", 90 * time.Minute, nil},
		{"days", "2-00:00:00", 48 * time.Hour, nil},
		{"days and hours", "1-12", 36 * time.Hour, nil},
		{"days, hours and minutes", "1-0:30", 24*time.Hour + 30*time.Minute, nil},
		{"go", "1h30m", 90 * time.Minute, nil},
		{"a part of a minute is rounded up", "90s", 2 * time.Minute, nil},

		{"empty", "", 0, hpcexec.ErrInvalid},
		{"zero", "0", 0, hpcexec.ErrInvalid},
		{"negative", "-5m", 0, hpcexec.ErrInvalid},
		{"word", "soon", 0, hpcexec.ErrInvalid},
		{"too many parts", "1:2:3:4", 0, hpcexec.ErrInvalid},
		{"empty part", "1::3", 0, hpcexec.ErrInvalid},
		{"no days", "-1:00", 0, hpcexec.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseSlurmTime(tt.in)
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("error: got %v, want %v", err, tt.wantErr)
			}
			if got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func FuzzParseSlurmTime(f *testing.F) {
	for _, s := range []string{"90", "1:30:00", "2-00:00:00", "1h30m", "0", "-1", "1-", "::"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := parseSlurmTime(s)
		if err == nil && (d <= 0 || d%time.Minute != 0) {
			t.Errorf("parseSlurmTime(%q): got %v, want whole minutes above 0", s, d)
		}
	})
}

func TestDurationFlag(t *testing.T) {
	tests := []struct {
		name    string
		in      string
		want    time.Duration
		wantErr error
	}{
		{"none", "", 0, nil},
		{"unit", "1h30m", 90 * time.Minute, nil},
		{"seconds", "2.5", 2500 * time.Millisecond, nil},
		{"zero", "0", 0, hpcexec.ErrInvalid},
		{"negative", "-1s", 0, hpcexec.ErrInvalid},
		{"not a number", "NaN", 0, hpcexec.ErrInvalid},
		{"infinite", "inf", 0, hpcexec.ErrInvalid},
		{"too long", "1e300", 0, hpcexec.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := durationFlag("timeout", tt.in)
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("error: got %v, want %v", err, tt.wantErr)
			}
			if got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestWithDefaults(t *testing.T) {
	d := policy.Defaults{
		Place: "slurm", Image: "/images/base.sif", Binds: []string{"/data:/data:ro"}, Idle: policy.Duration(time.Hour),
		Partition: "gpu", Time: policy.Duration(2 * time.Hour),
	}
	bind := []session.Bind{{Src: "/data", Dst: "/data", RO: true}}
	tests := []struct {
		name  string
		given session.Options
		want  session.Options
	}{
		{"nothing given", session.Options{},
			session.Options{Place: "slurm", Image: "/images/base.sif", Binds: bind, Idle: session.Duration(time.Hour), Partition: "gpu", Time: session.Duration(2 * time.Hour)}},
		{"what is given comes first", session.Options{Partition: "cpu", Image: "/other.sif"},
			session.Options{Place: "slurm", Image: "/other.sif", Binds: bind, Idle: session.Duration(time.Hour), Partition: "cpu", Time: session.Duration(2 * time.Hour)}},
		{"bare has no options of a container", session.Options{Image: "none"},
			session.Options{Place: "slurm", Idle: session.Duration(time.Hour), Partition: "gpu", Time: session.Duration(2 * time.Hour)}},
		{"elsewhere there is no allocation", session.Options{Place: "local"},
			session.Options{Place: "local", Image: "/images/base.sif", Binds: bind, Idle: session.Duration(time.Hour)}},
		{"an allocation behind a host", session.Options{Place: "ssh:login/slurm", Image: "none"},
			session.Options{Place: "ssh:login/slurm", Idle: session.Duration(time.Hour), Partition: "gpu", Time: session.Duration(2 * time.Hour)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := withDefaults(tt.given, d)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if _, err := withDefaults(session.Options{}, policy.Defaults{Image: "base.sif"}); !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("relative image in the config: got %v, want %v", err, hpcexec.ErrInvalid)
	}
}
