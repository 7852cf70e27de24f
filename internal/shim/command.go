package shim

import (
	"context"
	"fmt"
	"io"
	"slices"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/proctree"
	"github.com/hpcexec/hpcexec/internal/wire"
)

// A command is one that runs, or is about to.
type command struct {
	session *session
	conn    *connection // nil in the background: it outlives its connection
	id      string
	cancel  context.CancelCauseFunc
	proc    hpcexec.Process // nil until it runs; session.mu guards it
}

// kill ends what is left of a command that was cancelled.
func (cmd *command) kill() {
	cmd.session.mu.Lock()
	p := cmd.proc
	cmd.session.mu.Unlock()
	if p == nil || p.Signal("KILL") != nil {
		return // it has ended; Local has seen to the rest of its tree
	}
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	cmd.session.c.srv.walker.Kill(ctx, proctree.Tree{Marker: cmd.id})
}

// exec serves exec@hpcexec.
func (s *session) exec(payload []byte) {
	e, err := s.readExec(payload)
	if err != nil {
		s.exit(hpcexec.Response{}, err)
		return
	}
	if !s.c.srv.begin() {
		s.exit(hpcexec.Response{}, errStopping)
		return
	}
	defer s.c.srv.end()
	req := hpcexec.Request{
		Args: e.Args, Env: e.Env, Secrets: e.Secrets, Dir: e.Dir, Timeout: e.Timeout, TTY: e.TTY, ID: e.ID,
		Stdout: &s.stdout, Stderr: discardAfter{s.ch.Stderr()},
	}
	if e.HasStdin {
		req.Stdin = s.ch
	}
	if e.Merged {
		req.Stderr = req.Stdout // one writer: Local makes it one pipe
	}
	if e.TTY == nil && e.DropStdout {
		req.Stdout = nil
	}
	if e.TTY == nil && e.DropStderr {
		req.Stderr = nil
	}
	resp, err := s.run(req, e.Background)
	if err == error(errCancel) && !resp.Ended.IsZero() {
		err = nil // the client knows why it ended, and asks how
	}
	s.exit(resp, err)
}

// exit says how a command ended.
func (s *session) exit(resp hpcexec.Response, err error) {
	x := wire.ExitOf(resp, err)
	s.ch.SendRequest(wire.RequestExit, false, x.Marshal())
	s.ch.Close()
}

// readExec reads the request, of which most may be channel data.
func (s *session) readExec(payload []byte) (wire.Exec, error) {
	if wire.Inline(payload) {
		return wire.ReadExec(payload, nil)
	}
	select {
	case s.c.long <- struct{}{}:
		defer func() { <-s.c.long }()
	case <-s.c.ctx.Done():
		return wire.Exec{}, context.Cause(s.c.ctx)
	}
	return wire.ReadExec(payload, s.ch)
}

// run runs a command to its end.
func (s *session) run(req hpcexec.Request, background bool) (hpcexec.Response, error) {
	srv := s.c.srv
	if req.Dir == "" {
		req.Dir = srv.dir()
	}
	if req.ID == "" {
		req.ID = hpcexec.NewID()
	}
	cmd := &command{session: s, conn: s.c, id: req.ID}
	parent := s.c.ctx
	if background {
		cmd.conn, parent = nil, srv.ctx
		// Nor does a cut, in the background.
		if req.Stdout != nil {
			req.Stdout = discardAfter{req.Stdout}
		}
		if req.Stderr != nil {
			req.Stderr = discardAfter{req.Stderr}
		}
	}
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	cmd.cancel = cancel
	srv.add(cmd)
	defer srv.remove(cmd)
	if !background {
		s.c.runs()
	}

	s.mu.Lock()
	s.cmd = cmd
	ended := s.ended
	s.mu.Unlock()
	if ended != nil && !(background && ended == errClosed) {
		cancel(ended)
	}

	p, err := srv.local.Start(ctx, req)
	if err == error(errStopped) {
		err = errStopping // it never ran
	}
	if err != nil {
		return hpcexec.Response{}, err
	}
	s.mu.Lock()
	cmd.proc = p
	for _, do := range s.pending {
		do(p)
	}
	s.pending = nil
	s.mu.Unlock()
	return p.Wait()
}

// A discardAfter is output that its reader's end doesn't fail.
type discardAfter struct{ w io.Writer }

func (d discardAfter) Write(p []byte) (int, error) {
	d.w.Write(p)
	return len(p), nil
}

// plain serves exec and shell of RFC 4254.
func (s *session) plain(args ...string) {
	req := hpcexec.Request{
		Args: args, Env: s.env, TTY: s.tty,
		Stdin: s.ch, Stdout: &s.stdout, Stderr: discardAfter{s.ch.Stderr()},
	}
	var resp hpcexec.Response
	err := error(errStopping)
	if s.c.srv.begin() {
		defer s.c.srv.end()
		resp, err = s.run(req, false)
	}
	if err != nil {
		// What hpcexec itself fails with; see docs/exit-codes.md.
		resp.ExitCode, resp.Signal = 125, ""
		fmt.Fprintf(s.ch.Stderr(), "hpcexec: %v\n", err)
	}
	s.ch.CloseWrite()
	s.exitPlain(resp)
	s.ch.Close()
}

// plainSignals are the signals that RFC 4254, section 6.10, has names for.
var plainSignals = []string{
	"ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT", "SEGV", "TERM", "USR1", "USR2",
}

// exitPlain says in the words of RFC 4254 how a command ended.
func (s *session) exitPlain(resp hpcexec.Response) {
	if slices.Contains(plainSignals, resp.Signal) {
		s.ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Name       string
			Core       bool
			Text, Lang string
		}{Name: resp.Signal}))
		return
	}
	s.ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(resp.ExitCode)}))
}
