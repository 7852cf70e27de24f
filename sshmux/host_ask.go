package sshmux

import (
	"context"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

// Ping asks the peer for an answer. Where neither that nor anything else comes
// in 10 s the connection is closed: what runs on it has no known end. Errors are
// of kind hpcexec.ErrUnavailable.
func (h *Host) Ping(ctx context.Context) error {
	if h.opts.ping != nil {
		err := h.opts.ping(ctx)
		if err != nil && ctx.Err() == nil {
			h.conn.Close()
		} else if err == nil {
			h.pulse.beat()
		}
		return err
	}
	_, _, err := h.request(ctx, "keepalive@openssh.com", nil)
	return err
}

// Status asks a shim what it is doing. Errors are of kind
// hpcexec.ErrUnavailable, or hpcexec.ErrInvalid for another kind of peer.
func (h *Host) Status(ctx context.Context) (wire.Status, error) {
	ok, reply, err := h.request(ctx, wire.RequestStatus, nil)
	if err != nil {
		return wire.Status{}, err
	}
	if !ok {
		return wire.Status{}, hpcexec.Errorf(hpcexec.ErrInvalid, "%s has no shim that tells its status", h.opts.Place)
	}
	return wire.ParseStatus(reply)
}

// request makes a global request, bounded by ctx and pingWait. The end of ctx
// leaves the connection as it is: others use it too.
func (h *Host) request(ctx context.Context, name string, payload []byte) (bool, []byte, error) {
	type answer struct {
		ok    bool
		reply []byte
		err   error
	}
	got := make(chan answer, 1)
	go func() {
		answered := make(chan struct{})
		defer close(answered)
		go h.closeIfSilent(answered)
		ok, reply, err := h.conn.SendRequest(name, true, payload)
		got <- answer{ok, reply, err}
	}()
	select {
	case a := <-got:
		if a.err != nil {
			return false, nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s does not answer: %w", h.opts.Place, a.err)
		}
		h.pulse.beat()
		return a.ok, a.reply, nil
	case <-ctx.Done():
		return false, nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s has not answered yet: %w", h.opts.Place, context.Cause(ctx))
	}
}

// StopShim has a shim end its commands, TERM first, and then itself. It
// returns when the commands have ended, or with an error of kind
// hpcexec.ErrUnavailable when the shim doesn't say so before ctx ends.
func (h *Host) StopShim(ctx context.Context) error {
	_, _, err := h.request(ctx, wire.RequestStop, nil)
	return err
}

// closeIfSilent closes the connection unless an answer comes, or anything else
// does while it is waited for.
func (h *Host) closeIfSilent(answered <-chan struct{}) {
	for wait := pingWait; !closedWithin(answered, wait); wait = pingWait - h.pulse.silence() {
		if h.pulse.silence() >= pingWait {
			h.conn.Close()
			return
		}
	}
}

// openChannel opens a channel. The end of ctx ends the waiting for the peer's
// answer, whatever that is.
func (h *Host) openChannel(ctx context.Context, kind string, payload []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	if ctx.Done() == nil {
		return h.conn.OpenChannel(kind, payload)
	}
	type answer struct {
		ch   ssh.Channel
		reqs <-chan *ssh.Request
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		ch, reqs, err := h.conn.OpenChannel(kind, payload)
		got <- answer{ch, reqs, err}
	}()
	select {
	case a := <-got:
		return a.ch, a.reqs, a.err
	case <-ctx.Done():
		go func() {
			if a := <-got; a.err == nil {
				a.ch.Close()
				ssh.DiscardRequests(a.reqs)
			}
		}()
		return nil, nil, context.Cause(ctx)
	}
}
