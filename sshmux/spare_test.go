package sshmux

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
)

// A dyingConn is a connection whose other end may die with nobody there to say
// so: what is sent then is lost, and only its loss tells.
type dyingConn struct {
	net.Conn
	dead atomic.Bool
}

func (c *dyingConn) Write(b []byte) (int, error) {
	if c.dead.Load() {
		c.Conn.Close()
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func TestDeathIsSeenBeforeACommandIsSent(t *testing.T) {
	conn, err := net.Dial("unix", serveShim(t))
	if err != nil {
		t.Fatal(err)
	}
	dying := &dyingConn{Conn: conn}
	h, err := shimHost(t.Context(), dying, HostOptions{Place: "local"})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	req := hpcexec.Request{Args: []string{"true"}}
	if _, err := h.Run(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	time.Sleep(spareFor + 100*time.Millisecond)
	if resp, err := h.Run(t.Context(), req); err != nil || resp.ExitCode != 0 {
		t.Fatalf("after a rest: got %+v, %v", resp, err)
	}
	time.Sleep(spareFor + 100*time.Millisecond)
	dying.dead.Store(true)
	_, err = h.Run(t.Context(), req)
	if !errors.Is(err, hpcexec.ErrUnavailable) {
		t.Errorf("after the shim's death: got error %v, want ErrUnavailable: nothing ran, it may be tried again", err)
	}
}
