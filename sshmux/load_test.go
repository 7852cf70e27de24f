package sshmux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/sshtest"
)

// Many clients at once are all served, none gets what another wrote.
func TestManyClients(t *testing.T) {
	ep := attachShim(t, serveMaster(t, MasterOptions{}), serveShim(t))
	n := 300
	if testing.Short() {
		n = 50
	}
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			var out, errs bytes.Buffer
			resp, err := ep.Run(t.Context(), hpcexec.Request{
				Args:  []string{"sh", "-c", "cat; echo $1 >&2; exit $2", "sh", fmt.Sprint(i), fmt.Sprint(i % 100)},
				Stdin: strings.NewReader(fmt.Sprint("in ", i)), Stdout: &out, Stderr: &errs,
			})
			if err != nil || resp.ExitCode != i%100 || out.String() != fmt.Sprint("in ", i) || errs.String() != fmt.Sprintln(i) {
				t.Errorf("%d: got %+v, %q, %q, %v", i, resp, out.String(), errs.String(), err)
			}
		})
	}
	all.Wait()
}

// Who doesn't read its output delays nobody else.
func TestSlowReaderAlone(t *testing.T) {
	ep := attachShim(t, serveMaster(t, MasterOptions{}), serveShim(t))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var slow []hpcexec.Process
	for range 4 {
		p, err := ep.Start(ctx, hpcexec.Request{Args: []string{"sh", "-c", "while :; do echo y; done"}, Stdout: w})
		if err != nil {
			t.Fatal(err)
		}
		slow = append(slow, p)
	}
	w.Close()
	time.Sleep(100 * time.Millisecond) // until everything is full
	for range 20 {
		began := time.Now()
		if resp, err := ep.Run(t.Context(), hpcexec.Request{Args: []string{"true"}}); err != nil || resp.ExitCode != 0 {
			t.Fatalf("got %+v, %v", resp, err)
		}
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("a command took %v", d)
		}
	}
	cancel()
	for _, p := range slow {
		if _, err := p.Wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("got error %v, want %v", err, context.Canceled)
		}
	}
}

func TestLink(t *testing.T) {
	server := sshtest.New(t, sshtest.Options{})
	var mu sync.Mutex
	dials, fail := 0, error(nil)
	l := &link{budget: true, dial: func(ctx context.Context) (*Host, error) {
		mu.Lock()
		defer mu.Unlock()
		dials++
		if fail != nil {
			return nil, fail
		}
		return dialTest(server)(ctx)
	}}
	defer l.close()
	set := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		fail = err
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return dials
	}

	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if _, err := l.get(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if count() != 1 {
		t.Errorf("got %d connections for ten who asked at once, want 1", count())
	}

	// A connection that has been silent is asked before it is used.
	h := l.now()
	h.pulse.heard.Store(time.Now().Add(-2 * staleAfter).UnixNano())
	if again, err := l.get(t.Context()); again != h || err != nil || h.pulse.silence() > staleAfter {
		t.Errorf("a silent connection that lives: got another one, or %v", err)
	}

	// One that is dead is made anew.
	server.Break()
	<-h.Done()
	if again, err := l.get(t.Context()); again == h || err != nil {
		t.Errorf("a dead connection: got it again, or %v", err)
	}

	// A host that can't be reached isn't tried all the time.
	set(hpcexec.Errorf(hpcexec.ErrNeedsLogin, "no"))
	server.Break()
	<-l.host.Done()
	before := count()
	for range 5 {
		if _, err := l.get(t.Context()); !errors.Is(err, hpcexec.ErrNeedsLogin) {
			t.Errorf("got error %v, want ErrNeedsLogin", err)
		}
	}
	if n := count() - before; n != 1 {
		t.Errorf("got %d attempts within a second, want 1", n)
	}
	set(nil)
	l.mu.Lock()
	l.notUntil = time.Time{}
	l.mu.Unlock()
	if _, err := l.get(t.Context()); err != nil {
		t.Error(err)
	}
	l.close()
	if _, err := l.get(t.Context()); !errors.Is(err, hpcexec.ErrUnavailable) {
		t.Errorf("after close: got error %v, want ErrUnavailable", err)
	}
}

