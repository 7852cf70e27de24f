package sshmux

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
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
// session, opened once the first command has its own: where a site allows only
// one, there is no watcher.
type watcher struct {
	host *Host

	mu      sync.Mutex
	begun   bool
	ch      ssh.Channel // nil until it runs
	refused bool        // there will be none
	orders  []string    // for when it runs
	ends    map[string]chan int
}

// program is the watcher as the line that bootLine reads.
func program(grace time.Duration) string {
	ticks := int(grace / (100 * time.Millisecond))
	return evalLine(fmt.Sprintf("var=%s grace=%d\n%s", markVar, ticks, watcherScript))
}

// start starts the watcher in the background, unless it was.
func (w *watcher) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun {
		return
	}
	w.begun = true
	go w.run()
}

func (w *watcher) run() {
	ch, reqs, done, err := w.open()
	if err != nil {
		w.mu.Lock()
		w.refused = true
		w.orders = nil
		w.endAllLocked()
		w.mu.Unlock()
		return
	}
	go func() {
		ssh.DiscardRequests(reqs)
		done()
	}()
	go copyOut(nil, ch.Stderr(), nil, nil)
	w.ready(ch)
	r := bufio.NewReader(ch)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			break
		}
		w.heard(strings.Fields(line))
	}
	ch.Close()
	// The connection has ended, most likely. Else a later command starts
	// another one.
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ch, w.begun = nil, false
	w.endAllLocked()
}

func (w *watcher) open() (ssh.Channel, <-chan *ssh.Request, func(), error) {
	ctx, cancel := context.WithTimeout(context.Background(), refusedFor)
	defer cancel()
	if w.host.sessions.max() == 1 {
		return nil, nil, nil, fmt.Errorf("no session for a watcher")
	}
	ch, reqs, done, err := w.host.session(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	ok, err := ch.SendRequest("exec", true, ssh.Marshal(struct{ Line string }{bootLine}))
	if err == nil && ok {
		_, err = ch.Write([]byte(program(w.host.grace())))
	}
	if err != nil || !ok {
		ch.Close()
		go func() {
			ssh.DiscardRequests(reqs)
			done()
		}()
		return nil, nil, nil, fmt.Errorf("no watcher: %w", err)
	}
	return ch, reqs, done, nil
}

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

// ready gives a new watcher the orders that were waiting for it.
func (w *watcher) ready(ch ssh.Channel) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ch = ch
	for _, o := range w.orders {
		ch.Write([]byte(o))
	}
	w.orders = nil
}

func (w *watcher) endAllLocked() {
	for _, c := range w.ends {
		close(c)
	}
	w.ends = nil
}

// order sends an order, or keeps it for the watcher that is being started. ok
// is false where there is none.
func (w *watcher) order(format string, args ...any) (ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.orderLocked(fmt.Sprintf(format, args...) + "\n")
}

func (w *watcher) orderLocked(line string) bool {
	switch {
	case w.ch != nil:
		_, err := w.ch.Write([]byte(line))
		return err == nil
	case w.begun && !w.refused:
		w.orders = append(w.orders, line)
		return true
	}
	return false
}

// end has the watcher end a command's tree. The channel gets how many
// processes are left, or is closed where nobody knows. ok is false where there
// is no watcher.
func (w *watcher) end(id string, group int, tty bool) (left <-chan int, ok bool) {
	t := 0
	if tty {
		t = 1
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.ends[id]; c != nil {
		return c, true // is being ended already
	}
	if !w.orderLocked(fmt.Sprintf("k %s %d %d\n", id, group, t)) {
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
	ch, reqs, done, err := w.host.session(ctx)
	if err != nil {
		return 0, err
	}
	go func() {
		ssh.DiscardRequests(reqs)
		done()
	}()
	defer ch.Close()
	stop := context.AfterFunc(ctx, func() { ch.Close() })
	defer stop()
	go copyOut(nil, ch.Stderr(), nil, nil)
	ok, err := ch.SendRequest("exec", true, ssh.Marshal(struct{ Line string }{bootLine}))
	if err != nil || !ok {
		return 0, fmt.Errorf("exec refused: %w", err)
	}
	t := 0
	if tty {
		t = 1
	}
	if _, err := fmt.Fprintf(ch, "%sk %s %d %d\n", program(w.host.grace()), id, group, t); err != nil {
		return 0, err
	}
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
