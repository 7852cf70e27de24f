package sshmux

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// errStopped is the error of reads and writes of a descriptor that was
// stopped.
var errStopped = errors.New("descriptor is no longer in use")

// A poller waits until passed descriptors are ready. They are the caller's
// terminal and pipes: the file description is shared with the caller, so
// O_NONBLOCK must stay as it is, and the runtime's own poller, which needs it,
// is of no use. One goroutine, in epoll_wait, serves all.
type poller struct {
	ep   int
	wake int // eventfd; ends the goroutine

	mu    sync.Mutex
	waits map[int32]chan struct{} // by descriptor
	ended chan struct{}
}

// newPoller starts a poller. The caller must call close, with no wait in
// progress.
func newPoller() (*poller, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(ep)
		return nil, os.NewSyscallError("eventfd", err)
	}
	p := &poller{ep: ep, wake: wake, waits: map[int32]chan struct{}{}, ended: make(chan struct{})}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &ev); err != nil {
		unix.Close(ep)
		unix.Close(wake)
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	go p.run()
	return p, nil
}

func (p *poller) close() {
	unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-p.ended
	unix.Close(p.wake)
	unix.Close(p.ep)
}

func (p *poller) run() {
	defer close(p.ended)
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(p.ep, events, -1)
		if err != nil && err != unix.EINTR {
			return // the descriptor is ours and open: can't be
		}
		for _, ev := range events[:max(n, 0)] {
			if ev.Fd == int32(p.wake) {
				return
			}
			p.mu.Lock()
			if c := p.waits[ev.Fd]; c != nil {
				close(c)
				delete(p.waits, ev.Fd)
			}
			p.mu.Unlock()
		}
	}
}

// wait returns when fd is ready for events (unix.POLLIN or unix.POLLOUT), has
// an error or a hang-up, or stop is closed. A regular file is always ready.
// There is one wait at a time for a descriptor.
func (p *poller) wait(fd int, events int16, stop <-chan struct{}) error {
	// Most often it is ready, and this is the cheapest way to know.
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
	if n, err := unix.Poll(fds, 0); err == nil && n > 0 {
		return nil
	}
	c := make(chan struct{})
	p.mu.Lock()
	p.waits[int32(fd)] = c
	p.mu.Unlock()
	ev := unix.EpollEvent{Events: uint32(events) | unix.EPOLLONESHOT, Fd: int32(fd)}
	if err := unix.EpollCtl(p.ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		p.forget(fd)
		if err == unix.EPERM {
			return nil // what epoll can't wait for never blocks
		}
		return os.NewSyscallError("epoll_ctl", err)
	}
	defer unix.EpollCtl(p.ep, unix.EPOLL_CTL_DEL, fd, nil)
	select {
	case <-c:
		return nil
	case <-stop:
		p.forget(fd)
		return errStopped
	}
}

func (p *poller) forget(fd int) {
	p.mu.Lock()
	delete(p.waits, int32(fd))
	p.mu.Unlock()
}
