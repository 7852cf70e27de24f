package apptainer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
)

// A fileLock is an exclusive lock on a file of RunDir. It is an open file
// description lock, so it ends with the process that holds it and also counts
// between goroutines of one.
type fileLock struct{ f *os.File }

// release gives the lock back. The file stays: removing it would let two
// processes hold "the" lock on two files of one name.
func (l *fileLock) release() { l.f.Close() }

// tryLock takes the lock, or returns nil where another has it.
func tryLock(path string) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "lock file: %w", err)
	}
	lk := unix.Flock_t{Type: unix.F_WRLCK, Whence: 0}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk)
	if err == nil {
		return &fileLock{f}, nil
	}
	f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, nil
	}
	return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "lock %s: %w", path, err)
}

// lock waits for the first of several locks to become free.
func lock(ctx context.Context, what string, paths ...string) (*fileLock, error) {
	// From a random one on, so that waiters don't all look at the same.
	from := rand.IntN(len(paths))
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		for i := range paths {
			l, err := tryLock(paths[(from+i)%len(paths)])
			if l != nil || err != nil {
				return l, err
			}
		}
		if err := sleep(ctx, jitter(wait)); err != nil {
			return nil, fmt.Errorf("wait for %s: %w", what, err)
		}
	}
}

// lockName takes the lock of an instance name. Two `instance start` of one
// name at once lose the record: the loser's cleanup deletes the winner's.
func (r *Runtime) lockName(ctx context.Context, name string) (*fileLock, error) {
	return lock(ctx, "another start or stop of instance "+name, filepath.Join(r.RunDir, name+".lock"))
}

// startSlot takes one of a few slots that all starts of this user on this node
// share. Dozens of starts at once fail at random, and none is quicker for it.
func (r *Runtime) startSlot(ctx context.Context) (*fileLock, error) {
	paths := make([]string, startSlots)
	for i := range paths {
		paths[i] = filepath.Join(r.RunDir, fmt.Sprintf("apptainer-start.%d.lock", i))
	}
	return lock(ctx, "a free slot to start the instance", paths...)
}

const startSlots = 8

func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// sleep waits, and returns the cause where ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
