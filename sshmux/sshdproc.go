package sshmux

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

const (
	// quietFor is how long after the exit nothing may have come before the
	// output counts as complete although somebody holds it open: sshd tells
	// the exit before it has read all output.
	quietFor = 300 * time.Millisecond

	// lateOutput is how much may come after the exit: what is in the channel
	// and in the pipe.
	lateOutput = 2<<20 + 256<<10

	// limitSlack is how much later than here a time limit holds on the host:
	// it is meant for when nobody is here any more.
	limitSlack = 5 * time.Second

	// lostStart is how long a cancelled command may take to say its pid.
	lostStart = 2 * time.Second
)

var errRefused = errors.New("the SSH server refused it")

// An sshdProc is a command in a session of a plain SSH server.
type sshdProc struct {
	peer     *sshdPeer
	ch       ssh.Channel
	s        stdio
	ctx      context.Context // of the command, as start got it
	mark     string
	tty      bool
	timeout  time.Duration
	released func()
	unwatch  func() bool
	timer    *time.Timer // of the time-out

	outputs sync.WaitGroup
	ready   chan struct{} // closed once a terminal takes the script
	started chan error    // one value: nil once the command runs
	exited  chan struct{} // closed when the exit was told
	done    chan struct{} // closed when the channel is closed and read to its end

	moved  atomic.Int64 // when a stream was last read from, Unix nanoseconds
	late   atomic.Int64 // bytes since the exit
	inside atomic.Int32 // streams that are in a Writer

	mu       sync.Mutex
	group    int // process group, 0 until it is known
	began    time.Time
	ended    time.Time
	exit     wire.Exit
	known    bool // exit is
	cancel   bool // ended from here
	timedOut bool
	left     <-chan int // answer of the watcher
	said     []byte     // what came before the command: for error texts
}

// serve begins to read from the channel.
func (r *sshdProc) serve(reqs <-chan *ssh.Request) {
	r.ready = make(chan struct{})
	r.outputs.Go(r.stdout)
	r.outputs.Go(r.stderr)
	go r.requests(reqs)
}

// token begins what the script says.
func (r *sshdProc) token() string { return tokenPrefix + r.mark }

// launch sends what runs the command and waits until it runs.
func (r *sshdProc) launch(line string, e *wire.Exec) error {
	boot := bootLine
	if r.tty {
		boot = strings.Replace(bootTTYLine, "%s", r.token()+"-tty", 1)
		payload := ptyPayload(e.TTY.Term, uint32(e.TTY.Cols), uint32(e.TTY.Rows), 0, 0, nil)
		if err := request(r.ch, "pty-req", payload); err != nil {
			return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s gave no terminal: %w", r.place(), err)
		}
	}
	if err := request(r.ch, "exec", ssh.Marshal(struct{ Line string }{boot})); err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s runs no commands: %w", r.place(), err)
	}
	if r.tty {
		select {
		case <-r.ready:
		case <-r.done:
			return r.noStart()
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		}
	}
	if _, err := io.WriteString(r.ch, line); err != nil {
		return r.noStart()
	}
	if r.s.in == nil && !r.tty {
		r.ch.CloseWrite()
	}
	select {
	case err := <-r.started:
		return r.begin(e, err)
	case <-r.ctx.Done():
	}
	// It may run by now, and then it has to be ended.
	select {
	case err := <-r.started:
		return r.begin(e, err)
	case <-time.After(lostStart):
		r.stop(false)
		r.awaitStop()
		return context.Cause(r.ctx)
	}
}

// begin goes on when it is known how the command began.
func (r *sshdProc) begin(e *wire.Exec, err error) error {
	switch {
	case err == errNoDir:
		return hpcexec.Errorf(hpcexec.ErrInvalid, "directory %s: not there on %s, or not to be entered", e.Dir, r.place())
	case err != nil:
		return err
	}
	r.run()
	return nil
}

// run is what begins once the command runs.
func (r *sshdProc) run() {
	limit := int64(0)
	if r.timeout > 0 {
		limit = int64((r.timeout + limitSlack + time.Second - 1) / time.Second)
		r.timer = time.AfterFunc(r.timeout, func() { r.stop(true) })
	}
	r.peer.watcher.order("+ %s %d %d", r.mark, r.group, limit)
	switch {
	case r.tty:
		in := r.s.in
		if in == nil {
			in = strings.NewReader("")
		}
		keys := &lastByte{r: in, last: '\n'}
		go copyIn(r.ch, keys, func() { r.ch.Write(keys.eof()) })
	case r.s.in != nil:
		go copyIn(r.ch, r.s.in, func() { r.ch.CloseWrite() })
	}
	r.unwatch = context.AfterFunc(r.ctx, func() { r.stop(false) })
}

// A lastByte knows the last byte that was read, '\n' to begin with.
type lastByte struct {
	r    io.Reader
	last byte
}

