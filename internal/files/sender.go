package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// smallSenders read small files at the same time: on a file server each
	// waits for it.
	smallSenders = 6

	// maxQueue is how many wants may wait before the walk does.
	maxQueue = 4096
)

// A sender walks a tree and gives a receiver the files that it wants.
type sender struct {
	c    *conn
	peer peer
	tree *tree
	top  string // name of a top that is no directory

	ctx  context.Context
	quit context.CancelCauseFunc

	mu     sync.Mutex
	wake   sync.Cond
	small  []want
	large  []want
	told   int64 // regular files that the receiver knows of
	wants  int64
	closed bool
}

// A peer is told what goes on: the user of this process, or the other end.
type peer interface {
	problem(problem)
	sent(path string, n int64)     // bytes of a file have gone
	wanted(n int64)                // a file of n bytes will
	fileDone()                     // one has
	partial(path string)           // this file would be kept
	act(action)                    // of a dry run
	received(path string, n int64) // bytes of a file have come
}

// send sends path until the receiver has what it wants.
func send(ctx context.Context, c *conn, path string, p peer) (result, error) {
	ctx, quit := context.WithCancelCause(ctx)
	defer quit(nil)
	s := &sender{c: c, peer: p, ctx: ctx, quit: quit}
	s.wake.L = &s.mu
	top, err := s.openTop(path)
	if err != nil {
		pr := problemOf(classFatal, "", err)
		c.send(frameFail, pr.append(nil))
		c.flush()
		return result{}, err
	}
	defer s.tree.close()
	stop := context.AfterFunc(ctx, func() { c.close() })
	defer stop()

	var work sync.WaitGroup
	for range smallSenders {
		work.Go(func() { s.serve(&s.small, s.sendSmall) })
	}
	work.Go(func() { s.serve(&s.large, s.sendLarge) })
	work.Go(func() {
		if err := s.walk(top); err != nil {
			s.fail(err)
		}
	})
	res, err := s.listen()
	s.mu.Lock()
	s.closed = true
	s.wake.Broadcast()
	s.mu.Unlock()
	if err != nil {
		// What still is being written has nobody to read it.
		quit(err)
		c.close()
	}
	work.Wait()
	return res, err
}

// openTop opens what is to be sent. A path that ends with a slash or a dot is a
// directory, also where a link leads to it; else a link is sent as it is.
func (s *sender) openTop(path string) (top entry, err error) {
	if path == "" {
		path = "."
	}
	clean := filepath.Clean(path)
	base := filepath.Base(clean)
	asDir := strings.HasSuffix(path, "/") || strings.HasSuffix(path, "/.") || base == "." || base == ".." || base == "/"
	if asDir {
		return s.openTopDir(clean)
	}
	parent, err := openTree(filepath.Dir(clean), false)
	if err != nil {
		return top, invalid("%w", err)
	}
	st, err := parent.root.lstat(base)
	if err != nil {
		parent.close()
		return top, invalid("%w", err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		parent.close()
		return s.openTopDir(clean)
	}
	s.tree, s.top = parent, base
	top, err = describe(parent.root, base, &st)
	if err != nil {
		parent.close()
		return top, invalid("%w", err)
	}
	top.name = ""
	return top, nil
}

func (s *sender) openTopDir(path string) (entry, error) {
	t, err := openTree(path, false)
	if err != nil {
		return entry{}, invalid("%w", err)
	}
	st, err := t.root.lstat(".")
	if err != nil {
		t.close()
		return entry{}, invalid("%w", err)
	}
	s.tree = t
	return entry{kind: kindDir, mode: st.Mode & 0o777, mtime: modified(&st)}, nil
}

// errSpecial is a file that can't be copied.
var errSpecial = errors.New("it is a device, a socket or a pipe")

// describe makes an entry of a name.
func describe(d *dir, name string, st *unix.Stat_t) (entry, error) {
	e := entry{name: name, mode: st.Mode & 0o777, mtime: modified(st)}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.kind, e.size = kindFile, st.Size
	case unix.S_IFDIR:
		e.kind = kindDir
	case unix.S_IFLNK:
		target, err := d.readlink(name)
		if err != nil {
			return e, err
		}
		e.kind, e.target = kindLink, target
	default:
		return e, errSpecial
	}
	return e, nil
}

// walk tells the receiver of everything.
func (s *sender) walk(top entry) error {
	if top.kind == kindFile {
		s.tell()
	}
	if err := s.c.send(frameTop, top.append(nil)); err != nil {
		return err
	}
	if top.kind == kindDir {
		if err := s.walkDir("", 0); err != nil {
			return err
		}
	}
	return s.c.send(frameEnd)
}

