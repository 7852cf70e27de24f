package session

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/rundir"
	"github.com/hpcexec/hpcexec/overlay"
	"github.com/hpcexec/hpcexec/sshmux"
)

// stopWait bounds how long a client waits for a session's end.
const stopWait = 30 * time.Second

// Stop ends a session: its commands get TERM, then KILL; the instance ends,
// the lease is given back, the allocation released. The overlay stays. It
// returns when all of that is proven. Stopping a stopped session is no error.
func (m *Manager) Stop(ctx context.Context, name string) (Info, error) {
	rec, unlock, err := m.lockKnown(ctx, name)
	if err != nil {
		return Info{}, err
	}
	defer unlock()
	if err := m.end(ctx, rec); err != nil {
		return Info{}, err
	}
	return m.info(ctx, rec)
}

// end stops a session. The session must be locked.
func (m *Manager) end(ctx context.Context, rec *Record) error {
	state, err := m.Dirs.loadState(rec.Name)
	if err != nil {
		return err
	}
	m.adopt(rec, state)
	if rec.Start == nil {
		return nil
	}
	m.detach(ctx, rec.Name)
	if state != nil && state.Token == rec.Start.Token && state.Phase != Stopped && state.Phase != Failed {
		m.say(Progress{Session: rec.Name, Stage: "stopping", JobID: state.JobID, Text: "session " + rec.Name + " is stopping"})
		conn, err := m.dialControl(ctx, rec, state)
		if err == nil {
			_, err = ask(ctx, conn, question{Op: "stop", Token: state.Token}, nil)
		}
		switch {
		case err == nil:
			if err := m.ended(ctx, rec, state); err != nil {
				return err
			}
		case reached(err) == dead:
			if err := m.reap(ctx, rec, state, true); err != nil {
				return err
			}
			return m.bury(ctx, rec)
		case m.isSlurm(rec): // the job's end tells its supervisor as well
			if err := m.cancelJob(ctx, rec); err != nil {
				return err
			}
			if err := m.ended(ctx, rec, state); err != nil {
				return err
			}
		default:
			return hpcexec.Errorf(kindOf(err), "session %s on %s can't be stopped: %w", rec.Name, state.Node.Host, err)
		}
	}
	return m.forget(ctx, rec)
}

// detach removes the session's endpoint on this node, if there is one.
func (m *Manager) detach(ctx context.Context, name string) {
	dir, err := rundir.Get(m.Dirs.Home)
	if err != nil {
		return
	}
	if client, err := sshmux.Open(controlPath(dir, name)); err == nil {
		client.Stop(ctx)
	}
}

// hold keeps an ephemeral session until the connection that is returned is
// closed.
func (m *Manager) hold(ctx context.Context, rec *Record) (interface{ Close() error }, error) {
	state, err := m.Dirs.loadState(rec.Name)
	if err != nil {
		return nil, err
	}
	conn, err := m.dialControl(ctx, rec, state)
	if err != nil {
		return nil, err
	}
	if err := put(conn, question{Op: "hold", Token: state.Token}); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// Remove stops a session and removes it with its overlay. Its snapshots stay.
func (m *Manager) Remove(ctx context.Context, name string) error {
	rec, unlock, err := m.lockKnown(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := m.end(ctx, rec); err != nil {
		return err
	}
	return m.Dirs.purge(rec)
}

// purge removes a stopped session with its overlay. The record goes last, and
// says from the start that it goes: after a crash the next who finds it goes on.
// It may be called twice, and by two processes.
func (d Dirs) purge(rec *Record) error {
	if _, err := os.Lstat(d.recordPath(rec.Name)); errors.Is(err, fs.ErrNotExist) {
		return removeOverlay(rec) // two are at it
	}
	rec.Removing = true
	if err := d.save(rec); err != nil {
		return err
	}
	if err := removeOverlay(rec); err != nil {
		return err
	}
	for _, path := range []string{d.statePath(rec.Name), d.lockPath(rec.Name), d.logPath(rec.Name), d.logPath(rec.Name) + ".old", d.recordPath(rec.Name)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return hpcexec.Errorf(hpcexec.ErrUnavailable, "session %q: %w", rec.Name, err)
		}
	}
	return nil
}

// removeOverlay removes the overlay that a record names; it may be gone.
func removeOverlay(rec *Record) error {
	if rec.OverlayPath == "" {
		return nil
	}
	o, err := overlay.Open(rec.OverlayPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = o.Remove(context.Background(), leaseOptions(rec))
	}
	if err != nil {
		return hpcexec.Errorf(kindOf(err), "overlay of session %q: %w", rec.Name, err)
	}
	return nil
}

// sweep removes ephemeral sessions whose client and supervisor are gone.
func (m *Manager) sweep(ctx context.Context) {
	overlay.Sweep(ctx, m.Dirs.Overlays(), time.Hour) // what crashes left half made or half removed
	names, _ := m.Dirs.Names()
	for _, name := range names {
		rec, err := m.Dirs.Load(name)
		if err == nil && rec.Removing {
			if _, unlock, err := m.lockKnown(ctx, name); err == nil { // finishes it
				unlock()
			}
			continue
		}
		if err != nil || !rec.Ephemeral || time.Since(rec.Created) < time.Minute {
			continue
		}
		state, err := m.Dirs.loadState(name)
		if err != nil {
			continue
		}
		m.adopt(rec, state)
		if rec.Start != nil {
			if state == nil || state.Token != rec.Start.Token {
				if gone, err := m.jobGone(ctx, rec); err != nil || !gone || time.Since(rec.Start.At) < time.Minute {
					continue
				}
			} else if state.Phase != Stopped && state.Phase != Failed {
				if _, h, _ := m.inquire(ctx, rec, state); h != dead {
					continue
				}
			}
		}
		m.Dirs.purge(rec)
	}
}
