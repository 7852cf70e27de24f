package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
)

// execs are all shapes of an Exec.
func execs() map[string]Exec {
	return map[string]Exec{
		"least": {Version: 1, Args: []string{"true"}},
		"full": {
			Version: 1, ID: "abc", Args: []string{"sh", "-c", "", "a b\n$x'\"", "\xff\x00é"},
			Env: []string{"A=1", "A=2", "B="}, Secrets: []string{"TOKEN=s=e=c"}, Dir: "/a b",
			Timeout: 1500 * time.Millisecond, TTY: &hpcexec.TTY{Term: "xterm", Cols: 80, Rows: 24},
			HasStdin: true, Merged: true, Background: true,
		},
		"dropped":    {Version: 1, Args: []string{"make"}, DropStdout: true},
		"dropped 2":  {Version: 1, Args: []string{"make"}, DropStderr: true},
		"merged":     {Version: 1, Args: []string{"make"}, Merged: true},
		"stdin":      {Version: 1, Args: []string{"cat"}, HasStdin: true},
		"background": {Version: 1, Args: []string{"sleep", "1"}, Background: true},
		"tty":        {Version: 1, Args: []string{"top"}, TTY: &hpcexec.TTY{}},
		"inline":     {Version: 1, Args: []string{strings.Repeat("x", maxInline-200)}},
		"long":       {Version: 1, Args: []string{"echo", strings.Repeat("x", 3<<20)}},
		"many":       {Version: 1, Args: strings.Split(strings.Repeat("x ", 40000), " ")},
	}
}

func TestExecRoundTrip(t *testing.T) {
	for name, want := range execs() {
		t.Run(name, func(t *testing.T) {
			got, err := ParseExec(want.Marshal())
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %.200q, want %.200q", fmt.Sprint(got), fmt.Sprint(want))
			}
		})
	}
}

func TestExecOf(t *testing.T) {
	req := hpcexec.Request{
		Args: []string{"a"}, Env: []string{"B=1"}, Secrets: []string{"C=2"}, Dir: "/d",
		Timeout: time.Second, TTY: &hpcexec.TTY{Cols: 3}, ID: "id", Stdin: strings.NewReader(""),
	}
	want := Exec{
		ID: "id", Args: []string{"a"}, Env: []string{"B=1"}, Secrets: []string{"C=2"}, Dir: "/d",
		Timeout: time.Second, TTY: req.TTY, HasStdin: true,
	}
	if got := ExecOf(&req); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestParseExecRefuses(t *testing.T) {
	good := Exec{ID: "x", Args: []string{"a", "b"}, Secrets: []string{"K=hush"}}
	b := good.Marshal()
	edit := func(at int, v uint32) []byte {
		c := bytes.Clone(b)
		binary.BigEndian.PutUint32(c[at:], v)
		return c
	}
	const idAt = 4 + 4 + 8
	for _, tt := range []struct {
		name string
		in   []byte
		want string
	}{
		{"empty", nil, "cut off"},
		{"cut off", b[:len(b)-1], "cut off"},
		{"left over", append(bytes.Clone(b), 0), "left over"},
		{"other version", edit(0, 2), "version 2"},
		{"unknown flag", edit(4, 1<<9), "unknown flags"},
		{"long text", edit(idAt, 0xffffffff), "cut off"},
		{"long list", edit(idAt+4+1+4, 0xfffffff0), "longer than the message"},
		{"too long", make([]byte, MaxExec+1), "longer than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseExec(tt.in)
			if !errors.Is(err, hpcexec.ErrInvalid) || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("got %v, want kind %v with %q", err, hpcexec.ErrInvalid, tt.want)
			}
			if strings.Contains(fmt.Sprint(err), "hush") {
				t.Errorf("error %q has a secret", err)
			}
		})
	}
}

// TestSendExec sends each Exec over a real connection, with stdin behind it.
func TestSendExec(t *testing.T) {
	for name, want := range execs() {
		t.Run(name, func(t *testing.T) {
			c, s := connect(t, 0, Client, Server)
			defer s.conn.Close()
			defer c.conn.Close()
			go c.refuse()
			go ssh.DiscardRequests(s.reqs)
			type result struct {
				e     Exec
				stdin string
				err   error
			}
			done := make(chan result, 1)
			go func() {
				ch, reqs, err := (<-s.chans).Accept()
				if err != nil {
					done <- result{err: err}
					return
				}
				req := <-reqs
				go ssh.DiscardRequests(reqs)
				e, err := ReadExec(req.Payload, ch)
				rest, _ := io.ReadAll(ch)
				done <- result{e, string(rest), err}
			}()
			ch, reqs, err := c.conn.OpenChannel("session", nil)
			if err != nil {
				t.Fatal(err)
			}
			go ssh.DiscardRequests(reqs)
			if err := SendExec(ch, &want); err != nil {
				t.Fatal(err)
			}
			io.WriteString(ch, "stdin")
			ch.CloseWrite()
			got := <-done
			if got.err != nil || !reflect.DeepEqual(got.e, want) {
				t.Errorf("got %.200q, %v, want %.200q", fmt.Sprint(got.e), got.err, fmt.Sprint(want))
			}
			if got.stdin != "stdin" {
				t.Errorf("got stdin %.100q, want %q", got.stdin, "stdin")
			}
		})
	}
}

