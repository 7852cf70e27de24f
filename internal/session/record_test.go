package session

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hpcexec/hpcexec"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRecordRoundTrip(t *testing.T) {
	d := Dirs{Home: t.TempDir(), Scratch: t.TempDir()}
	if _, err := d.Load("train"); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, hpcexec.ErrInvalid) {
		t.Fatalf("Load of a session that isn't there: got %v, want fs.ErrNotExist and ErrInvalid", err)
	}
	want := &Record{
		Name: "train", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Options: Options{Place: "slurm", Image: "/a.sif", Idle: Duration(time.Hour)}, OverlayPath: "/o", Base: "abc",
		Start: &Start{Token: "t", JobID: "7", At: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC), Exe: "/hpcexec"},
	}
	if err := d.save(want); err != nil {
		t.Fatal(err)
	}
	got, err := d.Load("train")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	fi, err := os.Stat(d.recordPath("train"))
	if err != nil {
		t.Fatal(err)
	}
	if fi.Mode().Perm() != 0o600 {
		t.Errorf("record's mode: got %v, want 0600", fi.Mode())
	}
	names, err := d.Names()
	if err != nil || len(names) != 1 || names[0] != "train" {
		t.Errorf("Names: got %v, %v, want [train]", names, err)
	}
}

func TestRecordOfALaterFormatIsRefused(t *testing.T) {
	d := Dirs{Home: t.TempDir()}
	write(t, d.recordPath("train"), `{"format": 2, "name": "train"}`)
	if _, err := d.Load("train"); !errors.Is(err, hpcexec.ErrInvalid) || !strings.Contains(err.Error(), "format 2") {
		t.Errorf("Load: got %v, want ErrInvalid that names the format", err)
	}
}

func TestDamagedRecordIsNotMissing(t *testing.T) {
	d := Dirs{Home: t.TempDir()}
	write(t, d.recordPath("train"), `{"form`)
	_, err := d.Load("train")
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load of a damaged record: got %v, want an error that isn't fs.ErrNotExist: it would be made anew over a session's overlay", err)
	}
}

func TestErrorTextRoundTrip(t *testing.T) {
	err := hpcexec.Errorf(hpcexec.ErrNeedsLogin, "host x").WithHint("log in")
	got := errorText(err).Err()
	if !errors.Is(got, hpcexec.ErrNeedsLogin) || got.Error() != "host x" || hpcexec.Hint(got) != "log in" {
		t.Errorf("got %v with hint %q", got, hpcexec.Hint(got))
	}
	if errorText(nil).Err() != nil {
		t.Error("the text of no error is an error")
	}
	if got := errorText(errors.New("x")).Err(); hpcexec.KindName(got) != "internal" {
		t.Errorf("an error without a kind became %v", hpcexec.KindName(got))
	}
}

func TestFindDirs(t *testing.T) {
	tmp := t.TempDir()
	env := func(m map[string]string) func(string) string { return func(k string) string { return m[k] } }
	tests := []struct {
		name    string
		env     map[string]string
		want    Dirs
		wantErr error
	}{
		{"from HOME", map[string]string{"HOME": tmp}, Dirs{tmp + "/.local/state/hpcexec", tmp + "/.local/state/hpcexec"}, nil},
		{"XDG", map[string]string{"HOME": tmp, "XDG_STATE_HOME": tmp + "/x"}, Dirs{tmp + "/x/hpcexec", tmp + "/x/hpcexec"}, nil},
		{"own variables", map[string]string{"HPCEXEC_HOME": tmp + "/h", "HPCEXEC_SCRATCH": tmp + "/s"}, Dirs{tmp + "/h", tmp + "/s"}, nil},
		{"SCRATCH", map[string]string{"HPCEXEC_HOME": tmp + "/h", "SCRATCH": tmp + "/s"}, Dirs{tmp + "/h", tmp + "/s/hpcexec"}, nil},
		{"relative", map[string]string{"HPCEXEC_HOME": "h"}, Dirs{}, hpcexec.ErrInvalid},
		{"relative scratch", map[string]string{"HPCEXEC_HOME": tmp + "/h", "HPCEXEC_SCRATCH": "s"}, Dirs{}, hpcexec.ErrInvalid},
		{"nothing", nil, Dirs{}, hpcexec.ErrInvalid},
		{"not writable", map[string]string{"HPCEXEC_HOME": "/proc/x"}, Dirs{}, hpcexec.ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := FindDirs(env(tt.env))
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("error: got %v, want %v", err, tt.wantErr)
			}
			if err == nil && got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}
