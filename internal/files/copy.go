package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hpcexec/hpcexec"
)

// maxListed is how many problems of one kind a Summary lists.
const maxListed = 1000

// An End is one end of a copy.
type End struct {
	// Name is how people know it, such as "train:/data".
	Name string

	// Path is where it is, relative to the directory that its process starts
	// in.
	Path string

	// Open starts an agent where Path is, and gives its stdin and stdout. Close
	// of the stream ends the agent and tells why it ended, where that was by
	// itself. nil: Path is on this machine.
	Open func(context.Context) (io.ReadWriteCloser, error)
}

// Options say how to copy.
type Options struct {
	// Sync copies only what differs by size and time, or content with
	// Checksum, and makes the destination be the source; else everything is
	// copied, into the destination where that is a directory.
	Sync bool

	Checksum bool // of Sync: compare contents
	Delete   bool // of Sync: remove what the source doesn't have
	DryRun   bool // change nothing
	Verify   bool // compare checksums of what was written with the source's

	// Progress is called now and then, never by two goroutines at once. It may
	// be nil.
	Progress func(Progress)

	// Action is called for what is deleted, and with DryRun for all that would
	// be done: op is "copy" or "delete". It may be nil.
	Action func(op, path string)
}

// Progress is how far a copy is.
type Progress struct {
	Path         string // what is copied now
	Files, Bytes int64  // done
	AllFiles     int64  // known to be needed so far
	AllBytes     int64
}

// A Summary is what a copy has done.
type Summary struct {
	Files, Dirs, Links int64 // copied
	Bytes              int64 // of data that travelled
	Resumed            int64 // bytes that were there from a copy that was cut
	Skipped            int64 // the same already
	Deleted            int64
	Took               time.Duration

	Failed      []Problem // not copied, at most 1000 of FailedCount
	FailedCount int64
	Special     []Problem // devices, sockets and pipes, which are never copied
	Partial     string    // what is kept of this file, for the next copy to go on with; empty: nothing
}

// A Problem is why a path isn't copied.
type Problem struct {
	Path   string
	Reason string
}

// A PartialError says that some paths could not be copied; all others were.
type PartialError struct {
	Count int64
	First Problem
}

func (e *PartialError) Error() string {
	if e.Count == 1 {
		return fmt.Sprintf("%s is not copied: %s", e.First.Path, e.First.Reason)
	}
	return fmt.Sprintf("%d paths are not copied, such as %s: %s", e.Count, e.First.Path, e.First.Reason)
}

// Is makes it an error of kind hpcexec.ErrUnavailable.
func (e *PartialError) Is(target error) bool { return target == hpcexec.ErrUnavailable }

// Copy copies src to dst. The Summary is valid with an error, too.
//
// Errors: context.Cause(ctx); *PartialError; those of Open; kind
// hpcexec.ErrInvalid for ends that can't be copied, such as a source that isn't
// there; and hpcexec.ErrUnavailable, after which the same copy may be tried
// again and goes on where it was.
func Copy(ctx context.Context, src, dst End, opts Options) (Summary, error) {
	n := &nearPeer{opts: &opts, top: src.Name}
	began := time.Now()
	res, err := n.copy(ctx, src, dst)
	n.mu.Lock()
	defer n.mu.Unlock()
	s := &n.sum
	s.Files, s.Dirs, s.Links, s.Bytes, s.Resumed = res.Files, res.Dirs, res.Links, res.Bytes, res.Resumed
	s.Skipped, s.Deleted, s.Took = res.Skipped, res.Deleted, time.Since(began)
	if err == nil {
		s.Partial = ""
		if s.FailedCount > 0 {
			err = &PartialError{s.FailedCount, s.Failed[0]}
		}
	}
	return *s, err
}

func (n *nearPeer) copy(ctx context.Context, src, dst End) (result, error) {
	o := n.opts
	if hasNUL(src.Path) || hasNUL(dst.Path) || len(src.Path) >= maxPath || len(dst.Path) >= maxPath {
		return result{}, invalid("a path is too long or has a zero byte")
	}
	j := job{path: dst.Path, base: baseOf(src.Path), rules: rules{sync: o.Sync, del: o.Delete, dry: o.DryRun, checksum: o.Checksum, verify: o.Verify}}
	from := job{send: true, path: src.Path}
	switch {
	case src.Open == nil && dst.Open == nil:
		return result{}, invalid("both ends are on this machine").WithHint("one of them has to be NAME:PATH; for two local ones there is cp")
	case src.Open != nil && dst.Open != nil:
		return n.between(ctx, src, dst, from, j)
	case src.Open == nil:
		c, err := openAgent(ctx, dst, j)
		if err != nil {
			return result{}, err
		}
		res, err := send(ctx, c.conn, src.Path, n)
		return res, c.finish(ctx, src, dst, err)
	default:
		c, err := openAgent(ctx, src, from)
		if err != nil {
			return result{}, err
		}
		res, err := receive(ctx, c.conn, j, n)
		return res, c.finish(ctx, dst, src, err)
	}
}

