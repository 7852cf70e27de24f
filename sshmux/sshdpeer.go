package sshmux

import (
	"context"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

// defaultGrace is the time between TERM and KILL.
const defaultGrace = 2 * time.Second

// idVar has the request's ID in every place; markVar is the variable by which
// the watcher finds the processes of a command.
const (
	idVar   = "HPCEXEC_ID"
	markVar = "HPCEXEC_MARK"
)

// grace is the time between TERM and KILL on a PeerSSHD.
func (h *Host) grace() time.Duration {
	if h.opts.Grace > 0 {
		return h.opts.Grace
	}
	return defaultGrace
}

// An sshdPeer runs commands through any SSH server that has a POSIX shell.
//
//	session 1   sshd ── login shell ─exec─▶ sh ─reads a line─▶ exec COMMAND
//	session 2   sshd ── login shell ─exec─▶ sh: the watcher
type sshdPeer struct {
	host    *Host
	watcher *watcher
}

func newSSHDPeer(h *Host) peer {
	return &sshdPeer{host: h, watcher: &watcher{host: h}}
}

func (p *sshdPeer) close() {}

// start starts a command and returns once it runs.
func (p *sshdPeer) start(ctx context.Context, e *wire.Exec, s stdio) (proc, error) {
	if e.Background {
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "a plain SSH server keeps no commands in the background")
	}
	if err := checkSecrets(e.Secrets); err != nil {
		return nil, err
	}
	mark := hpcexec.NewID()
	sc := script{token: tokenPrefix + mark, mark: markVar + "=" + mark, args: e.Args, dir: e.Dir, merged: e.Merged}
	sc.env = hpcexec.MergeEnv(e.Env, e.Secrets, []string{idVar + "=" + e.ID})
	if e.TTY != nil && e.TTY.Term != "" && !slices.ContainsFunc(sc.env, func(v string) bool { return strings.HasPrefix(v, "TERM=") }) {
		sc.env = append(sc.env, "TERM="+e.TTY.Term)
	}
	line, err := sc.line()
	if err != nil {
		return nil, err
	}
	ch, reqs, done, err := p.watcher.session(ctx)
	if err != nil {
		return nil, err
	}
	r := &sshdProc{
		peer: p, ch: ch, s: s, ctx: ctx, mark: mark, tty: e.TTY != nil, timeout: e.Timeout,
		released: done, started: make(chan error, 1), exited: make(chan struct{}), done: make(chan struct{}),
	}
	r.serve(reqs)
	p.watcher.order("+ %s 0 0", mark)
	if err := r.launch(line, e); err != nil {
		p.watcher.order("- %s", mark)
		r.abandon()
		return nil, err
	}
	return r, nil
}

// request makes a channel request that must be granted.
func request(ch ssh.Channel, name string, payload []byte) error {
	ok, err := ch.SendRequest(name, true, payload)
	if err == nil && !ok {
		return errRefused
	}
	return err
}
