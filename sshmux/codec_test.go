package sshmux

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hpcexec/hpcexec/internal/wire"
)

// messages is one of each, in both forms.
var messages = []struct {
	name  string
	typ   uint32
	value any
	wire  func(b []byte) []byte
}{
	{"hello", msgHello, hello{Version: 4}, hello{4}.append},
	{"new session", cNewSession, newSession{TTY: true, Agent: true, Escape: '~', Term: "xterm", Command: "ls -l", Env: []string{"A=b", "C=\xff"}},
		func(b []byte) []byte {
			return newSession{TTY: true, Agent: true, Escape: '~', Term: "xterm", Command: "ls -l", Env: []string{"A=b", "C=\xff"}}.append(b, 7)
		}},
	{"stdio forward", cNewStdioFwd, stdioFwd{Host: "/run/x", Port: streamLocal},
		func(b []byte) []byte { return stdioFwd{"/run/x", streamLocal}.append(b, 7) }},
	{"forward", cOpenFwd, forward{fwdRemote, "", 0, "localhost", 80},
		func(b []byte) []byte { return forward{fwdRemote, "", 0, "localhost", 80}.append(b, cOpenFwd, 7) }},
	{"exec", cExec, execMsg{Flags: execStdin | execStarted, Body: []byte("x")},
		func(b []byte) []byte { return execMsg{execStdin | execStarted, []byte("x")}.append(b, 7) }},
	{"resize", cResize, resize{80, 24}, func(b []byte) []byte { return resize{80, 24}.append(b, 7) }},
	{"exit", sExit, exitMsg{wire.Exit{Code: 3, Signal: "TERM"}, "local"},
		func(b []byte) []byte { return exitMsg{wire.Exit{Code: 3, Signal: "TERM"}, "local"}.append(b, 7) }},
	{"error", sError, errorMsg{"denied", "no", "ask"}, func(b []byte) []byte { return errorMsg{"denied", "no", "ask"}.append(b, 7) }},
	{"exit message", sExitMessage, uint32(255), func(b []byte) []byte { return appendNumber(b, sExitMessage, 7, 255) }},
	{"failure", sFailure, "why", func(b []byte) []byte { return appendText(b, sFailure, 7, "why") }},
}

// parse parses a message as a reader of its type would.
func parse(typ uint32, body []byte) (v any, id uint32, err error) {
	if typ == msgHello {
		v, err := parseHello(body)
		return v, 0, err
	}
	if len(body) < 4 {
		return nil, 0, errMalformed
	}
	id, body = binary.BigEndian.Uint32(body), body[4:]
	switch typ {
	case cNewSession:
		v, err = parseNewSession(body)
	case cNewStdioFwd:
		v, err = parseStdioFwd(body)
	case cOpenFwd, cCloseFwd:
		v, err = parseForward(body)
	case cExec:
		v, err = parseExecMsg(body)
	case cResize:
		v, err = parseResize(body)
	case sError:
		v, err = parseErrorMsg(body)
	case sExit:
		v, err = parseExitMsg(body)
	case sAlive, sSessionOpened, sExitMessage, sRemotePort:
		v, err = parseUint32(body)
	case sFailure, sPermissionDenied, cSignal, cAttach, cDetach, sInfo:
		v, err = parseString(body)
	default:
		return nil, id, nil
	}
	return v, id, err
}

// rewrite is the wire form of what parse gave.
func rewrite(typ, id uint32, v any) []byte {
	switch v := v.(type) {
	case hello:
		return v.append(nil)
	case newSession:
		return v.append(nil, id)
	case stdioFwd:
		return v.append(nil, id)
	case forward:
		return v.append(nil, typ, id)
	case execMsg:
		return v.append(nil, id)
	case resize:
		return v.append(nil, id)
	case errorMsg:
		return v.append(nil, id)
	case exitMsg:
		return v.append(nil, id)
	case uint32:
		return appendNumber(nil, typ, id, v)
	case string:
		return appendText(nil, typ, id, v)
	}
	return appendRequest(nil, typ, id, nil)
}