// An agent is the far end of a stream.
type agent struct {
	*conn
	rw  *closeOnce
	end End
}

// closeOnce remembers what Close said.
type closeOnce struct {
	io.ReadWriteCloser
	once sync.Once
	err  error
}

func (c *closeOnce) Close() error {
	c.once.Do(func() { c.err = c.ReadWriteCloser.Close() })
	return c.err
}

// openAgent starts an agent and gives it its job.
func openAgent(ctx context.Context, e End, j job) (*agent, error) {
	rw, err := e.Open(ctx)
	if err != nil {
		return nil, err
	}
	a := &agent{rw: &closeOnce{ReadWriteCloser: rw}, end: e}
	a.conn = newConn(a.rw)
	stop := context.AfterFunc(ctx, func() { a.close() })
	defer stop()
	f, err := a.recv(nil)
	if err == nil && (f.typ != frameHello || string(f.body) != hello) {
		err = fmt.Errorf("%w: it greets in another way", errProtocol)
	}
	if err == nil {
		err = a.send(frameJob, j.append(nil))
	}
	if err != nil {
		return nil, a.failure(lost(ctx, err))
	}
	return a, nil
}

// failure is the error of the copy: what the agent's own end tells, where that
// is why the stream ended.
func (a *agent) failure(err error) error {
	a.close()
	own := a.rw.Close()
	switch {
	case own != nil && (errors.Is(err, errCut) || errors.Is(err, errProtocol)):
		return own
	case errors.Is(err, errCut):
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: %w", a.end.Name, err).
			WithHint("run the same command again: it goes on where it was")
	}
	return err
}

// finish ends the agent and gives the copy's error its names.
func (a *agent) finish(ctx context.Context, near, far End, err error) error {
	if err == nil {
		a.close()
		a.rw.Close()
		return nil
	}
	var (
		fe    *farError
		ne    *nearError
		typed *hpcexec.Error
	)
	err = a.failure(err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &fe):
		return fe.p.error(far.Name)
	case errors.As(err, &ne):
		p := problemOf(classFatal, ne.path, ne.err)
		return p.error(near.Name)
	case errors.Is(err, errProtocol):
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: %w", far.Name, err)
	case !errors.As(err, &typed):
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "%s: %w", near.Name, err)
	case errors.Is(err, hpcexec.ErrInvalid):
		p := problemOf(classFatal, "", err)
		return p.error(near.Name)
	}
	return err
}

// baseOf is the name that a source has in a directory, or empty where it stands
// for what is in it.
func baseOf(path string) string {
	for len(path) > 0 && path[len(path)-1] == '/' {
		path = path[:len(path)-1]
	}
	_, base := split(path)
	if base == "." || base == ".." {
		return ""
	}
	return base
}

// every is how often Progress is called.
const every = 100 * time.Millisecond

// A nearPeer collects what the user is to know.
type nearPeer struct {
	opts *Options
	top  string // how people know the source

	mu   sync.Mutex
	sum  Summary
	pr   Progress
	told time.Time
}

func (n *nearPeer) problem(p problem) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.path == "" {
		p.path = n.top
	}
	list := &n.sum.Failed
	if p.class == classSpecial {
		list = &n.sum.Special
	} else {
		n.sum.FailedCount++
	}
	if len(*list) < maxListed {
		*list = append(*list, Problem{p.path, p.text})
	}
}

func (n *nearPeer) act(a action) {
	if n.opts.Action == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch a.op {
	case 'c':
		n.opts.Action("copy", a.path)
	case 'd':
		n.opts.Action("delete", a.path)
	}
}

func (n *nearPeer) partial(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sum.Partial = path
}

func (n *nearPeer) sent(path string, b int64) { n.moved(path, b) }

func (n *nearPeer) received(path string, b int64) { n.moved(path, b) }

func (n *nearPeer) moved(path string, b int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pr.Path = path
	n.pr.Bytes += b
	n.tellLocked()
}

func (n *nearPeer) wanted(b int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pr.AllFiles++
	n.pr.AllBytes += b
}

func (n *nearPeer) fileDone() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pr.Files++
	n.tellLocked()
}

func (n *nearPeer) tellLocked() {
	if n.opts.Progress == nil {
		return
	}
	if now := time.Now(); now.Sub(n.told) >= every {
		n.told = now
		n.opts.Progress(n.pr)
	}
}
