package wire

import (
	"fmt"
	"io"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
)

// Version is the version of Exec and Exit that this package writes, and the
// only one so far that it reads.
const Version = 1

// Requests of hpcexec beside those of RFC 4254. The first group travels on a
// channel of type "session".
const (
	RequestExec = "exec@hpcexec" // client to shim: run this (see SendExec)
	RequestExit = "exit@hpcexec" // shim to client: it ended, its output is complete

	// RequestCancel has the shim end the command's tree, like the close of
	// the channel, but the rest of the output and RequestExit still come: who
	// waits for that knows that the tree is gone. (The answer to a close is
	// no sign of it: x/crypto/ssh gives it by itself, at once.)
	RequestCancel = "cancel@hpcexec"
)

// The global ones, all from client to shim.
const (
	RequestHello  = "hello@hpcexec"  // payload and answer are a Hello
	RequestStatus = "status@hpcexec" // the answer is a Status
	RequestBeat   = "beat@hpcexec"   // the client lives; no answer

	// RequestStop ends all commands, as SIGTERM does, and then the shim. The
	// answer comes when the commands have ended.
	RequestStop = "stop@hpcexec"
)

// BeatInterval is how often a master sends RequestBeat while commands run, and
// BeatTimeout how long a shim goes without one, on a connection that has sent
// at least one, before it ends the connection's foreground commands.
const (
	BeatInterval = 5 * time.Second
	BeatTimeout  = 15 * time.Second
)

const (
	// MaxExec bounds the encoding of an Exec: Linux takes 2 MiB of
	// arguments and environment, 6 MiB with an unlimited stack.
	MaxExec = 8 << 20

	// maxInline is the longest Exec that goes into the request itself.
	maxInline = 32 << 10

	// maxExit bounds the encoding of an Exit, and maxText each text in it.
	maxExit = 64 << 10
	maxText = 16 << 10
)

// An Exec asks a shim for a command. Its fields are those of
// hpcexec.Request.
type Exec struct {
	Version uint32 // 0 stands for the constant Version
	ID      string
	Args    []string
	Env     []string
	Secrets []string
	Dir     string
	Timeout time.Duration // to the nanosecond
	TTY     *hpcexec.TTY

	// HasStdin: the channel's data is the command's stdin. Else it is empty.
	HasStdin bool

	// Merged: stderr is written where stdout is, in the order of writing, as
	// one stream; nothing comes as stderr.
	Merged bool

	// DropStdout and DropStderr: nobody reads it, so it is /dev/null; nothing
	// comes of it. A terminal has no use for them.
	DropStdout, DropStderr bool

	// Background: the command outlives its channel, its connection, and the
	// master's beat. What it writes then is discarded.
	Background bool
}

// Bits of the flags in an encoded Exec and Exit.
const (
	flagStdin = 1 << iota
	flagBackground
	flagTTY
	flagMerged
	flagDropStdout
	flagDropStderr

	knownFlags = flagDropStderr<<1 - 1
)

const flagTimedOut = 1

// ExecOf is the Exec for a request. It shares the request's slices.
func ExecOf(req *hpcexec.Request) Exec {
	return Exec{
		ID: req.ID, Args: req.Args, Env: req.Env, Secrets: req.Secrets, Dir: req.Dir,
		Timeout: req.Timeout, TTY: req.TTY, HasStdin: req.Stdin != nil,
		DropStdout: req.Stdout == nil && req.TTY == nil, DropStderr: req.Stderr == nil && req.TTY == nil,
	}
}