func TestMessagesRoundTrip(t *testing.T) {
	for _, m := range messages {
		t.Run(m.name, func(t *testing.T) {
			b := m.wire(nil)
			if n := binary.BigEndian.Uint32(b); int(n) != len(b)-4 {
				t.Fatalf("got length %d, want %d", n, len(b)-4)
			}
			if typ := binary.BigEndian.Uint32(b[4:]); typ != m.typ {
				t.Errorf("got type %#x, want %#x", typ, m.typ)
			}
			v, id, err := parse(m.typ, b[8:])
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(v, m.value) {
				t.Errorf("got %+v, want %+v", v, m.value)
			}
			if m.typ != msgHello && id != 7 {
				t.Errorf("got id %d, want 7", id)
			}
			// Every cut and every byte too many is refused, except where a
			// list may end.
			for cut := 8; cut < len(b); cut++ {
				if m.typ == cNewSession && cut >= len(b)-2*(4+3) {
					continue
				}
				if _, _, err := parse(m.typ, b[8:cut]); !errors.Is(err, errMalformed) {
					t.Errorf("cut to %d bytes: got error %v, want %v", cut, err, errMalformed)
				}
			}
			if _, _, err := parse(m.typ, append(b[8:], 0)); !errors.Is(err, errMalformed) {
				t.Errorf("a byte too many: got error %v, want %v", err, errMalformed)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	many := newSession{Env: make([]string, maxEnv+1)}.append(nil, 1)
	tests := []struct {
		name string
		typ  uint32
		msg  []byte
	}{
		{"stdio forward to a port that is none", cNewStdioFwd, stdioFwd{"h", 65536}.append(nil, 1)},
		{"forward from a port that is none", cOpenFwd, forward{fwdLocal, "", 65536, "h", 1}.append(nil, cOpenFwd, 1)},
		{"forward of a kind that is none", cOpenFwd, forward{4, "", 1, "h", 1}.append(nil, cOpenFwd, 1)},
		{"terminal too wide", cResize, resize{65536, 1}.append(nil, 1)},
		{"unknown flags", cExec, execMsg{Flags: 16}.append(nil, 1)},
		{"too many variables", cNewSession, many},
		{"string longer than the message", sFailure, []byte("\x00\x00\x00\x0c\x80\x00\x00\x03\x00\x00\x00\x01\xff\xff\xff\xff")},
		{"no request id", cAliveCheck, []byte("\x00\x00\x00\x04\x10\x00\x00\x04")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, _, err := parse(tt.typ, tt.msg[8:]); !errors.Is(err, errMalformed) {
				t.Errorf("got error %v, want %v", err, errMalformed)
			}
		})
	}
}

// seeds are real exchanges between OpenSSH's ssh and its master, one message a
// file, in hex: testdata/openssh/NAME.hex.
func seeds(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/openssh/*.hex")
	if err != nil || len(files) == 0 {
		t.Fatalf("no seeds in testdata/openssh (%v)", err)
	}
	out := map[string][]byte{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
		if err != nil || len(b) < 8 {
			t.Fatalf("%s: %d bytes, %v", f, len(b), err)
		}
		out[filepath.Base(f)] = b
	}
	return out
}

func TestOpenSSHMessages(t *testing.T) {
	for name, b := range seeds(t) {
		t.Run(name, func(t *testing.T) {
			typ := binary.BigEndian.Uint32(b[4:])
			v, id, err := parse(typ, b[8:])
			if err != nil {
				t.Fatal(err)
			}
			if got := rewrite(typ, id, v); !bytes.Equal(got, b) {
				t.Errorf("%+v written again:\ngot  %x\nwant %x", v, got, b)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(b)
	}
	for _, m := range messages {
		f.Add(m.wire(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 8 {
			return
		}
		typ := binary.BigEndian.Uint32(b[4:])
		v, id, err := parse(typ, b[8:])
		if err != nil || v == nil {
			return
		}
		again, id2, err := parse(typ, rewrite(typ, id, v)[8:])
		if err != nil || id != id2 || !reflect.DeepEqual(v, again) {
			t.Errorf("%#x: %+v became %+v (%v)", typ, v, again, err)
		}
	})
}
