package overlay

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/atomicfile"
	"github.com/hpcexec/hpcexec/internal/hostid"
)

// A Lease is the right to write to an overlay. It beats until it is released
// or lost; a goroutine of it runs that long.
type Lease struct {
	dir  string
	step stepFunc
	lost chan struct{}
	stop chan struct{}
	done chan struct{} // closed by the goroutine

	release sync.Once

	mu         sync.Mutex
	cur        leaseFile // what is, or is to be, on disk
	err        error     // of the last beat
	isLost     bool
	releaseErr error
}

func startLease(dir string, cur leaseFile, opts AcquireOptions) *Lease {
	l := &Lease{
		dir: dir, cur: cur, step: opts.step,
		lost: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go l.run(opts.Beat)
	return l
}

func (l *Lease) run(every time.Duration) {
	defer close(l.done)
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-t.C:
		}
		l.mu.Lock()
		l.err = l.beatLocked()
		lost := l.isLost
		l.mu.Unlock()
		if lost {
			return
		}
	}
}

// Holder is what the lease says about its holder.
func (l *Lease) Holder() Holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cur.Holder
}

// Lost is closed when the lease is somebody else's, or the overlay is gone.
// Whoever writes must stop at once. It takes up to one beat to find out.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// Err is why the last beat failed, or nil. A lease whose beats fail is still
// held; it becomes lost only when another holder is seen, or no overlay.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		return nil
	}
	return diskError(l.dir, l.err)
}

// SetHelpers records the processes on this host that write to the overlay and
// may outlive this process. While one of them is alive nobody else gets the
// lease, though this process be dead.
func (l *Lease) SetHelpers(procs []hostid.Proc) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cur.Holder.Helpers = slices.Clone(procs)
	if err := l.beatLocked(); err != nil {
		return diskError(l.dir, err)
	}
	if l.isLost {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "overlay %s: the lease was lost", l.dir)
	}
	return nil
}

// Release gives the lease back. It may be called more than once, and after the
// lease was lost; the error of the first call is that of all.
func (l *Lease) Release() error {
	l.release.Do(func() {
		close(l.stop)
		<-l.done
		l.mu.Lock()
		defer l.mu.Unlock()
		l.checkLocked()
		if l.isLost {
			return
		}
		l.cur.Released = true
		l.cur.Holder.Helpers = nil
		if err := l.step.at("release"); err != nil {
			l.releaseErr = err
			return
		}
		if err := l.putLocked(); err != nil {
			l.releaseErr = diskError(l.dir, err)
		}
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.releaseErr
}

// beatLocked shows that the holder is alive.
func (l *Lease) beatLocked() error {
	if err := l.checkLocked(); err != nil || l.isLost {
		return err
	}
	if l.cur.Released {
		return fs.ErrClosed
	}
	if err := l.step.at("beat"); err != nil {
		return err
	}
	l.cur.Beat++
	l.cur.At = time.Now().UTC()
	return l.putLocked()
}

// checkLocked finds out whether the lease is lost. An error means that it
// isn't known; it is asked again with the next beat.
func (l *Lease) checkLocked() error {
	if l.isLost {
		return nil
	}
	list, err := numbers(l.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case len(list) > 0 && list[0] == l.cur.N:
		return nil
	case len(list) > 0 && list[0] > l.cur.N:
	default:
		// No file, though the directory is there. Names are cached on
		// some file systems: ask for this one.
		if _, err := os.Lstat(leasePath(l.dir, l.cur.N)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	l.isLost = true
	close(l.lost)
	return nil
}

// putLocked writes the lease's file.
func (l *Lease) putLocked() error {
	data, err := l.cur.encode()
	if err != nil {
		return err
	}
	path := leasePath(l.dir, l.cur.N)
	err = atomicfile.Write(path, data, 0o600)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		// A full disk must not make the holder look dead, nor keep it
		// from giving the lease back: the block of the old content is
		// there to write to.
		if inPlace(path, data) == nil {
			return nil
		}
	}
	return err
}

// inPlace writes data over a file's content of the same length. A reader may
// see half of each; readLease reads again then.
func inPlace(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != int64(len(data)) {
		return errors.New("another length")
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	return f.Sync()
}
