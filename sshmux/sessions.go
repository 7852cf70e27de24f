package sshmux

import (
	"context"

	"golang.org/x/crypto/ssh"
)

// session opens a channel of type "session". done must be called once it is
// over.
func (h *Host) session(ctx context.Context) (ch ssh.Channel, reqs <-chan *ssh.Request, done func(), err error) {
	ch, reqs, err = h.conn.OpenChannel("session", nil)
	if err != nil {
		return nil, nil, nil, openError(h.opts.Place, err)
	}
	h.alive()
	return ch, reqs, func() {}, nil
}