// Marshal encodes e: version, flags, time-out in nanoseconds, terminal, id,
// directory, and the three lists, each text with its length before it.
func (e *Exec) Marshal() []byte {
	size := 64 + len(e.ID) + len(e.Dir)
	for _, list := range [][]string{e.Args, e.Env, e.Secrets} {
		for _, s := range list {
			size += 4 + len(s)
		}
	}
	w := writer{make([]byte, 0, size)}
	w.uint32(versionOr(e.Version))
	flags := uint32(0)
	if e.HasStdin {
		flags |= flagStdin
	}
	if e.Background {
		flags |= flagBackground
	}
	if e.TTY != nil {
		flags |= flagTTY
	}
	if e.Merged {
		flags |= flagMerged
	}
	if e.DropStdout {
		flags |= flagDropStdout
	}
	if e.DropStderr {
		flags |= flagDropStderr
	}
	w.uint32(flags)
	w.uint64(uint64(e.Timeout))
	if e.TTY != nil {
		w.string(e.TTY.Term)
		w.uint32(uint32(e.TTY.Cols))
		w.uint32(uint32(e.TTY.Rows))
	}
	w.string(e.ID)
	w.string(e.Dir)
	w.list(e.Args)
	w.list(e.Env)
	w.list(e.Secrets)
	return w.b
}

// ParseExec decodes what Exec.Marshal makes. The result shares no memory with
// b. Its errors are of kind hpcexec.ErrInvalid and never quote b, which may
// hold secrets.
func ParseExec(b []byte) (Exec, error) {
	if len(b) > MaxExec {
		return Exec{}, hpcexec.Errorf(hpcexec.ErrInvalid, "exec message of %d bytes is longer than %d", len(b), MaxExec)
	}
	r := reader{b: b}
	e := Exec{Version: r.uint32()}
	if r.err == nil && e.Version != Version {
		return Exec{}, versionError("exec", e.Version)
	}
	flags := r.uint32()
	e.Timeout = time.Duration(r.uint64())
	if flags&flagTTY != 0 {
		e.TTY = &hpcexec.TTY{Term: r.string(), Cols: int(r.uint32()), Rows: int(r.uint32())}
	}
	e.ID = r.string()
	e.Dir = r.string()
	e.Args = r.list()
	e.Env = r.list()
	e.Secrets = r.list()
	e.HasStdin = flags&flagStdin != 0
	e.Background = flags&flagBackground != 0
	e.Merged = flags&flagMerged != 0
	e.DropStdout = flags&flagDropStdout != 0
	e.DropStderr = flags&flagDropStderr != 0
	if flags&^knownFlags != 0 {
		r.fail("unknown flags")
	}
	if err := r.end("exec"); err != nil {
		return Exec{}, err
	}
	return e, nil
}

// SendExec asks for e on a new session channel. A long e goes as the first
// data of the channel: a packet of more than 256 KiB would end the connection.
func SendExec(ch ssh.Channel, e *Exec) error {
	body := e.Marshal()
	if len(body) > MaxExec {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "arguments and environment are %d bytes, more than %d", len(body), MaxExec)
	}
	var w writer
	w.uint32(versionOr(e.Version))
	w.uint32(uint32(len(body)))
	if len(body) <= maxInline {
		w.b = append(w.b, body...)
		body = nil
	}
	if _, err := ch.SendRequest(RequestExec, false, w.b); err != nil {
		return err
	}
	_, err := ch.Write(body)
	return err
}

// Inline says whether a request with a payload has all of its Exec, so that
// ReadExec will not read from the channel.
func Inline(payload []byte) bool { return len(payload) != 8 }

// ReadExec reads the Exec of a request with a payload; data is the channel's,
// of which it reads no more than belongs to the Exec.
func ReadExec(payload []byte, data io.Reader) (Exec, error) {
	r := reader{b: payload}
	version, size := r.uint32(), r.uint32()
	switch {
	case r.err != nil:
		return Exec{}, r.end("exec")
	case version != Version:
		return Exec{}, versionError("exec", version)
	case size > MaxExec:
		return Exec{}, hpcexec.Errorf(hpcexec.ErrInvalid, "exec message of %d bytes is longer than %d", size, MaxExec)
	}
	body := r.b
	if len(body) == 0 && size > 0 {
		// Memory grows with what arrives, not with what was announced.
		var err error
		if body, err = io.ReadAll(io.LimitReader(data, int64(size))); err != nil {
			return Exec{}, hpcexec.Errorf(hpcexec.ErrInvalid, "exec message: %w", err)
		}
	}
	if uint32(len(body)) != size {
		return Exec{}, hpcexec.Errorf(hpcexec.ErrInvalid, "exec message has %d of %d bytes", len(body), size)
	}
	return ParseExec(body)
}

