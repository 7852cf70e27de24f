package apptainer

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	line := "187 (a) b (c) S 186 186 186 0 -1 1077936128 1 0 0 0 1 2 3 4 20 0 9 0 99887 1 2 3"
	st, err := parseStat([]byte(line))
	if want := (stat{"a) b (c", 'S', 186, 186, 186, 99887}); err != nil || st != want {
		t.Errorf("got %+v, %v, want %+v", st, err, want)
	}
	for _, bad := range []string{"", "1", "1 (x", "1 x) (", "1 (x) S 1", strings.Replace(line, "99887", "x", 1)} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: got no error", bad)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Add([]byte("1 ()) S 1 1 1 0 -1 1 1 0 0 0 1 2 3 4 20 0 9 0 5 1"))
	f.Fuzz(func(t *testing.T, b []byte) { parseStat(b) })
}

func TestProc(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, st, err := procOf(cmd.Process.Pid)
	if err != nil || st.ppid != os.Getpid() || !p.Alive() {
		t.Fatalf("got %+v, %+v, %v", p, st, err)
	}
	if !slices.Contains(children(os.Getpid()), p.PID) {
		t.Error("not among the children")
	}
	other := Proc{PID: p.PID, Start: p.Start + 1}
	if other.Alive() {
		t.Error("a process with another start time is alive")
	}
	if err := other.signal(unix.SIGKILL); err != nil || !p.Alive() {
		t.Errorf("a signal to a reused pid: %v, alive %v", err, p.Alive())
	}
	if p.waitGone(t.Context(), 20*time.Millisecond) {
		t.Error("waitGone says that it has ended")
	}
	if err := p.signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	// A zombie now: nobody has waited for it.
	if !p.waitGone(t.Context(), 10*time.Second) || p.Alive() {
		t.Error("a zombie counts as alive")
	}
	cmd.Wait()
	if !p.waitGone(t.Context(), time.Second) || p.signal(unix.SIGKILL) != nil {
		t.Error("a process that is gone is an error")
	}
	if (Proc{}).Alive() || !(Proc{}).waitGone(t.Context(), time.Second) || (Proc{}).signal(unix.SIGKILL) != nil {
		t.Error("the zero Proc is somebody")
	}
}

func TestTitles(t *testing.T) {
	for title, want := range map[string]string{
		"Apptainer instance: ada [hpcexec-x]":      "hpcexec-x",
		"Singularity instance: ada [hpcexec-x]   ": "hpcexec-x",
		"Apptainer instance: ada [other]":          "other",
		"Apptainer runtime parent: ":               "",
		"sh -c Apptainer instance: ada [x]":        "",
		"Apptainer instance: ada [hpcexec-x] more": "",
		"": "",
	} {
		if got := titleName([]string{title}); got != want {
			t.Errorf("%q: got %q, want %q", title, got, want)
		}
	}
	if titleName(nil) != "" {
		t.Error("no argv has a name")
	}
}

const listJSON = `{
	"instances": [
		{"instance": "hpcexec-x", "pid": 187, "img": "/images/base.sif", "ip": "",
		 "logErrPath": "/run/x.err", "logOutPath": "/run/x.out"},
		{"instance": "mine", "pid": 5, "img": "/a.sif"},
		{"instance": "hpcexec-bad name", "pid": 6, "img": ""},
		{"instance": "hpcexec-zero", "pid": 0, "img": ""}
	]
}`

func TestParseList(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       int
		wantErr    bool
	}{
		{"ours alone", listJSON, 1, false},
		{"noise before", "INFO: x\n" + listJSON, 1, false},
		{"empty", `{"instances": []}`, 0, false},
		{"null", `{"instances": null}`, 0, false},
		{"no JSON", "INSTANCE NAME", 0, true},
		{"cut off", listJSON[:60], 0, true},
		{"nothing", "", 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseList([]byte(tc.text))
			if len(got) != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("got %v, %v, want %d, error %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
	got, _ := parseList([]byte(listJSON))
	if want := (Listed{"hpcexec-x", 187, "/images/base.sif", "/run/x.err", "/run/x.out"}); len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func FuzzParseList(f *testing.F) {
	seeds := []string{listJSON, `{"instances":[]}`, `{`, `{"instances":[{"pid":1e99}]}`}
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	if len(seeds) == 0 {
		f.Fatal("the corpus is empty")
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, _ := parseList(b)
		for _, l := range got {
			if checkName(l.Name) != nil || l.PID <= 1 {
				t.Errorf("%+v isn't ours", l)
			}
		}
	})
}

func TestParseVerify(t *testing.T) {
	const fuse = "root fuse-overlayfs / fuse.fuse-overlayfs rw,nosuid,nodev\n"
	for _, tc := range []struct {
		name, out string
		wantErr   error // nil: good
		dropped   bool
	}{
		{name: "fuse", out: fuse + "written\ndone\n"},
		{name: "kernel", out: "root overlay / overlay rw,lowerdir=/a\nwritten\ndone\n"},
		{name: "terminal", out: strings.ReplaceAll(fuse+"written\ndone\n", "\n", "\r\n")},
		{name: "dropped", out: "root tmpfs / tmpfs ro,nosuid\ndone\n", wantErr: ErrOverlayDropped},
		{name: "read-only", out: "root overlay / overlay ro,lowerdir=/rw\ndone\n", wantErr: ErrOverlayDropped},
		{name: "squashfs", out: "root /dev/loop0 / squashfs ro\ndone\n", wantErr: ErrOverlayDropped},
		{name: "not written", out: fuse + "done\n", wantErr: errors.ErrUnsupported, dropped: false},
		{name: "nothing", out: "", wantErr: errors.ErrUnsupported},
		{name: "cut off", out: fuse + "written\n", wantErr: errors.ErrUnsupported},
		{name: "no root", out: "written\ndone\n", wantErr: errors.ErrUnsupported},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := ParseVerify(tc.out)
			if (err == nil) != (tc.wantErr == nil) {
				t.Fatalf("got %v, want error %v", err, tc.wantErr != nil)
			}
			if tc.wantErr == ErrOverlayDropped && !errors.Is(err, ErrOverlayDropped) {
				t.Errorf("got %v, want ErrOverlayDropped", err)
			}
		})
	}
}

// TestVerifyScript runs the script on this machine, whose root may be anything.
func TestVerifyScript(t *testing.T) {
	for _, shell := range []string{"sh", "bash"} {
		out, err := exec.Command(shell, "-c", VerifyScript()).Output()
		if err != nil || !strings.HasPrefix(string(out), "root ") || !strings.HasSuffix(string(out), "done\n") {
			t.Errorf("%s: got %q, %v", shell, out, err)
		}
	}
	if _, err := os.Stat(verifyMarker); err == nil {
		t.Error("the marker is left")
	}
}

func TestLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	a, err := tryLock(path)
	if err != nil || a == nil {
		t.Fatal(a, err)
	}
	if b, err := tryLock(path); b != nil || err != nil {
		t.Errorf("a second lock: got %v, %v, want none", b, err)
	}
	done := make(chan error, 1)
	go func() {
		l, err := lock(t.Context(), "it", path)
		if err == nil {
			l.release()
		}
		done <- err
	}()
	time.Sleep(10 * time.Millisecond)
	a.release()
	if err := <-done; err != nil {
		t.Errorf("after the release: %v", err)
	}
}
