package session

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/place"
	"github.com/hpcexec/hpcexec/internal/rundir"
	"github.com/hpcexec/hpcexec/sshmux"
)

// Exec runs one command in a session, which is made and started where need be,
// or, without a name, in the bare place or in a session of its own that is
// removed after. A session that has died since is started again, unless the
// command may have run.
//
// Errors are those of hpcexec.Executor and *PendingError.
func (m *Manager) Exec(ctx context.Context, w Want, req hpcexec.Request) (hpcexec.Response, error) {
	p, release, err := m.Start(ctx, w, req)
	if err != nil {
		return hpcexec.Response{}, err
	}
	defer release()
	return p.Wait()
}

// Start is Exec for a caller that talks to the command while it runs. release
// must be called after Wait; it ends a session that was made for the command
// alone.
func (m *Manager) Start(ctx context.Context, w Want, req hpcexec.Request) (p hpcexec.Process, release func(), err error) {
	if err := req.Check(); err != nil {
		return nil, nil, err
	}
	if strings.Contains(w.Options.Place, "/") { // the session, named or not, is on the far side
		return m.startFar(ctx, w, req)
	}
	if w.Name == "" {
		return m.startUnnamed(ctx, w, req)
	}
	if err := CheckName(w.Name); err != nil {
		return nil, nil, err
	}
	release = func() {}
	if client, err := m.warm(w); err != nil {
		return nil, nil, err
	} else if client != nil {
		p, err := client.Start(ctx, req)
		if err == nil || !nothingRan(err) {
			return p, release, err
		}
	}
	client, err := m.open(ctx, w)
	if err != nil {
		return nil, nil, err
	}
	p, err = client.Start(ctx, req)
	return p, release, err
}

// nothingRan says that an error leaves no doubt that the command didn't start
// and that a fresh start of the session may mend it.
func nothingRan(err error) bool {
	return errors.Is(err, hpcexec.ErrUnavailable) || errors.Is(err, hpcexec.ErrAllocationGone)
}

// warm opens a session's control socket where there is one, after a look at
// nothing but the session's record: it is on the path of every command. It is
// nil where the session has to be looked at more closely.
func (m *Manager) warm(w Want) (*sshmux.Client, error) {
	rec, err := m.Dirs.Load(w.Name)
	if err != nil || rec.Start == nil {
		return nil, nil
	}
	if _, err := rec.Merge(w.Options); err != nil {
		return nil, err
	}
	dir, err := rundir.Get(m.Dirs.Home)
	if err != nil {
		return nil, err
	}
	client, err := sshmux.Open(controlPath(dir, w.Name))
	if err != nil {
		return nil, nil
	}
	return client, nil
}

// controlPath is the session's control socket on this node.
func controlPath(dir, name string) string { return rundir.SocketPath(dir, name) }

// The sockets of a host on this node: of its master, of the bare host through a
// shim, of the bare host through its sshd, and of the master of OpenSSH's that a
// person has logged in with. The signs are in no session's name.
func masterPath(dir, host string) string { return rundir.SocketPath(dir, "@"+host) }
func shimPath(dir, host string) string   { return rundir.SocketPath(dir, "+"+host) }
func plainPath(dir, host string) string  { return rundir.SocketPath(dir, "="+host) }
func loginPath(dir, host string) string  { return rundir.SocketPath(dir, "~"+host) }

