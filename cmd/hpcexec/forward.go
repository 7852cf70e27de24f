package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/session"
	"github.com/hpcexec/hpcexec/sshmux"
)

func (in *invocation) forwardCommand() *cli.Command {
	return &cli.Command{
		Name: "forward", Usage: "reach a port of a session from here, for notebooks",
		UsageText: "hpcexec forward NAME PORT|LOCAL:PORT|LOCAL:HOST:PORT…",
		Description: `Listens on this machine until Ctrl-C and carries each connection to a port as
the session sees it: by default on its localhost, under the same number. LOCAL
may be 0 for any that is free. A session that is stopped is started; one that
is started anew later is found again by the next connection.

EXAMPLES:
   hpcexec exec -s train -- sh -c 'jupyter lab --no-browser --port 8888 > jupyter.log 2>&1 &'
   hpcexec forward train 8888
   hpcexec forward train 0:8888 16006:6006`,
		Flags:  []cli.Flag{&cli.StringFlag{Name: "bind", Usage: "listen on `ADDR` instead of 127.0.0.1; whoever reaches it can connect then"}},
		Action: in.forward,
	}
}

// A portForward is one LOCAL:HOST:PORT.
type portForward struct {
	Local int    `json:"local"`
	Host  string `json:"host"` // as the session sees it
	Port  uint16 `json:"port"`
}

func parseForward(s string) (f portForward, err error) {
	bad := usageError("%q is not PORT, LOCAL:PORT or LOCAL:HOST:PORT", s)
	parts := strings.Split(s, ":")
	if len(parts) > 3 {
		// HOST may be an IPv6 address in brackets.
		parts = []string{parts[0], strings.Join(parts[1:len(parts)-1], ":"), parts[len(parts)-1]}
	}
	port, err := strconv.ParseUint(parts[len(parts)-1], 10, 16)
	if err != nil || port == 0 {
		return f, bad
	}
	f = portForward{Local: int(port), Host: "localhost", Port: uint16(port)}
	if len(parts) > 1 {
		local, err := strconv.ParseUint(parts[0], 10, 16)
		if err != nil {
			return f, bad
		}
		f.Local = int(local)
	}
	if len(parts) == 3 {
		f.Host = strings.TrimSuffix(strings.TrimPrefix(parts[1], "["), "]")
		if f.Host == "" {
			return f, bad
		}
	}
	return f, nil
}

func (in *invocation) forward(c *cli.Context) error {
	names, err := in.args(2, 100, "the name of a session and ports")
	if err != nil {
		return err
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	var forwards []portForward
	for _, s := range names[1:] {
		f, err := parseForward(s)
		if err != nil {
			return err
		}
		forwards = append(forwards, f)
	}
	if _, err := m.Dirs.Load(names[0]); err != nil {
		return err
	}
	var listeners []net.Listener
	defer func() {
		for _, ln := range listeners {
			ln.Close()
		}
	}()
	for i := range forwards {
		ln, err := listenPort(cmp.Or(c.String("bind"), "127.0.0.1"), forwards[i].Local)
		if err != nil {
			return err
		}
		listeners = append(listeners, ln)
		forwards[i].Local = ln.Addr().(*net.TCPAddr).Port
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		client, err := m.Connect(ctx, session.Want{Name: names[0]})
		if err != nil {
			return err
		}
		in.progress.clear()
		if in.json {
			if err := printJSON(in.out, map[string]any{"session": names[0], "forwards": forwards}); err != nil {
				return err
			}
		} else {
			for i, f := range forwards {
				fmt.Fprintf(in.out, "http://%s is port %d of %s in session %s; Ctrl-C ends it\n", listeners[i].Addr(), f.Port, f.Host, names[0])
			}
		}
		p := &forwarder{in: in, m: m, name: names[0], client: client}
		var serving sync.WaitGroup
		for i, f := range forwards {
			serving.Go(func() { p.serve(ctx, listeners[i], f) })
		}
		<-ctx.Done()
		for _, ln := range listeners {
			ln.Close()
		}
		serving.Wait()
		return nil // Ctrl-C is how it ends
	})
}

// listenPort listens on a port, 0 for any.
func listenPort(bind string, port int) (net.Listener, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(bind, strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "port %d is in use on this machine", port).
			WithHint("write 0:%d for any port that is free, or OTHER:%d", port, port)
	}
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "listen: %w", err)
	}
	return ln, nil
}

// A forwarder carries connections to one session.
type forwarder struct {
	in   *invocation
	m    *session.Manager
	name string

	mu     sync.Mutex
	client *sshmux.Client
}

// serve takes connections until the listener is closed, and ends with them.
func (p *forwarder) serve(ctx context.Context, ln net.Listener, f portForward) {
	var open sync.WaitGroup
	defer open.Wait()
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		open.Go(func() {
			defer conn.Close()
			if err := p.carry(ctx, conn, f); err != nil && ctx.Err() == nil {
				p.in.progress.clear()
				fmt.Fprintf(p.in.err, "hpcexec: port %d of %s: %v\n", f.Port, f.Host, err)
			}
		})
	}
}

func (p *forwarder) carry(ctx context.Context, conn net.Conn, f portForward) error {
	far, err := p.dial(ctx, f)
	if err != nil {
		return err
	}
	defer far.Close()
	stop := context.AfterFunc(ctx, func() {
		conn.Close()
		far.Close()
	})
	defer stop()
	done := make(chan struct{}, 2)
	half := func(dst, src net.Conn) {
		io.Copy(dst, src)
		if w, ok := dst.(interface{ CloseWrite() error }); ok {
			w.CloseWrite()
		}
		done <- struct{}{}
	}
	go half(far, conn)
	go half(conn, far)
	<-done
	<-done
	return nil
}

// dial connects to the port, and where the session's socket is gone finds the
// session again first.
func (p *forwarder) dial(ctx context.Context, f portForward) (net.Conn, error) {
	p.mu.Lock()
	client := p.client
	p.mu.Unlock()
	far, err := client.DialTCP(ctx, f.Host, f.Port)
	if err == nil || !errors.Is(err, sshmux.ErrNoMaster) {
		return far, err
	}
	if client, err = p.m.Connect(ctx, session.Want{Name: p.name}); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.client = client
	p.mu.Unlock()
	return client.DialTCP(ctx, f.Host, f.Port)
}
