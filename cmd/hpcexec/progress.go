package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/hpcexec/hpcexec/internal/session"
)

// progressDelay is how long something may take before anybody is told: what
// is over at once leaves no lines in people's logs.
const progressDelay = time.Second

// progress tells people what a start waits for: one line that is rewritten on
// a terminal, a line per change elsewhere.
type progress struct {
	w        *os.File
	quiet    bool
	terminal bool
	delay    time.Duration

	mu     sync.Mutex
	text   string      // the latest report
	shown  string      // what was printed last
	active bool        // the terminal's line has text
	late   bool        // the delay is over: print at once
	timer  *time.Timer // of the delay; nil between two waits
}

func newProgress(w *os.File, quiet bool) *progress {
	return &progress{w: w, quiet: quiet, terminal: !quiet && term.IsTerminal(int(w.Fd())), delay: progressDelay}
}

// report is session.Manager.Progress.
func (p *progress) report(ev session.Progress) {
	text := strings.ReplaceAll(safeText([]byte(ev.Text)), "\n", " ")
	if ev.Total > 0 {
		text += fmt.Sprintf(" (%d%%)", 100*ev.Done/ev.Total)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quiet {
		return
	}
	if text == "" || ev.Stage == "ready" {
		p.clearLocked()
		return
	}
	p.text = text
	if p.late {
		p.printLocked()
	} else if p.timer == nil {
		p.timer = time.AfterFunc(p.delay, p.overdue)
	}
}

// overdue is called when the delay is over.
func (p *progress) overdue() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil { // it may have been cleared meanwhile
		p.late = true
		p.printLocked()
	}
}

func (p *progress) printLocked() {
	text := p.text
	if text == p.shown {
		return
	}
	p.shown = text
	if !p.terminal {
		fmt.Fprintf(p.w, "hpcexec: %s\n", text)
		return
	}
	if cols, _, err := term.GetSize(int(p.w.Fd())); err == nil && cols > 12 {
		text = cut(text, cols-len("hpcexec: ")-1)
	}
	fmt.Fprintf(p.w, "\r\x1b[Khpcexec: %s", text)
	p.active = true
}

// clear says that nothing is waited for any more: it takes the line away, so
// that what is printed next has it.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLocked()
}

func (p *progress) clearLocked() {
	if p.timer != nil {
		p.timer.Stop()
	}
	p.timer, p.late = nil, false
	if p.active {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.active = false
	}
}

// cut shortens text to n characters.
func cut(text string, n int) string {
	if r := []rune(text); len(r) > n && n > 1 {
		return string(r[:n-1]) + "…"
	}
	return text
}