// An Exit says how a command ended. Either it ended, or ErrKind and ErrText
// say why there is no end.
type Exit struct {
	Code           int
	Signal         string // without SIG; empty unless a signal ended it
	TimedOut       bool
	Started, Ended time.Time
	ErrKind        string // as of hpcexec.KindName; empty: the command ended
	ErrText        string
	ErrHint        string
}

// ExitOf is the Exit for what Run or Wait returned.
func ExitOf(resp hpcexec.Response, err error) Exit {
	x := Exit{
		Code: resp.ExitCode, Signal: resp.Signal, TimedOut: resp.TimedOut,
		Started: resp.Started, Ended: resp.Ended,
	}
	if err != nil {
		x.ErrKind, x.ErrText, x.ErrHint = hpcexec.KindName(err), err.Error(), hpcexec.Hint(err)
	}
	return x
}

// Response is the hpcexec.Response without place and id, and the error that
// Run returns.
func (x *Exit) Response() (hpcexec.Response, error) {
	resp := hpcexec.Response{
		ExitCode: x.Code, Signal: x.Signal, TimedOut: x.TimedOut,
		Started: x.Started, Ended: x.Ended,
	}
	if x.ErrKind == "" {
		return resp, nil
	}
	kind := hpcexec.KindByName(x.ErrKind)
	if kind == nil {
		return resp, fmt.Errorf("%s", x.ErrText)
	}
	err := hpcexec.Errorf(kind, "%s", x.ErrText)
	if x.ErrHint != "" {
		err = err.WithHint("%s", x.ErrHint)
	}
	return resp, err
}

// Marshal encodes x. Texts are cut to 16 KiB.
func (x *Exit) Marshal() []byte {
	var w writer
	w.uint32(Version)
	flags := uint32(0)
	if x.TimedOut {
		flags |= flagTimedOut
	}
	w.uint32(flags)
	w.uint32(uint32(int32(x.Code)))
	w.time(x.Started)
	w.time(x.Ended)
	for _, s := range []string{x.Signal, x.ErrKind, x.ErrText, x.ErrHint} {
		w.string(s[:min(len(s), maxText)])
	}
	return w.b
}

// ParseExit decodes what Exit.Marshal makes. Its errors are of kind
// hpcexec.ErrInvalid.
func ParseExit(b []byte) (Exit, error) {
	if len(b) > maxExit+1<<10 {
		return Exit{}, hpcexec.Errorf(hpcexec.ErrInvalid, "exit message of %d bytes", len(b))
	}
	r := reader{b: b}
	if v := r.uint32(); r.err == nil && v != Version {
		return Exit{}, versionError("exit", v)
	}
	flags := r.uint32()
	x := Exit{
		TimedOut: flags&flagTimedOut != 0,
		Code:     int(int32(r.uint32())),
		Started:  r.time(), Ended: r.time(),
		Signal: r.string(), ErrKind: r.string(), ErrText: r.string(), ErrHint: r.string(),
	}
	if flags&^flagTimedOut != 0 {
		r.fail("unknown flags")
	}
	if err := r.end("exit"); err != nil {
		return Exit{}, err
	}
	return x, nil
}

func versionOr(v uint32) uint32 {
	if v == 0 {
		return Version
	}
	return v
}

func versionError(what string, v uint32) error {
	return hpcexec.Errorf(hpcexec.ErrInvalid, "%s message has version %d, not %d", what, v, Version).
		WithHint("restart the session: its shim and this hpcexec are of different releases")
}
