package sshmux

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
)

// plainSession starts a plain session and gives what is connected to it.
func plainSession(t *testing.T, c *Client, s PlainSession) (p *Plain, in, out, errs *os.File, err error) {
	t.Helper()
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		return r, w
	}
	s.Stdin, in = pipe()
	out, s.Stdout = pipe()
	errs, s.Stderr = pipe()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	p, err = c.StartPlain(ctx, s)
	for _, f := range []*os.File{s.Stdin, s.Stdout, s.Stderr} {
		f.Close()
	}
	if err == nil {
		t.Cleanup(func() { p.Close() })
	}
	return p, in, out, errs, err
}

func TestPlainSession(t *testing.T) {
	c := attachShim(t, serveMaster(t, MasterOptions{}), serveShim(t))
	p, in, out, errs, err := plainSession(t, c, PlainSession{Command: "cat; echo err >&2; exit 3"})
	if err != nil {
		t.Fatal(err)
	}
	in.WriteString("data")
	in.Close()
	gotOut, _ := io.ReadAll(out)
	gotErr, _ := io.ReadAll(errs)
	code, err := p.Wait()
	if string(gotOut) != "data" || string(gotErr) != "err\n" || code != 3 || err != nil {
		t.Errorf("got %q, %q, code %d, error %v; want data, err, 3", gotOut, gotErr, code, err)
	}
}

func TestPlainSubsystem(t *testing.T) {
	c := attachShim(t, serveMaster(t, MasterOptions{}), serveShim(t))
	p, in, out, _, err := plainSession(t, c, PlainSession{Command: "sftp", Subsystem: true})
	if err != nil {
		t.Fatal(err)
	}
	in.Write([]byte{0, 0, 0, 5, 1, 0, 0, 0, 3}) // SSH_FXP_INIT, version 3
	var head [5]byte
	if _, err := io.ReadFull(out, head[:]); err != nil || head[4] != 2 {
		t.Errorf("got %v, %v, want SSH_FXP_VERSION", head, err)
	}
	in.Close()
	if code, err := p.Wait(); code != 0 || err != nil {
		t.Errorf("got code %d, error %v", code, err)
	}
	// OpenSSH's protocol tells of the session before it is asked for this.
	if p, _, _, _, err = plainSession(t, c, PlainSession{Command: "none", Subsystem: true}); err == nil {
		var code int
		if code, err = p.Wait(); err == nil && code == 0 {
			t.Error("no such subsystem: got an end without an error")
		}
	}
}

// Who hangs up doesn't know the end, and the session loses its streams.
func TestPlainClose(t *testing.T) {
	c := attachShim(t, serveMaster(t, MasterOptions{}), serveShim(t))
	p, _, out, _, err := plainSession(t, c, PlainSession{Command: "cat"})
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if _, err := p.Wait(); !errors.Is(err, hpcexec.ErrUnknownEnd) {
		t.Errorf("got %v, want ErrUnknownEnd", err)
	}
	if b, err := io.ReadAll(out); len(b) > 0 || err != nil {
		t.Errorf("got %q, %v, want the end", b, err)
	}
}
