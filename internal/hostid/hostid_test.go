package hostid

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestSelf(t *testing.T) {
	a, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	if a.Host == "" || len(a.BootID) != 36 || a.InitStart == 0 && a.PIDNS == 0 {
		t.Errorf("got %+v, want every field", a)
	}
	b, err := Self()
	if err != nil || a != b || !a.Same(b) || a.Hash() != b.Hash() {
		t.Errorf("got %+v and %+v, want the same twice", a, b)
	}
}

func TestSame(t *testing.T) {
	id := ID{Host: "n1", BootID: "b", InitStart: 5, PIDNS: 7}
	tests := []struct {
		name  string
		other ID
		want  bool
	}{
		{"same", id, true},
		{"renamed host", ID{Host: "n1.cluster", BootID: "b", InitStart: 5, PIDNS: 7}, true},
		{"other boot", ID{Host: "n1", BootID: "c", InitStart: 5, PIDNS: 7}, false},
		{"other container", ID{Host: "n1", BootID: "b", InitStart: 6, PIDNS: 7}, false},
		{"other namespace", ID{Host: "n1", BootID: "b", InitStart: 5, PIDNS: 8}, false},
		{"nothing", ID{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := id.Same(tt.other); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			if got := id.Hash() == tt.other.Hash(); got != tt.want {
				t.Errorf("equal hashes: got %v, want %v", got, tt.want)
			}
		})
	}
	if (ID{}).Same(ID{}) {
		t.Error("two unknown ids are the same")
	}
}

func TestText(t *testing.T) {
	id := ID{Host: "n1", BootID: "b-1", InitStart: 5, PIDNS: 7}
	got, err := Parse(id.String())
	if err != nil || got != id {
		t.Errorf("got %+v %v, want %+v", got, err, id)
	}
	data, _ := json.Marshal(id)
	if want := `{"host":"n1","boot_id":"b-1","init_start":5,"pid_ns":7}`; string(data) != want {
		t.Errorf("got %s, want %s", data, want)
	}
	p := Proc{PID: 12, Start: 34}
	gotProc, err := ParseProc(p.String())
	if err != nil || gotProc != p {
		t.Errorf("got %+v %v, want %+v", gotProc, err, p)
	}
	for _, bad := range []string{"", "a/b/c", "a//1/2", "a/b/x/2", "a/b/1/-2", "a/b/1/2/3"} {
		if id, err := Parse(bad); err == nil {
			t.Errorf("Parse(%q): got %+v, want an error", bad, id)
		}
	}
	for _, bad := range []string{"", "1", "0:1", "-1:1", "x:1", "1:x", "1:2:3"} {
		if p, err := ParseProc(bad); err == nil {
			t.Errorf("ParseProc(%q): got %+v, want an error", bad, p)
		}
	}
}

func TestAlive(t *testing.T) {
	self, err := SelfProc()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	child, err := Find(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		proc Proc
		want bool
	}{
		{"self", self, true},
		{"child", child, true},
		{"start not known", Proc{PID: self.PID}, true},
		{"id used again", Proc{PID: self.PID, Start: self.Start + 1}, false},
		{"none", Proc{}, false},
		{"no such id", Proc{PID: 1 << 30, Start: 1}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.proc.Alive(); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}

	// A zombie has a stat file and answers signals, and it is dead.
	in.Close()
	for {
		st, err := readStat(child.PID)
		if err != nil {
			t.Fatal(err)
		}
		if st.state == 'Z' {
			break
		}
	}
	if child.Alive() {
		t.Error("a zombie is alive")
	}
	cmd.Wait()
	if child.Alive() {
		t.Error("a reaped process is alive")
	}
	if _, err := ProcStart(child.PID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
}

var statSeeds = []string{
	"1 (init) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 42 1000 10 18446744073709551615",
	"7 (a) b) (c\n) R 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 43 1000",
	"7 (x) Z",
	"",
	"no parenthesis",
}

func TestParseStat(t *testing.T) {
	for i, want := range []stat{{'S', 42}, {'R', 43}} {
		if got, err := parseStat([]byte(statSeeds[i])); err != nil || got != want {
			t.Errorf("%q: got %+v %v, want %+v", statSeeds[i], got, err, want)
		}
	}
	for _, bad := range statSeeds[2:] {
		if got, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: got %+v, want an error", bad, got)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	for _, s := range statSeeds {
		f.Add([]byte(s))
	}
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Fuzz(func(t *testing.T, data []byte) {
		st, err := parseStat(data)
		if err == nil && (st.state == 0 || strings.ContainsAny(string(st.state), " \n")) {
			t.Errorf("%q: got %+v", data, st)
		}
	})
}
