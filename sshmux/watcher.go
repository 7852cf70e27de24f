package sshmux

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

//go:embed watcher.sh
var watcherScript string

// A watcher is a small shell program on a host whose server is not a shim. It
// knows the commands that run there, ends them when it is told to, and ends
// them all when the connection dies, which sshd itself doesn't. It takes one
// session; where a site allows only one, there is no watcher.
type watcher struct {
	host *Host

	mu      sync.Mutex
	ch      ssh.Channel   // nil unless it runs
	settled chan struct{} // nil: not begun; closed: it runs, or there is none
	ends    map[string]chan int
}

// program is the watcher as the line that bootLine reads.
func program(grace time.Duration) string {
	ticks := int(grace / (100 * time.Millisecond))
	return evalLine(fmt.Sprintf("var=%s grace=%d\n%s", markVar, ticks, watcherScript))
}

// session opens a session for a command. The first command has its session
// before the watcher, the others wait for the watcher, so that there is one
// where two sessions can be had. Whatever is sent to the host on the session
// comes after the order that registers the command with the watcher: no command
// runs unknown.
func (w *watcher) session(ctx context.Context) (ch ssh.Channel, reqs <-chan *ssh.Request, done func(), err error) {
	w.mu.Lock()
	settled := w.settled
	first := settled == nil
	if first {
		settled = make(chan struct{})
		w.settled = settled
	}
	w.mu.Unlock()
	if !first {
		select {
		case <-settled:
		case <-ctx.Done():
			return nil, nil, nil, context.Cause(ctx)
		}
		return w.host.session(ctx)
	}
	ch, reqs, done, err = w.host.session(ctx)
	if err != nil {
		w.settle(settled, nil, nil, err)
		return nil, nil, nil, err
	}
	wch, lines, werr := w.open()
	w.settle(settled, wch, lines, werr)
	return ch, reqs, done, nil
}

// settle notes that the watcher runs, or that there is none so far.
func (w *watcher) settle(settled chan struct{}, ch ssh.Channel, lines *bufio.Reader, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ch = ch
	close(settled)
	switch {
	case err == nil:
		go w.listen(ch, lines)
	case !errors.Is(err, errOneSession):
		w.settled = nil // the next command tries again
	}
}

// listen reads what the watcher says, to its end.
func (w *watcher) listen(ch ssh.Channel, lines *bufio.Reader) {
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		w.heard(strings.Fields(line))
	}
	ch.Close()
	// The connection has ended, most likely. Else the next command starts
	// another watcher.
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ch, w.settled = nil, nil
	for _, c := range w.ends {
		close(c)
	}
	w.ends = nil
}

// open starts the shell program and waits until it listens.
func (w *watcher) open() (ssh.Channel, *bufio.Reader, error) {
	ctx, cancel := context.WithTimeout(context.Background(), watcherWait)
	defer cancel()
	ch, end, err := w.shell(ctx, "", w.host.secondSession)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, end)
	defer stop()
	r := bufio.NewReader(ch)
	for {
		// Startup files of the user's shell may print something before.
		line, err := r.ReadString('\n')
		if err != nil {
			end()
			return nil, nil, errNoWatcher
		}
		if strings.HasSuffix(line, watcherReady+"\n") {
			return ch, r, nil
		}
	}
}

// shell opens a session, runs the watcher's program in it, and gives it orders
// to begin with. end closes the session.
func (w *watcher) shell(ctx context.Context, orders string, session sessionFunc) (ch ssh.Channel, end func(), err error) {
	ch, reqs, done, err := session(ctx)
	if err != nil {
		return nil, nil, err
	}
	go func() {
		ssh.DiscardRequests(reqs)
		done()
	}()
	go copyOut(nil, ch.Stderr(), nil, nil)
	if err = request(ch, "exec", ssh.Marshal(struct{ Line string }{bootLine})); err == nil {
		_, err = io.WriteString(ch, program(w.host.grace())+orders)
	}
	if err != nil {
		ch.Close()
		return nil, nil, err
	}
	return ch, func() { ch.Close() }, nil
}

// A sessionFunc opens a session, like Host.session.
type sessionFunc func(ctx context.Context) (ssh.Channel, <-chan *ssh.Request, func(), error)

var errNoWatcher = errors.New("the host runs no watcher")

const (
	// watcherReady is what the program says first.
	watcherReady = "hpcexec-watcher-ready"

	// watcherWait is how long a watcher may take to listen.
	watcherWait = 10 * time.Second
)

// heard serves a line of the watcher's.
func (w *watcher) heard(words []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(words) != 3 || words[0] != "d" {
		return
	}
	n, err := strconv.Atoi(words[2])
	if c := w.ends[words[1]]; c != nil && err == nil {
		c <- n
		delete(w.ends, words[1])
	}
}

// order sends an order. ok is false where there is no watcher.
func (w *watcher) order(format string, args ...any) (ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.orderLocked(fmt.Sprintf(format, args...))
}

func (w *watcher) orderLocked(order string) bool {
	if w.ch == nil {
		return false
	}
	_, err := io.WriteString(w.ch, order+"\n")
	return err == nil
}

// end has the watcher end a command's tree. The channel gets how many
// processes are left, or is closed where nobody knows. ok is false where there
// is no watcher.
func (w *watcher) end(id string, group int, tty bool) (left <-chan int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.ends[id]; c != nil {
		return c, true // is being ended already
	}
	if !w.orderLocked(endOrder(id, group, tty)) {
		return nil, false
	}
	c := make(chan int, 1)
	if w.ends == nil {
		w.ends = map[string]chan int{}
	}
	w.ends[id] = c
	return c, true
}

// endAlone ends a command's tree with a session of its own, for hosts that
// allow one at a time. The command's own session is closed.
func (w *watcher) endAlone(ctx context.Context, id string, group int, tty bool) (left int, err error) {
	ch, end, err := w.shell(ctx, endOrder(id, group, tty)+"\n", w.host.session)
	if err != nil {
		return 0, err
	}
	defer end()
	stop := context.AfterFunc(ctx, end)
	defer stop()
	r := bufio.NewReader(ch)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if words := strings.Fields(line); len(words) == 3 && words[0] == "d" {
			return strconv.Atoi(words[2])
		}
	}
}

func endOrder(id string, group int, tty bool) string {
	t := 0
	if tty {
		t = 1
	}
	return fmt.Sprintf("k %s %d %d", id, group, t)
}