func TestEndpoints(t *testing.T) {
	master := serveMaster(t, MasterOptions{})
	shim1, shim2 := serveShim(t), serveShim(t)
	ctx := t.Context()
	ep := attachShim(t, master, shim1)
	e := Endpoint{Socket: ep.socket, Place: "local", Kind: ShimSocket, Path: shim1, SharesFilesystem: true}

	// The same again changes nothing: what runs goes on.
	p, err := ep.Start(ctx, hpcexec.Request{Args: []string{"sleep", "0.2"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := master.Attach(ctx, e); err != nil {
		t.Fatal(err)
	}
	if resp, err := p.Wait(); err != nil || resp.ExitCode != 0 {
		t.Errorf("got %+v, %v", resp, err)
	}

	// Another one takes its place.
	e.Path, e.Place = shim2, "other"
	if err := master.Attach(ctx, e); err != nil {
		t.Fatal(err)
	}
	if resp, err := ep.Run(ctx, hpcexec.Request{Args: []string{"true"}}); err != nil || resp.Place != "other" {
		t.Errorf("got %+v, %v, want the new place", resp, err)
	}
	if got := ep.Properties().Place; got != "local" && got != "other" {
		t.Errorf("got place %q", got)
	}

	for name, bad := range map[string]Endpoint{
		"no kind":                {Socket: ep.socket, Place: "x"},
		"no path":                {Socket: ep.socket, Place: "x", Kind: ShimSocket},
		"the master's socket":    {Socket: master.socket, Place: "x", Kind: ShimSocket, Path: shim1},
		"ssh without a host":     {Socket: ep.socket + "2", Place: "x", Kind: SSH},
		"a path that is no path": {Socket: "ep", Place: "x", Kind: ShimSocket, Path: shim1},
	} {
		if err := master.Attach(ctx, bad); !errors.Is(err, hpcexec.ErrInvalid) {
			t.Errorf("%s: got error %v, want ErrInvalid", name, err)
		}
	}

	// Another master doesn't take it away.
	if err := serveMaster(t, MasterOptions{}).Attach(ctx, e); !errors.Is(err, hpcexec.ErrUnavailable) {
		t.Errorf("a second master: got error %v, want ErrUnavailable", err)
	}

	if err := master.Detach(ctx, ep.socket); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(ep.socket); !errors.Is(err, ErrNoMaster) {
		t.Errorf("after detach: got error %v, want %v", err, ErrNoMaster)
	}
	if err := master.Detach(ctx, ep.socket); !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("detach again: got error %v, want ErrInvalid", err)
	}
	if resp, err := master.Run(ctx, hpcexec.Request{Args: []string{"true"}}); !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("a command at a master without a host: got %+v, %v, want ErrInvalid", resp, err)
	}
}

// Where the SSH server doesn't reach the shim's socket, the bridge does.
func TestEndpointBridge(t *testing.T) {
	server := sshtest.New(t, sshtest.Options{NoForward: true})
	master := serveMaster(t, MasterOptions{Host: "test", Dial: dialTest(server)})
	shim := serveShim(t)
	e := Endpoint{Socket: tempDir(t) + "/ep", Place: "x", Kind: ShimSocket, Path: shim}
	if err := master.Attach(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	c, err := Open(e.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Run(t.Context(), hpcexec.Request{Args: []string{"true"}}); !errors.Is(err, hpcexec.ErrUnavailable) {
		t.Errorf("without a bridge: got error %v, want ErrUnavailable", err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e.BridgeCommand = []string{exe, "bridge", shim}
	if err := master.Attach(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if resp, err := c.Run(t.Context(), hpcexec.Request{Args: []string{"sh", "-c", "exit 6"}}); err != nil || resp.ExitCode != 6 {
			t.Errorf("got %+v, %v", resp, err)
		}
	}
	e.BridgeCommand = []string{"sh", "-c", "echo the bridge is out >&2; exit 3"}
	if err := master.Attach(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	_, err = c.Run(t.Context(), hpcexec.Request{Args: []string{"true"}})
	if !errors.Is(err, hpcexec.ErrUnavailable) || !strings.Contains(err.Error(), "the bridge is out") {
		t.Errorf("got error %v, want ErrUnavailable with what the bridge says", err)
	}
}

// A shim at the end of a command, on this machine and through an SSH server.
func TestEndpointStdio(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := sshtest.New(t, sshtest.Options{})
	for name, master := range map[string]*Client{
		"near": serveMaster(t, MasterOptions{}),
		"far":  serveMaster(t, MasterOptions{Host: "test", Dial: dialTest(server)}),
	} {
		t.Run(name, func(t *testing.T) {
			e := Endpoint{Socket: tempDir(t) + "/ep", Place: "x", Kind: ShimStdio, Command: []string{exe, "shim", "--stdio"}}
			if err := master.Attach(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			c, err := Open(e.Socket)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var all sync.WaitGroup
			for range 30 { // more than MaxSessions: they travel in one session
				all.Go(func() {
					if resp, err := c.Run(t.Context(), hpcexec.Request{Args: []string{"sh", "-c", "exit 6"}}); err != nil || resp.ExitCode != 6 {
						t.Errorf("got %+v, %v", resp, err)
					}
				})
			}
			all.Wait()
			if err := master.Detach(context.Background(), e.Socket); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDialThrough(t *testing.T) {
	server := sshtest.New(t, sshtest.Options{})
	port := echoServer(t)
	for name, c := range map[string]*Client{
		"near": serveMaster(t, MasterOptions{}),
		"far":  serveMaster(t, MasterOptions{Host: "test", Dial: dialTest(server)}),
		"shim": attachShim(t, serveMaster(t, MasterOptions{}), serveShim(t)),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := c.DialTCP(t.Context(), "127.0.0.1", uint16(port))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			data := bytes.Repeat([]byte("0123456789"), 100_000)
			go func() {
				conn.Write(data)
				conn.(interface{ CloseWrite() error }).CloseWrite()
			}()
			var got bytes.Buffer
			if _, err := got.ReadFrom(conn); err != nil || !bytes.Equal(got.Bytes(), data) {
				t.Errorf("got %d bytes, %v, want %d", got.Len(), err, len(data))
			}
			if _, err := c.DialUnix(t.Context(), "/no/such/socket"); !errors.Is(err, hpcexec.ErrUnavailable) {
				t.Errorf("got error %v, want ErrUnavailable", err)
			}
		})
	}
}