func TestReadExecRefuses(t *testing.T) {
	head := func(version, size uint32, body string) []byte {
		b := binary.BigEndian.AppendUint32(nil, version)
		return append(binary.BigEndian.AppendUint32(b, size), body...)
	}
	for _, tt := range []struct {
		name    string
		payload []byte
		data    io.Reader
		want    string
	}{
		{"nothing", nil, nil, "cut off"},
		{"other version", head(9, 0, ""), nil, "version 9"},
		{"huge", head(1, MaxExec+1, ""), nil, "longer than"},
		{"inline cut off", head(1, 100, "abc"), nil, "3 of 100"},
		{"inline too long", head(1, 2, "abc"), nil, "3 of 2"},
		{"data cut off", head(1, 100, ""), strings.NewReader("abc"), "3 of 100"},
		{"garbage", head(1, 3, "abc"), nil, "cut off"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ReadExec(tt.payload, tt.data)
			if !errors.Is(err, hpcexec.ErrInvalid) || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("got %v, want kind %v with %q", err, hpcexec.ErrInvalid, tt.want)
			}
		})
	}
}

// exits are all shapes of an Exit.
func exits() map[string]Exit {
	at := time.Unix(1700000000, 123456789)
	return map[string]Exit{
		"zero":      {},
		"code":      {Code: 3, Started: at, Ended: at.Add(time.Second)},
		"signal":    {Code: 137, Signal: "KILL", TimedOut: true, Started: at, Ended: at},
		"error":     {ErrKind: "unknown_end", ErrText: "it is gone", ErrHint: "look there"},
		"odd error": {Code: -1, ErrKind: "internal", ErrText: "%d of \xff"},
	}
}

func TestExitRoundTrip(t *testing.T) {
	for name, want := range exits() {
		t.Run(name, func(t *testing.T) {
			got, err := ParseExit(want.Marshal())
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, %v, want %+v", got, err, want)
			}
		})
	}
}

func TestExitCutsTexts(t *testing.T) {
	x := Exit{ErrKind: "invalid", ErrText: strings.Repeat("x", 1<<20), ErrHint: strings.Repeat("y", 1<<20)}
	got, err := ParseExit(x.Marshal())
	if err != nil || len(got.ErrText) != maxText || len(got.ErrHint) != maxText {
		t.Errorf("got texts of %d and %d bytes, %v, want %d", len(got.ErrText), len(got.ErrHint), err, maxText)
	}
}

// TestExitError sends errors through an Exit: kind, text and hint survive.
func TestExitError(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
	}{
		{"none", nil},
		{"invalid", hpcexec.Errorf(hpcexec.ErrInvalid, "directory /x: %w", io.EOF).WithHint("make %s", "it")},
		{"unknown end", hpcexec.Errorf(hpcexec.ErrUnknownEnd, "100%% gone")},
		{"internal", errors.New("oh no")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := ExitOf(hpcexec.Response{ExitCode: 7}, tt.err)
			y, err := ParseExit(x.Marshal())
			if err != nil {
				t.Fatal(err)
			}
			resp, got := y.Response()
			if resp.ExitCode != 7 {
				t.Errorf("got exit code %d, want 7", resp.ExitCode)
			}
			if fmt.Sprint(got) != fmt.Sprint(tt.err) || hpcexec.Hint(got) != hpcexec.Hint(tt.err) {
				t.Errorf("got %v (%s), want %v (%s)", got, hpcexec.Hint(got), tt.err, hpcexec.Hint(tt.err))
			}
			if tt.err != nil && hpcexec.KindName(got) != hpcexec.KindName(tt.err) {
				t.Errorf("got kind %s, want %s", hpcexec.KindName(got), hpcexec.KindName(tt.err))
			}
		})
	}
}

func TestHello(t *testing.T) {
	want := Hello{Versions: []uint32{2, 1}, Build: "1.0", PID: 7, UID: 0, Home: "/session", Started: time.Unix(1, 2).UTC()}
	got, err := ParseHello(want.Marshal())
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, tt := range []struct {
		peer []uint32
		want uint32
	}{{[]uint32{1}, 1}, {[]uint32{1, 2, 3}, 2}, {[]uint32{3}, 0}, {nil, 0}} {
		if got := want.Common(&Hello{Versions: tt.peer}); got != tt.want {
			t.Errorf("Common(%v): got %d, want %d", tt.peer, got, tt.want)
		}
	}
	if got, err := ParseHello([]byte(`{"versions":[9],"later":true}`)); err != nil || got.Versions[0] != 9 {
		t.Errorf("got %+v, %v, want what a later release says", got, err)
	}
	for _, bad := range [][]byte{nil, []byte("{"), make([]byte, maxJSON+1)} {
		if _, err := ParseHello(bad); !errors.Is(err, hpcexec.ErrInvalid) {
			t.Errorf("ParseHello(%d bytes): got %v, want kind %v", len(bad), err, hpcexec.ErrInvalid)
		}
	}
}

func FuzzParseExec(f *testing.F) {
	seeds := execs()
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, e := range seeds {
		f.Add(e.Marshal())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := ParseExec(b)
		if err != nil {
			if !errors.Is(err, hpcexec.ErrInvalid) {
				t.Errorf("got %v, want kind %v", err, hpcexec.ErrInvalid)
			}
			return
		}
		if got := e.Marshal(); !bytes.Equal(got, b) {
			t.Errorf("got %x back for %x", got, b)
		}
	})
}

func FuzzParseExit(f *testing.F) {
	seeds := exits()
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, x := range seeds {
		f.Add(x.Marshal())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := ParseExit(b)
		if err != nil {
			if !errors.Is(err, hpcexec.ErrInvalid) {
				t.Errorf("got %v, want kind %v", err, hpcexec.ErrInvalid)
			}
			return
		}
		if y, err := ParseExit(x.Marshal()); err != nil || !reflect.DeepEqual(x, y) {
			t.Errorf("got %+v, %v back for %+v", y, err, x)
		}
	})
}