// walkDir tells of a directory: first all that is in it, then of each
// directory among that. Its error ends the copy.
func (s *sender) walkDir(path string, depth int) error {
	if err := s.throttle(); err != nil {
		return err
	}
	if err := s.c.send(frameDir, []byte(path)); err != nil {
		return err
	}
	subs, complete, err := s.walkNames(path, depth)
	if err != nil {
		return err
	}
	if err := s.c.send(frameDirEnd, appendBools(nil, complete)); err != nil {
		return err
	}
	for _, sub := range subs {
		if err := s.walkDir(join(path, sub), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// walkNames tells of what is in a directory, and gives the directories among
// that. Without complete not everything was told.
func (s *sender) walkNames(path string, depth int) (subs []string, complete bool, err error) {
	failed := func(path string, err error) {
		class := byte(classFailed)
		if err == errSpecial {
			class = classSpecial
		}
		s.peer.problem(problemOf(class, path, err))
	}
	d, err := s.tree.dir(path)
	if err != nil {
		failed(path, err)
		return nil, false, nil
	}
	defer d.done()
	f, err := d.names()
	if err != nil {
		failed(path, err)
		return nil, false, nil
	}
	defer f.Close()
	complete = true
	var b []byte
	for {
		names, err := f.Readdirnames(512)
		if err != nil && err != io.EOF {
			failed(path, err)
			return subs, false, nil
		}
		if len(names) == 0 {
			return subs, complete, nil
		}
		for _, name := range names {
			if isOurs(name) {
				continue
			}
			st, err := d.lstat(name)
			if err == nil && (depth+1 >= maxDepth || len(path)+len(name) >= maxPath-1) {
				err = fmt.Errorf("it is more than %d directories deep, or its path is too long", maxDepth)
			}
			var e entry
			if err == nil {
				e, err = describe(d, name, &st)
			}
			if errors.Is(err, unix.ENOENT) {
				continue // it has gone
			}
			if err != nil {
				failed(join(path, name), err)
				complete = complete && err == errSpecial
				continue
			}
			if e.kind == kindFile {
				s.tell()
			}
			b = e.append(b[:0])
			if err := s.c.send(frameEntry, b); err != nil {
				return nil, false, err
			}
			if e.kind == kindDir {
				subs = append(subs, name)
			}
		}
		if err := s.throttle(); err != nil {
			return nil, false, err
		}
	}
}

// throttle lets the walk wait while much is wanted already.
func (s *sender) throttle() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.small)+len(s.large) > maxQueue && !s.closed {
		s.wake.Wait()
	}
	return s.ctx.Err()
}

// lastWords is how long the other end may take to say why it has stopped
// reading.
const lastWords = 2 * time.Second

// fail ends the copy. What the other end says of it comes first.
func (s *sender) fail(err error) {
	err = lost(s.ctx, err)
	time.AfterFunc(lastWords, func() { s.quit(err) })
}

// listen reads what the receiver says, to its result.
func (s *sender) listen() (result, error) {
	for {
		f, err := s.c.recv(nil)
		if err != nil {
			return result{}, lost(s.ctx, err)
		}
		switch f.typ {
		case frameWant:
			w, err := parseWant(f.body)
			if err != nil {
				return result{}, err
			}
			s.peer.wanted(w.size - w.offset)
			if err := s.queue(w); err != nil {
				return result{}, err
			}
		case frameProblem, frameFail:
			p, err := parseProblem(f.body)
			if err != nil {
				return result{}, err
			}
			if f.typ == frameFail {
				return result{}, &farError{p}
			}
			s.peer.problem(p)
		case framePartial:
			s.peer.partial(string(f.body))
		case frameAction:
			a, err := parseAction(f.body)
			if err != nil {
				return result{}, err
			}
			s.peer.act(a)
		case frameResult:
			return parseResult(f.body)
		default:
			return result{}, fmt.Errorf("%w: a frame of type %q", errProtocol, f.typ)
		}
	}
}

// tell counts a file that a receiver may want.
func (s *sender) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told++
}

// queue never waits: the receiver must be able to ask for what it wants. It may
// want each file once, so that the queue is no longer than what is on its way.
func (s *sender) queue(w want) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wants++; s.wants > s.told {
		return fmt.Errorf("%w: it wants more files than there are", errProtocol)
	}
	if w.size > chunk || w.offset > 0 && w.flags&wantSame == 0 {
		s.large = append(s.large, w)
	} else {
		s.small = append(s.small, w)
	}
	s.wake.Broadcast()
	return nil
}

// serve sends what is in a queue until the end.
func (s *sender) serve(q *[]want, send func(want) error) {
	for {
		s.mu.Lock()
		for len(*q) == 0 && !s.closed {
			s.wake.Wait()
		}
		if s.closed {
			s.mu.Unlock()
			return
		}
		w := (*q)[0]
		*q = (*q)[1:]
		if len(*q) == 0 {
			*q = nil
		}
		if n := len(s.small) + len(s.large); n == maxQueue {
			s.wake.Broadcast()
		}
		s.mu.Unlock()
		if err := send(w); err != nil {
			s.fail(err)
			return
		}
	}
}

// open opens the file that is wanted.
func (s *sender) open(w *want) (*os.File, unix.Stat_t, error) {
	path := w.path
	if s.top != "" {
		if path != "" {
			return nil, unix.Stat_t{}, unix.ENOTDIR
		}
		path = s.top
	}
	up, name := split(path)
	d, err := s.tree.dir(up)
	if err != nil {
		return nil, unix.Stat_t{}, err
	}
	defer d.done()
	return d.open(name)
}