// open makes and starts a session where need be and opens its control socket.
func (m *Manager) open(ctx context.Context, w Want) (*sshmux.Client, error) {
	unlock, err := m.lock(ctx, w.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	rec, err := m.make(w, false)
	if err != nil {
		return nil, err
	}
	return m.up(ctx, rec, w.Wait)
}

// up sees to it that a session runs, and opens its control socket. The session
// must be locked.
func (m *Manager) up(ctx context.Context, rec *Record, wait time.Duration) (*sshmux.Client, error) {
	state, err := m.live(ctx, rec)
	if err != nil {
		return nil, err
	}
	if state == nil {
		if err := m.start(ctx, rec, wait); err != nil {
			return nil, err
		}
		if state, err = m.Dirs.loadState(rec.Name); err != nil {
			return nil, err
		}
	}
	return m.attach(ctx, rec, state)
}

// attach makes the session's endpoint at the master of its node.
func (m *Manager) attach(ctx context.Context, rec *Record, state *State) (*sshmux.Client, error) {
	dir, err := rundir.Get(m.Dirs.Home)
	if err != nil {
		return nil, err
	}
	return m.endpoint(ctx, dest(rec, state), sshmux.Endpoint{
		Socket: controlPath(dir, rec.Name), Place: rec.Options.Place, Kind: sshmux.ShimSocket, Path: state.ShimSocket,
		BridgeCommand: []string{rec.Start.Exe, "bridge", state.ShimSocket},
	})
}

// endpoint has the master of a host serve an endpoint, and opens it.
func (m *Manager) endpoint(ctx context.Context, host string, e sshmux.Endpoint) (*sshmux.Client, error) {
	return onMaster(ctx, m, host, func(master *sshmux.Client) (*sshmux.Client, error) {
		if err := master.Attach(ctx, e); err != nil {
			return nil, err
		}
		return sshmux.Open(e.Socket)
	})
}

// onMaster does something that may be done twice with the master of a host.
// One that is found and dies before it answers is replaced.
func onMaster[T any](ctx context.Context, m *Manager, host string, do func(*sshmux.Client) (T, error)) (T, error) {
	for try := 1; ; try++ {
		var got T
		master, err := m.master(ctx, host)
		if err == nil {
			got, err = do(master)
		}
		if err == nil || try == 3 || !errors.Is(err, sshmux.ErrNoMaster) || ctx.Err() != nil {
			return got, err
		}
	}
}

// dest is what ssh calls the node of a session, or "local".
func dest(rec *Record, state *State) string {
	if host, ok := strings.CutPrefix(rec.Options.Place, "ssh:"); ok {
		return host
	}
	if self, err := selfID(); err == nil && self.Same(state.Node) {
		return "local"
	}
	return state.Addr
}

// master finds or starts the master of a host.
func (m *Manager) master(ctx context.Context, host string) (*sshmux.Client, error) {
	dir, err := rundir.Get(m.Dirs.Home)
	if err != nil {
		return nil, err
	}
	socket := masterPath(dir, host)
	return sshmux.EnsureMaster(ctx, sshmux.EnsureOptions{
		Host: host, Socket: socket,
		Argv: []string{m.Exe, "master", "--host", host, "--socket", socket, "--login", loginPath(dir, host)},
	})
}

// startUnnamed runs a command without a session's name.
func (m *Manager) startUnnamed(ctx context.Context, w Want, req hpcexec.Request) (hpcexec.Process, func(), error) {
	o, err := m.complete(w.Options)
	if err != nil {
		return nil, nil, err
	}
	p, err := place.Parse(o.Place)
	if err != nil {
		return nil, nil, err
	}
	none := func() {}
	if o.Image == "" {
		switch hop := p.Last(); hop.Kind {
		case place.Local:
			if req.Dir == "" {
				req.Dir, _ = os.Getwd()
			}
			proc, err := (&hpcexec.Local{}).Start(ctx, req)
			return proc, none, err
		case place.SSH:
			client, err := m.openHost(ctx, hop.Host)
			if err != nil {
				return nil, nil, err
			}
			proc, err := client.Start(ctx, req)
			return proc, none, err
		}
	}
	return m.startEphemeral(ctx, w, req)
}

// openHost opens the bare host: through the shim at the end of a session
// channel, or, where none can run, through sshd alone.
func (m *Manager) openHost(ctx context.Context, host string) (*sshmux.Client, error) {
	dir, err := rundir.Get(m.Dirs.Home)
	if err != nil {
		return nil, err
	}
	socket := shimPath(dir, host)
	if client, err := sshmux.Open(socket); err == nil {
		return client, nil
	}
	return m.endpoint(ctx, host, sshmux.Endpoint{
		Socket: socket, Place: "ssh:" + host, Kind: sshmux.ShimStdio, Command: []string{m.Exe, "shim", "--stdio"},
	})
}

// startEphemeral runs a command in a session of its own. The session's
// supervisor ends it when the connection that holds it ends, so it is gone
// after a kill of this process as well.
func (m *Manager) startEphemeral(ctx context.Context, w Want, req hpcexec.Request) (_ hpcexec.Process, _ func(), err error) {
	w.Name = "tmp-" + hpcexec.NewID()
	unlock, err := m.lock(ctx, w.Name)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	rec, err := m.make(w, true)
	if err != nil {
		return nil, nil, err
	}
	var hold interface{ Close() error }
	end := func() {
		if hold != nil {
			hold.Close()
		}
		// What must be gone goes even if the caller's context has ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWait)
		defer cancel()
		m.end(ctx, rec)
		m.Dirs.purge(rec)
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	client, err := m.up(ctx, rec, w.Wait)
	if err != nil {
		return nil, nil, err
	}
	if hold, err = m.hold(ctx, rec); err != nil {
		return nil, nil, err
	}
	p, err := client.Start(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	return p, end, nil
}
