package overlay

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Usage is what an overlay holds.
type Usage struct {
	Bytes    int64 // on disk, as quotas count them; a sparse file's holes don't
	Apparent int64 // sum of the files' sizes
	Inodes   int64 // files, directories and all else

	// Unreadable is the number of directories that couldn't be listed, such
	// as the kernel's work directory with mode 000. What is in them is
	// missing from the sums.
	Unreadable int64
}

// Usage counts what the overlay holds, /tmp and leases included. A file with
// several names counts once, other file systems mounted inside don't count, and
// what vanishes meanwhile doesn't matter. It uses up to eight goroutines, since
// on a network file system the time goes by in waiting.
func (o *Overlay) Usage(ctx context.Context) (Usage, error) {
	u, err := usage(ctx, o.dir)
	if err != nil {
		return Usage{}, diskError(o.dir, err)
	}
	return u, nil
}

// A walker counts one tree. The directories still to be listed are a stack, so
// that it stays short.
type walker struct {
	dev uint64

	mu    sync.Mutex
	cond  *sync.Cond
	todo  []string
	busy  int // workers that may add to todo
	err   error
	sum   Usage
	links map[uint64]bool // inodes with several names, seen
}

func usage(ctx context.Context, root string) (Usage, error) {
	var st unix.Stat_t
	if err := unix.Lstat(root, &st); err != nil {
		return Usage{}, &fs.PathError{Op: "lstat", Path: root, Err: err}
	}
	w := &walker{dev: uint64(st.Dev), todo: []string{root}, links: map[uint64]bool{}}
	w.cond = sync.NewCond(&w.mu)
	w.add(&st)
	stop := context.AfterFunc(ctx, func() { w.fail(context.Cause(ctx)) })
	defer stop()
	var wg sync.WaitGroup
	for range min(8, 2*runtime.GOMAXPROCS(0)) {
		wg.Go(w.work)
	}
	wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sum, w.err
}

func (w *walker) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.cond.Broadcast()
}

func (w *walker) work() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.todo) == 0 && w.busy > 0 && w.err == nil {
			w.cond.Wait()
		}
		if len(w.todo) == 0 || w.err != nil {
			w.cond.Broadcast()
			return
		}
		dir := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		w.busy++
		w.mu.Unlock()
		subs, err := w.list(dir)
		w.mu.Lock()
		w.busy--
		switch {
		case errors.Is(err, fs.ErrPermission):
			w.sum.Unreadable++
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP):
			// gone or replaced meanwhile
		case err != nil && w.err == nil:
			w.err = err
		}
		w.todo = append(w.todo, subs...)
		w.cond.Broadcast()
	}
}

// list counts the entries of one directory and returns its directories.
func (w *walker) list(dir string) (subs []string, err error) {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return subs, nil
		}
		if err != nil {
			return subs, err
		}
		for _, name := range names {
			var st unix.Stat_t
			if err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				continue // gone meanwhile
			}
			if uint64(st.Dev) != w.dev {
				continue
			}
			w.mu.Lock()
			w.add(&st)
			w.mu.Unlock()
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				subs = append(subs, dir+"/"+name)
			}
		}
	}
}

// add counts one inode; mu is held, or no worker runs yet.
func (w *walker) add(st *unix.Stat_t) {
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		if w.links[st.Ino] {
			return
		}
		w.links[st.Ino] = true
	}
	w.sum.Inodes++
	w.sum.Bytes += st.Blocks * 512
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		w.sum.Apparent += st.Size
	}
}
