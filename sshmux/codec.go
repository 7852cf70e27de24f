package sshmux

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hpcexec/hpcexec/internal/wire"
)

// Message types of the mux protocol: PROTOCOL.mux of OpenSSH, section 11, and
// MUX_C_PROXY, MUX_S_PROXY from its section 9.
const (
	muxVersion = 4

	msgHello = 0x00000001

	cNewSession    = 0x10000002
	cAliveCheck    = 0x10000004
	cTerminate     = 0x10000005
	cOpenFwd       = 0x10000006
	cCloseFwd      = 0x10000007
	cNewStdioFwd   = 0x10000008
	cStopListening = 0x10000009
	cProxy         = 0x1000000f

	sOK               = 0x80000001
	sPermissionDenied = 0x80000002
	sFailure          = 0x80000003
	sExitMessage      = 0x80000004
	sAlive            = 0x80000005
	sSessionOpened    = 0x80000006
	sRemotePort       = 0x80000007
	sTTYAllocFail     = 0x80000008
	sProxy            = 0x8000000f
)

// Message types of our own. OpenSSH answers a type it doesn't know with
// MUX_S_FAILURE, so a client finds out whose socket it is talking to.
const (
	cExec   = 0x1f0e0001 // run a command: execMsg, descriptors with it
	cSignal = 0x1f0e0002 // string name: signal the command of this connection
	cResize = 0x1f0e0003 // uint32 columns, uint32 rows
	cAttach = 0x1f0e0004 // string JSON of an Endpoint
	cDetach = 0x1f0e0005 // string path of the endpoint's socket
	cInfo   = 0x1f0e0006 // what is behind this socket

	sExit    = 0x9f0e0001 // string wire.Exit, string place: the command has ended
	sError   = 0x9f0e0002 // string kind, string text, string hint
	sStarted = 0x9f0e0003 // the command runs
	sInfo    = 0x9f0e0004 // string JSON of an info
)

// streamLocal as a port says that the host is a path of a unix socket
// (PROTOCOL.mux section 6).
const streamLocal = 0xfffffffe

// noEscape as an escape character says that there is none (section 2).
const noEscape = 0xffffffff

const (
	// maxMessage bounds every message but cExec, as OpenSSH does
	// (CHANNEL_MUX_MAX_PACKET).
	maxMessage = 256 << 10

	// maxExecMessage is room for the largest wire.Exec.
	maxExecMessage = 8<<20 + 4<<10

	// maxEnv bounds the variables of a new session (MUX_MAX_ENV_VARS).
	maxEnv = 4096
)

// errMalformed is the error of every parser here.
var errMalformed = errors.New("malformed mux message")

// hello is the first message of both sides. Extensions after the version are
// ignored, as PROTOCOL.mux says.
type hello struct {
	Version uint32
}

func (m hello) append(b []byte) []byte {
	return appendMessage(b, msgHello, func(b []byte) []byte {
		return binary.BigEndian.AppendUint32(b, m.Version)
	})
}

func parseHello(body []byte) (hello, error) {
	d := decoder{rest: body}
	m := hello{Version: d.uint32()}
	for len(d.rest) > 0 && d.err == nil {
		d.string() // name
		d.string() // value
	}
	return m, d.end()
}

// newSession is MUX_C_NEW_SESSION. Three descriptors follow it.
type newSession struct {
	TTY, X11, Agent, Subsystem bool

	Escape  uint32 // escape character, or noEscape
	Term    string
	Command string
	Env     []string
}

func (m newSession) append(b []byte, id uint32) []byte {
	return appendRequest(b, cNewSession, id, func(b []byte) []byte {
		b = appendString(b, "") // reserved
		for _, flag := range []bool{m.TTY, m.X11, m.Agent, m.Subsystem} {
			b = appendBool(b, flag)
		}
		b = binary.BigEndian.AppendUint32(b, m.Escape)
		b = appendString(b, m.Term)
		b = appendString(b, m.Command)
		for _, e := range m.Env {
			b = appendString(b, e)
		}
		return b
	})
}

func parseNewSession(body []byte) (newSession, error) {
	d := decoder{rest: body}
	d.string() // reserved
	m := newSession{
		TTY: d.bool(), X11: d.bool(), Agent: d.bool(), Subsystem: d.bool(),
		Escape:  d.uint32(),
		Term:    d.string(),
		Command: d.string(),
	}
	for len(d.rest) > 0 && d.err == nil {
		if len(m.Env) == maxEnv {
			return newSession{}, fmt.Errorf("%w: more than %d environment variables", errMalformed, maxEnv)
		}
		m.Env = append(m.Env, d.string())
	}
	return m, d.end()
}

// stdioFwd is MUX_C_NEW_STDIO_FWD. Two descriptors follow it.
type stdioFwd struct {
	Host string // or the path of a unix socket
	Port uint32 // or streamLocal
}

func (m stdioFwd) append(b []byte, id uint32) []byte {
	return appendRequest(b, cNewStdioFwd, id, func(b []byte) []byte {
		b = appendString(b, "") // reserved
		b = appendString(b, m.Host)
		return binary.BigEndian.AppendUint32(b, m.Port)
	})
}

