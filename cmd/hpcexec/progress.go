package main

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"

	"github.com/hpcexec/hpcexec/internal/session"
)

// progress tells people what a start waits for: one line that is rewritten on
// a terminal, a line per change elsewhere.
type progress struct {
	w        *os.File
	quiet    bool
	terminal bool

	mu     sync.Mutex
	last   string
	active bool // the terminal's line has text
}

func newProgress(w *os.File, quiet bool) *progress {
	return &progress{w: w, quiet: quiet, terminal: !quiet && term.IsTerminal(int(w.Fd()))}
}

// report is session.Manager.Progress.
func (p *progress) report(ev session.Progress) {
	text := strings.ReplaceAll(safeText([]byte(ev.Text)), "\n", " ")
	if ev.Total > 0 {
		text += fmt.Sprintf(" (%d%%)", 100*ev.Done/ev.Total)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.quiet, text == p.last:
		return
	case text == "" || ev.Stage == "ready":
		p.clearLocked()
	case p.terminal:
		if cols, _, err := term.GetSize(int(p.w.Fd())); err == nil && cols > 12 {
			text = cut(text, cols-len("hpcexec: ")-1)
		}
		fmt.Fprintf(p.w, "\r\x1b[Khpcexec: %s", text)
		p.active = true
	default:
		fmt.Fprintf(p.w, "hpcexec: %s\n", text)
	}
	p.last = text
}

// clear takes the line away, so that what is printed next has it.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLocked()
}

func (p *progress) clearLocked() {
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
