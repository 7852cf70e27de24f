package main

import (
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hpcexec/hpcexec/internal/session"
)

func TestProgress(t *testing.T) {
	say := func(text string) session.Progress { return session.Progress{Text: text} }
	tests := []struct {
		name  string
		quiet bool
		do    func(p *progress)
		want  string
	}{
		{"over at once", false, func(p *progress) {
			p.report(say("starting"))
			time.Sleep(progressDelay / 2)
			p.report(session.Progress{Stage: "ready", Text: "ready"})
			time.Sleep(2 * progressDelay)
		}, ""},
		{"it takes a while", false, func(p *progress) {
			p.report(say("submitted"))
			p.report(say("pending"))
			time.Sleep(2 * progressDelay)
			p.report(say("pending"))
			p.report(say("starting"))
		}, "hpcexec: pending\nhpcexec: starting\n"},
		{"a second wait", false, func(p *progress) {
			p.report(say("starting"))
			time.Sleep(2 * progressDelay)
			p.clear()
			p.report(say("stopping"))
			time.Sleep(progressDelay / 2)
			p.clear()
		}, "hpcexec: starting\n"},
		{"part of a whole", false, func(p *progress) {
			p.report(session.Progress{Text: "packing", Done: 1, Total: 4})
			time.Sleep(2 * progressDelay)
		}, "hpcexec: packing (25%)\n"},
		{"hostile text", false, func(p *progress) {
			p.report(say("a\nb\x1b[2J"))
			time.Sleep(2 * progressDelay)
		}, "hpcexec: a b\ufffd[2J\n"},
		{"quiet", true, func(p *progress) {
			p.report(say("starting"))
			time.Sleep(2 * progressDelay)
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := os.CreateTemp(t.TempDir(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			synctest.Test(t, func(t *testing.T) {
				p := newProgress(f, tt.quiet)
				tt.do(p)
				synctest.Wait()
				p.clear()
			})
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(f)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(b); got != tt.want {
				t.Errorf("got %q, want %q", got, strings.ReplaceAll(tt.want, "\x1b", "ESC"))
			}
		})
	}
}
