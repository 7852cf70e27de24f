package session

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

// The supervisor's control socket takes one question a connection: a line of
// JSON in, then any number of lines out, the last of them with Done set. The
// shim's own socket can't serve for this: what answers there runs inside the
// container and may lie.

// A question is what a client asks of a supervisor.
type question struct {
	Op    string `json:"op"` // "status", "stop", "snapshot", "hold"
	Token string `json:"token"`
	Note  string `json:"note,omitempty"`
}

// An answer is one line of a supervisor's reply.
type answer struct {
	Done     bool            `json:"done,omitempty"`
	Progress *Progress       `json:"progress,omitempty"`
	State    *State          `json:"state,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"`
	Error    *ErrorText      `json:"error,omitempty"`
}

// maxQuestion bounds a question; an answer is ours and needs no bound but the
// line's.
const (
	maxQuestion = 64 << 10
	maxAnswer   = 4 << 20
)

// ask puts one question over a connection, which it closes. progress may be
// nil. The end of the connection before the last line is ErrUnavailable.
func ask(ctx context.Context, conn io.ReadWriteCloser, q question, progress func(Progress)) (answer, error) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := put(conn, q); err != nil {
		return answer{}, err
	}
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, maxAnswer)
	for lines.Scan() {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			return answer{}, hpcexec.Errorf(hpcexec.ErrUnavailable, "supervisor: %w", err)
		}
		if a.Progress != nil && progress != nil {
			progress(*a.Progress)
		}
		if a.Done {
			return a, a.Error.Err()
		}
	}
	if ctx.Err() != nil {
		return answer{}, context.Cause(ctx)
	}
	err := lines.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return answer{}, hpcexec.Errorf(hpcexec.ErrUnavailable, "supervisor: %w", err)
}

// put sends a question.
func put(w io.Writer, q question) error {
	b, err := json.Marshal(q)
	if err != nil {
		return err
	}
	if _, err := w.Write(append(b, '\n')); err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "supervisor: %w", err)
	}
	return nil
}

// serveControl answers questions on a socket until it is closed. Each handler
// runs in a goroutine of its own; its error goes into the last line. gone is
// closed when the asker has hung up.
func serveControl(ln net.Listener, handle func(q question, gone <-chan struct{}, say func(answer)) (answer, error)) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(50 * time.Millisecond) // out of descriptors: others will be closed
			continue
		}
		go func() {
			defer conn.Close()
			if uc, ok := conn.(*net.UnixConn); !ok || wire.CheckPeer(uc) != nil {
				return
			}
			conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			line, err := bufio.NewReader(io.LimitReader(conn, maxQuestion)).ReadBytes('\n')
			if err != nil {
				return
			}
			conn.SetReadDeadline(time.Time{})
			gone := make(chan struct{})
			go func() {
				io.Copy(io.Discard, conn)
				close(gone)
			}()
			say := func(a answer) {
				b, err := json.Marshal(a)
				if err == nil {
					conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
					conn.Write(append(b, '\n'))
				}
			}
			var q question
			if err := json.Unmarshal(line, &q); err != nil {
				say(answer{Done: true, Error: errorText(hpcexec.Errorf(hpcexec.ErrInvalid, "question: %w", err))})
				return
			}
			a, err := handle(q, gone, say)
			a.Done, a.Error = true, errorText(err)
			say(a)
		}()
	}
}