func (l *lastByte) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if n > 0 {
		l.last = p[n-1]
	}
	return n, err
}

// eof is what a terminal takes for the end of input: the key once at the
// beginning of a line, else twice.
func (l *lastByte) eof() []byte {
	if l.last == '\n' {
		return []byte{4}
	}
	return []byte{4, 4}
}

func (r *sshdProc) place() string { return r.peer.host.opts.Place }

// noStart is the error of a session that ended before the command began.
func (r *sshdProc) noStart() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := printable(strings.TrimSpace(string(r.said)))
	if text == "" {
		text = "the session ended"
	}
	return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s ran no shell for the command: %s", r.place(), text)
}

// say keeps what comes before the command.
func (r *sshdProc) say(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if room := 1<<10 - len(r.said); room > 0 {
		r.said = append(r.said, b[:min(len(b), room)]...)
	}
}

// stdout reads what the script says and then copies the command's output.
func (r *sshdProc) stdout() {
	err := r.preamble()
	r.started <- err
	if err != nil {
		copyOut(nil, r.ch, nil, nil)
		return
	}
	r.copy(r.s.out, r.ch, func() { r.ch.SendRequest(requestEOW, false, nil) }, nil)
}

// preamble reads up to the line that says how the command began. What startup
// files of the user's shell print before is not the command's.
func (r *sshdProc) preamble() error {
	in := &byteReader{r: r.ch}
	if r.tty {
		before, ok := in.until([]byte(r.token() + "-tty"))
		r.say(before)
		if !ok {
			return r.noStart()
		}
		close(r.ready)
	}
	before, ok := in.until([]byte(r.token() + " "))
	r.say(before)
	if !ok {
		return r.noStart()
	}
	line, ok := in.until([]byte("\n"))
	if !ok {
		return r.noStart()
	}
	what, pid, _ := strings.Cut(strings.TrimRight(string(line), "\r"), " ")
	if what == saysNoDir {
		return errNoDir
	}
	group, err := strconv.Atoi(pid)
	if what != saysPID || err != nil || group < 2 {
		return r.noStart()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.group, r.began = group, time.Now()
	return nil
}

// errNoDir is replaced by an error with the directory's name.
var errNoDir = errors.New("no such directory")

// stderr leaves out what comes before the command.
func (r *sshdProc) stderr() {
	in := &byteReader{r: r.ch.Stderr()}
	before, ok := in.until([]byte(r.token() + "\n"))
	r.say(before)
	if ok {
		r.copy(r.s.err, in.r, nil, func() { r.signal("PIPE") })
	}
}

// copy is copyOut with an eye on whether it is still going on.
func (r *sshdProc) copy(w io.Writer, from io.Reader, failed, unread func()) {
	copyOut(r.watched(w), readerFunc(func(p []byte) (int, error) {
		n, err := from.Read(p)
		r.moved.Store(time.Now().UnixNano())
		select {
		case <-r.exited:
			if r.late.Add(int64(n)) > lateOutput {
				return n, io.EOF
			}
		default:
		}
		return n, err
	}), failed, unread)
}

func (r *sshdProc) watched(w io.Writer) io.Writer {
	if w == nil {
		return nil
	}
	return writerFunc(func(p []byte) (int, error) {
		r.inside.Add(1)
		defer r.inside.Add(-1)
		return w.Write(p)
	})
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// A byteReader reads up to a separator and no byte further.
type byteReader struct{ r io.Reader }

func (b *byteReader) until(sep []byte) (before []byte, ok bool) {
	var one [1]byte
	for {
		n, err := b.r.Read(one[:])
		if n == 1 {
			before = append(before, one[0])
			if bytes.HasSuffix(before, sep) {
				return before[:len(before)-len(sep)], true
			}
			if len(before) > 64<<10 {
				before = append(before[:0], before[len(before)-4<<10:]...)
			}
		}
		if err != nil {
			return before, false
		}
	}
}

// requests serves the channel's requests to its end.
func (r *sshdProc) requests(reqs <-chan *ssh.Request) {
	for req := range reqs {
		switch {
		case req.Type == "exit-status" && len(req.Payload) >= 4:
			r.ends(int(binary.BigEndian.Uint32(req.Payload)), "")
		case req.Type == "exit-signal":
			d := decoder{rest: req.Payload}
			name := d.string() // shown to nobody unless it is a signal's
			if n, ok := hpcexec.SignalNumber(name); ok {
				r.ends(128+n, name)
			} else {
				r.ends(128, "") // one that RFC 4254 has no name for
			}
		}
		req.Reply(false, nil)
	}
	r.outputs.Wait()
	close(r.done)
	r.released()
}

func (r *sshdProc) ends(code int, signal string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known {
		return
	}
	r.known, r.ended = true, time.Now()
	r.exit.Code, r.exit.Signal = code, signal
	close(r.exited)
}
