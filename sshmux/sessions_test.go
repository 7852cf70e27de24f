package sshmux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/sshtest"
)

func connectTest(t *testing.T, opts sshtest.Options) (*Host, *sshtest.Server) {
	t.Helper()
	server := sshtest.New(t, opts)
	conn, chans, reqs := server.Connect()
	h := NewHost(conn, chans, reqs, HostOptions{Place: "ssh:test", Peer: PeerSSHD})
	t.Cleanup(func() { h.Close() })
	return h, server
}

// Whatever MaxSessions is, commands wait for a session and none is refused;
// nor is there a second login.
func TestSessionsWait(t *testing.T) {
	for _, limit := range []int{1, 2, 10} {
		t.Run(fmt.Sprint("MaxSessions ", limit), func(t *testing.T) {
			h, server := connectTest(t, sshtest.Options{MaxSessions: limit})
			var all sync.WaitGroup
			for i := range 30 {
				all.Go(func() {
					var out bytes.Buffer
					resp, err := h.Run(t.Context(), hpcexec.Request{Args: []string{"echo", fmt.Sprint(i)}, Stdout: &out})
					if err != nil || resp.ExitCode != 0 || out.String() != fmt.Sprintln(i) {
						t.Errorf("%d: got %+v, %q, %v", i, resp, out.String(), err)
					}
				})
			}
			all.Wait()
			if n := server.Logins(); n != 1 {
				t.Errorf("got %d logins, want 1", n)
			}
		})
	}
}

// Where there is room for one session only, cancel still ends the whole tree.
func TestCancelWithOneSession(t *testing.T) {
	h, _ := connectTest(t, sshtest.Options{MaxSessions: 1})
	id := hpcexec.NewID()
	ctx, cancel := context.WithCancel(t.Context())
	p, err := h.Start(ctx, hpcexec.Request{ID: id, Args: []string{"sh", "-c", "setsid sleep 600 & sleep 600"}})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "the command", func() bool { return alive(t, id) >= 3 })
	cancel()
	if _, err := p.Wait(); !errors.Is(err, context.Canceled) || errors.Is(err, hpcexec.ErrUnknownEnd) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	wait(t, "the end of the tree", func() bool { return alive(t, id) == 0 })
}

// Who waits for a session gives up when its time has come.
func TestSessionsCancelWaiting(t *testing.T) {
	h, _ := connectTest(t, sshtest.Options{MaxSessions: 1})
	ctx, cancel := context.WithCancel(t.Context())
	p, err := h.Start(ctx, hpcexec.Request{Args: []string{"sleep", "600"}})
	if err != nil {
		t.Fatal(err)
	}
	short, done := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer done()
	if _, err := h.Run(short, hpcexec.Request{Args: []string{"true"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
	}
	cancel()
	p.Wait()
	if resp, err := h.Run(t.Context(), hpcexec.Request{Args: []string{"true"}}); err != nil || resp.ExitCode != 0 {
		t.Errorf("after the long one: got %+v, %v", resp, err)
	}
}

func TestSessionsLimit(t *testing.T) {
	var s sessions
	ctx := t.Context()
	open := func() {
		t.Helper()
		if err := s.enter(ctx); err != nil {
			t.Fatal(err)
		}
		s.opened()
	}
	full := func() bool {
		t.Helper()
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		err := s.enter(short)
		if err == nil {
			s.leave()
		}
		return errors.Is(err, context.DeadlineExceeded)
	}
	waiters := func(n int) {
		t.Helper()
		wait(t, "a waiter", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.waiting) == n })
	}
	for range 3 {
		open()
	}
	for range 5 { // more who try at once
		s.enter(ctx)
	}
	for range 5 {
		if others := s.refused(); others != 3 {
			t.Errorf("got %d others, want 3", others)
		}
	}
	if s.max() != 3 || !full() {
		t.Errorf("got the limit %d, full %v, want 3 and true", s.max(), full())
	}

	// Refusals while sessions end don't make it forget what it has seen.
	s.closed()
	s.closed()
	s.enter(ctx)
	s.refused()
	if s.max() != 3 {
		t.Errorf("got the limit %d, want the 3 that there were", s.max())
	}
	s.wake()
	open()
	open()

	// A slot goes to who waits; one that gives up takes nobody's turn.
	entered, left := make(chan error), make(chan error)
	gone, give := context.WithCancel(ctx)
	go func() { left <- s.enter(gone) }()
	waiters(1)
	go func() { entered <- s.enter(ctx) }()
	waiters(2)
	give()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	s.closed()
	if err := <-entered; err != nil {
		t.Error(err)
	}
	s.opened()

	// After a while one more is tried.
	for range tryAbove * 3 {
		s.closed()
		open()
	}
	if s.max() != 4 || full() {
		t.Errorf("got the limit %d, full %v, want 4 and false", s.max(), full())
	}
}

// writeProgram writes an executable file. A child that is between fork and exec
// at that moment would keep it from being run, so another process writes it.
func writeProgram(t *testing.T, path, text string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `cat >"$1" && chmod 755 "$1"`, "sh", path)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Login shells that aren't POSIX's, that talk before the command, or that are
// none.
func TestLoginShells(t *testing.T) {
	dir := t.TempDir()
	tests := []struct {
		name, script string
		wantErr      error
	}{
		{"talks on both streams", `printf 'Welcome! '; echo warning >&2; exec /bin/sh "$@"`, nil},
		{"no login", `echo 'This account is currently not available.'; exit 1`, hpcexec.ErrUnavailable},
		{"says nothing", `exit 0`, hpcexec.ErrUnavailable},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			shell := fmt.Sprintf("%s/shell%d", dir, i)
			writeProgram(t, shell, "#!/bin/sh\n"+tt.script+"\n")
			h, _ := connectTest(t, sshtest.Options{Shell: shell})
			var out, errs bytes.Buffer
			resp, err := h.Run(t.Context(), hpcexec.Request{Args: []string{"sh", "-c", "echo out; echo err >&2"}, Stdout: &out, Stderr: &errs})
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("got error %v, want %v", err, tt.wantErr)
			}
			if err == nil && (resp.ExitCode != 0 || out.String() != "out\n" || errs.String() != "err\n") {
				t.Errorf("got %+v, %q, %q, want what the command wrote alone", resp, out.String(), errs.String())
			}
		})
	}
}

// A server that doesn't know signal requests, and a place where the watcher
// does it.
func TestSignalThroughWatcher(t *testing.T) {
	h, _ := connectTest(t, sshtest.Options{NoSignal: true})
	var out bytes.Buffer
	up := make(chan struct{})
	var once sync.Once
	p, err := h.Start(t.Context(), hpcexec.Request{
		Args:   []string{"sh", "-c", `trap 'echo got it; exit 9' USR1; echo up >&2; while :; do sleep 0.05; done`},
		Stdout: &out,
		Stderr: writerFunc(func(p []byte) (int, error) {
			once.Do(func() { close(up) })
			return len(p), nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	<-up
	if err := p.Signal("USR1"); err != nil {
		t.Fatal(err)
	}
	resp, err := p.Wait()
	if err != nil || resp.ExitCode != 9 || out.String() != "got it\n" {
		t.Errorf("got %+v, %q, %v", resp, out.String(), err)
	}
	if err := p.Signal("USR1"); !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("after the end: got error %v, want ErrInvalid", err)
	}
}
