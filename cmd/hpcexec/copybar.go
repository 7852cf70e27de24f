package main

import (
	"os"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/hpcexec/hpcexec/internal/files"
)

// A copyBar shows how far a copy is, on a terminal.
type copyBar struct {
	w   *os.File
	off bool
	p   *mpb.Progress
	bar *mpb.Bar
	now files.Progress
}

func newCopyBar(w *os.File, off bool) *copyBar {
	return &copyBar{w: w, off: off || !term.IsTerminal(int(w.Fd()))}
}

// show is files.Options.Progress. The bar appears with the first call, so that
// a short copy has none.
func (b *copyBar) show(pr files.Progress) {
	if b.off {
		return
	}
	if b.p == nil {
		b.p = mpb.New(mpb.WithOutput(b.w), mpb.WithWidth(60))
		b.bar = b.p.New(0, mpb.BarStyle(),
			mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.Any(func(decor.Statistics) string { return "" })),
			mpb.AppendDecorators(
				decor.CountersKibiByte("% .1f / % .1f", decor.WCSyncSpace),
				decor.AverageSpeed(decor.SizeB1024(0), "% .1f", decor.WCSyncSpace),
				decor.AverageETA(decor.ET_STYLE_GO, decor.WCSyncSpace),
			))
	}
	// The total grows while the walk goes on; one more byte than that keeps
	// the bar from ending before the copy.
	b.bar.SetTotal(max(pr.AllBytes, pr.Bytes)+1, false)
	b.bar.SetCurrent(pr.Bytes)
}

// end takes the bar away.
func (b *copyBar) end() {
	if b.p == nil {
		return
	}
	b.bar.Abort(true)
	b.p.Wait()
}