func parseStdioFwd(body []byte) (stdioFwd, error) {
	d := decoder{rest: body}
	d.string() // reserved
	// PROTOCOL.mux calls the port a string; OpenSSH sends a number.
	m := stdioFwd{Host: d.string(), Port: d.uint32()}
	if m.Port > 65535 && m.Port != streamLocal {
		d.fail("port %d", m.Port)
	}
	return m, d.end()
}

// Kinds of forwarding.
const (
	fwdLocal   = 1
	fwdRemote  = 2
	fwdDynamic = 3
)

// forward is MUX_C_OPEN_FWD and MUX_C_CLOSE_FWD.
type forward struct {
	Kind        uint32
	ListenHost  string // or a path
	ListenPort  uint32 // or streamLocal
	ConnectHost string // or a path
	ConnectPort uint32 // or streamLocal
}

func (m forward) append(b []byte, typ, id uint32) []byte {
	return appendRequest(b, typ, id, func(b []byte) []byte {
		b = binary.BigEndian.AppendUint32(b, m.Kind)
		b = appendString(b, m.ListenHost)
		b = binary.BigEndian.AppendUint32(b, m.ListenPort)
		b = appendString(b, m.ConnectHost)
		return binary.BigEndian.AppendUint32(b, m.ConnectPort)
	})
}

func parseForward(body []byte) (forward, error) {
	d := decoder{rest: body}
	m := forward{
		Kind:       d.uint32(),
		ListenHost: d.string(), ListenPort: d.uint32(),
		ConnectHost: d.string(), ConnectPort: d.uint32(),
	}
	for _, port := range []uint32{m.ListenPort, m.ConnectPort} {
		if port > 65535 && port != streamLocal {
			d.fail("port %d", port)
		}
	}
	if m.Kind < fwdLocal || m.Kind > fwdDynamic {
		d.fail("kind of forwarding %d", m.Kind)
	}
	return m, d.end()
}

// Flags of an execMsg.
const (
	execStdin   = 1 << iota // a descriptor of stdin comes with it
	execStdout              // then one of stdout
	execStderr              // then one of stderr
	execStarted             // answer sStarted once the command runs

	execFlags = execStdin | execStdout | execStderr | execStarted
)

// execMsg is cExec. Its descriptors travel with its first byte, in the order
// of the flags.
type execMsg struct {
	Flags uint32
	Body  []byte // a wire.Exec
}

func (m execMsg) append(b []byte, id uint32) []byte {
	return appendRequest(b, cExec, id, func(b []byte) []byte {
		b = binary.BigEndian.AppendUint32(b, m.Flags)
		return appendString(b, m.Body)
	})
}

func parseExecMsg(body []byte) (execMsg, error) {
	d := decoder{rest: body}
	m := execMsg{Flags: d.uint32(), Body: d.bytes()}
	if m.Flags&^execFlags != 0 {
		d.fail("flags %#x", m.Flags)
	}
	return m, d.end()
}

// exitMsg is sExit.
type exitMsg struct {
	Exit  wire.Exit
	Place string
}

func (m exitMsg) append(b []byte, id uint32) []byte {
	return appendRequest(b, sExit, id, func(b []byte) []byte {
		return appendString(appendString(b, m.Exit.Marshal()), m.Place)
	})
}

func parseExitMsg(body []byte) (exitMsg, error) {
	d := decoder{rest: body}
	exit, place := d.bytes(), d.string()
	if err := d.end(); err != nil {
		return exitMsg{}, err
	}
	x, err := wire.ParseExit(exit)
	if err != nil {
		return exitMsg{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return exitMsg{x, place}, nil
}

// resize is cResize.
type resize struct {
	Cols, Rows uint32
}

func (m resize) append(b []byte, id uint32) []byte {
	return appendRequest(b, cResize, id, func(b []byte) []byte {
		b = binary.BigEndian.AppendUint32(b, m.Cols)
		return binary.BigEndian.AppendUint32(b, m.Rows)
	})
}

func parseResize(body []byte) (resize, error) {
	d := decoder{rest: body}
	m := resize{Cols: d.uint32(), Rows: d.uint32()}
	if m.Cols > 65535 || m.Rows > 65535 {
		d.fail("terminal size %d x %d", m.Cols, m.Rows)
	}
	return m, d.end()
}

// errorMsg is sError, an hpcexec.Error in transit.
type errorMsg struct {
	Kind, Text, Hint string
}

func (m errorMsg) append(b []byte, id uint32) []byte {
	return appendRequest(b, sError, id, func(b []byte) []byte {
		return appendString(appendString(appendString(b, m.Kind), m.Text), m.Hint)
	})
}

func parseErrorMsg(body []byte) (errorMsg, error) {
	d := decoder{rest: body}
	m := errorMsg{Kind: d.string(), Text: d.string(), Hint: d.string()}
	return m, d.end()
}

// parseString parses a body that is one string, such as that of cSignal.
func parseString(body []byte) (string, error) {
	d := decoder{rest: body}
	s := d.string()
	return s, d.end()
}

// parseUint32 parses a body that is one number, such as that of sAlive.
func parseUint32(body []byte) (uint32, error) {
	d := decoder{rest: body}
	v := d.uint32()
	return v, d.end()
}
