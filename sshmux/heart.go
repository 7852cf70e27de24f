package sshmux

import (
	"context"
	"sync"
	"time"

	"github.com/hpcexec/hpcexec/internal/wire"
)

// A heart beats while commands run: it tells a shim that its client lives
// (wire.RequestBeat), and finds out whether the peer does. While nothing runs
// there is no traffic but what HostOptions.KeepAlive asks for.
type heart struct {
	host *Host

	mu      sync.Mutex
	running int // commands
	stopped bool
	timer   *time.Timer
	next    time.Time // when the timer fires; zero: it doesn't
	asked   time.Time // when the peer was last asked for an answer
}

// begin notes that a command starts.
func (b *heart) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running++
	if b.running == 1 {
		b.armLocked(wire.BeatInterval)
	}
}

// end notes that a command has ended.
func (b *heart) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running--
	// The timer goes on: stopping it and starting it anew costs each of many
	// short commands more than one that finds nothing to do.
}

// idle starts the beat of a connection that is watched also while nothing
// runs.
func (b *heart) idle() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armLocked(b.host.opts.KeepAlive)
}

func (b *heart) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	if b.timer != nil {
		b.timer.Stop()
	}
}

// armLocked has the timer fire in d, or earlier if it would anyway.
func (b *heart) armLocked(d time.Duration) {
	next := time.Now().Add(d)
	if b.stopped || !b.next.IsZero() && !b.next.After(next) {
		return
	}
	b.next = next
	if b.timer == nil {
		b.timer = time.AfterFunc(d, b.tick)
	} else {
		b.timer.Reset(d)
	}
}

func (b *heart) tick() {
	h := b.host
	b.mu.Lock()
	b.next = time.Time{}
	running := b.running > 0
	every := h.opts.KeepAlive
	if running && (every == 0 || every > pingEvery) {
		every = pingEvery
	}
	ask := every > 0 && time.Since(b.asked) >= every
	if ask {
		b.asked = time.Now()
	}
	switch {
	case running:
		b.armLocked(wire.BeatInterval)
	case every > 0:
		b.armLocked(every)
	}
	b.mu.Unlock()

	if ask {
		// Not here: until it is answered, the beat must go on.
		go h.Ping(context.Background())
	}
	if running && h.opts.Peer == PeerShim {
		h.conn.SendRequest(wire.RequestBeat, false, nil)
	}
}
