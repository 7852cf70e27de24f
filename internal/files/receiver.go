package files

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// smallReceivers write small files at the same time.
	smallReceivers = 4

	// hashers compare files with what the sender has.
	hashers = 2
)

// A farError is what the other end gave up with.
type farError struct{ p problem }

func (e *farError) Error() string { return e.p.text }

// A receiver makes a tree be what a sender tells of.
type receiver struct {
	c     *conn
	peer  peer
	rules rules
	top   target
	pool  buffers

	ctx  context.Context
	quit context.CancelCauseFunc

	// Of the reader alone.
	wants  map[uint32]*wanted // those that aren't answered
	next   uint32
	dirs   map[string]entry // directories that were told of, by path, whose entries weren't yet
	broken map[string]bool  // directories that can't be had
	final  []finalDir
	cur    current
	ended  bool // the walk is over

	small chan job1
	bulk  chan bulkStep
	hash  chan *wanted
	work  sync.WaitGroup

	mu  sync.Mutex
	res result
}

// current is the directory whose entries are being told.
type current struct {
	path string
	d    *dir // nil: it can't be had, or isn't there in a dry run
	in   bool
	new  bool            // made by this copy: there is nothing in it
	seen map[string]bool // names, where others are to be deleted
}

// A finalDir gets its mode and time when all is in it.
type finalDir struct {
	path string
	e    entry
}

// A wanted file was asked for.
type wanted struct {
	want
	dir, name string // where it goes
	old       bool   // there is something under its name

	mu   sync.Mutex
	part *os.File // what is there of it, open and locked
}

// receive makes what a sender tells of.
func receive(ctx context.Context, c *conn, j job, p peer) (res result, err error) {
	ctx, quit := context.WithCancelCause(ctx)
	defer quit(nil)
	r := &receiver{
		c: c, peer: p, rules: j.rules, ctx: ctx, quit: quit,
		wants: map[uint32]*wanted{}, dirs: map[string]entry{}, broken: map[string]bool{},
		small: make(chan job1, 2*smallReceivers), bulk: make(chan bulkStep, 8), hash: make(chan *wanted, 64),
	}
	stop := context.AfterFunc(ctx, func() { c.close() })
	defer stop()
	for range smallReceivers {
		r.work.Go(r.writeSmalls)
	}
	r.work.Go(r.writeBulk)
	var hashing sync.WaitGroup
	for range hashers {
		hashing.Go(r.compare)
	}
	if err = r.listen(j); err != nil {
		r.giveUp(err) // what a worker does now is given up
	}
	close(r.hash)
	close(r.small)
	close(r.bulk)
	hashing.Wait()
	r.work.Wait()
	if cause := context.Cause(ctx); cause != nil {
		err = cause // what a worker found is why the reader failed
	}
	if r.cur.d != nil {
		r.cur.d.done()
	}
	if err == nil {
		r.finish()
		c.send(frameResult, r.res.append(nil))
		if e := c.flush(); e != nil {
			err = lost(ctx, e)
		}
	}
	for _, w := range r.wants {
		if w.part != nil {
			w.part.Close()
		}
	}
	if r.top.tree != nil {
		r.top.tree.close()
	}
	return r.res, err
}

// listen reads what the sender tells, until all that is wanted was answered.
func (r *receiver) listen(j job) error {
	f, err := r.recv()
	if err != nil {
		return err
	}
	if f.typ != frameTop {
		return r.unexpected(f.typ)
	}
	top, err := parseEntry(f.body)
	if err != nil {
		return err
	}
	if top.name != "" {
		return fmt.Errorf("%w: the top has a name", errProtocol)
	}
	if r.top, err = findTarget(j, top.kind); err != nil {
		return err
	}
	if err := r.begin(top); err != nil {
		return err
	}
	for !r.ended || len(r.wants) > 0 {
		f, err := r.recv()
		if err != nil {
			return err
		}
		if err := r.frame(f); err != nil {
			return err
		}
	}
	return nil
}

func (r *receiver) unexpected(typ byte) error {
	return fmt.Errorf("%w: a frame of type %q", errProtocol, typ)
}

// recv reads a frame that matters to a receiver.
func (r *receiver) recv() (frame, error) {
	for {
		f, err := r.c.recv(&r.pool)
		if err != nil {
			return f, lost(r.ctx, err)
		}
		if f.typ != frameProblem && f.typ != frameFail {
			return f, nil
		}
		p, err := parseProblem(f.body)
		if err != nil {
			return f, err
		}
		if f.typ == frameFail {
			return f, &farError{p}
		}
		r.peer.problem(p)
	}
}

// frame takes one frame. Its error ends the copy.
func (r *receiver) frame(f frame) (err error) {
	switch f.typ {
	case frameDir:
		return r.enter(string(f.body))
	case frameEntry:
		e, err := parseEntry(f.body)
		if err != nil {
			return err
		}
		if !r.cur.in || !validName(e.name) || r.ended {
			return fmt.Errorf("%w: an entry with the name %q", errProtocol, cut(e.name, 100))
		}
		return r.entry(e)
	case frameDirEnd:
		if !r.cur.in || len(f.body) != 1 {
			return r.unexpected(f.typ)
		}
		r.leave(f.body[0] == 1)
	case frameEnd:
		if r.cur.in {
			return r.unexpected(f.typ)
		}
		r.ended = true
	case frameSmall:
		return r.takeSmall(f)
	case frameFile, frameData, frameClose:
		return r.takeBulk(f)
	case frameSame:
		if len(f.body) != 4 {
			return r.unexpected(f.typ)
		}
		w, err := r.answered(binary.BigEndian.Uint32(f.body))
		if err != nil {
			return err
		}
		r.sameFile(w)
	default:
		return r.unexpected(f.typ)
	}
	return nil
}

// answered takes a file from those that are wanted.
func (r *receiver) answered(id uint32) (*wanted, error) {
	w := r.wants[id]
	if w == nil {
		return nil, fmt.Errorf("%w: a file that wasn't asked for", errProtocol)
	}
	delete(r.wants, id)
	return w, nil
}

// begin takes the top.
func (r *receiver) begin(top entry) error {
	if top.kind != kindDir {
		if r.top.tree == nil { // a dry run
			return errors.New("no directory for the file")
		}
		d := r.top.tree.root
		top.name = r.top.name
		return r.put(d, "", "", top)
	}
	top.size = 0
	if r.top.fresh {
		top.size = isNew
	}
	r.dirs[""] = top
	if r.top.fresh {
		r.add(&r.res.Dirs, 1)
	}
	return nil
}

// enter begins a directory, which was told of as an entry.
func (r *receiver) enter(path string) error {
	e, ok := r.dirs[path]
	if !ok || r.cur.in || r.ended {
		return fmt.Errorf("%w: a directory that wasn't told of", errProtocol)
	}
	delete(r.dirs, path)
	if r.cur.d != nil {
		r.cur.d.done()
	}
	r.cur = current{path: path, in: true, new: e.size == isNew}
	if r.rules.sync && r.rules.del {
		r.cur.seen = map[string]bool{}
	}
	up, _ := split(path)
	if path != "" && r.broken[up] || r.broken[path] {
		r.broken[path] = true
		return nil
	}
	if r.top.tree == nil || r.rules.dry && r.cur.new {
		return nil
	}
	d, err := r.top.tree.dir(path)
	if err != nil {
		r.failed(path, err)
		r.broken[path] = true
		return nil
	}
	r.cur.d = d
	r.final = append(r.final, finalDir{path, e})
	return nil
}

// isNew is the size of a directory that this copy has made.
const isNew = 1

// leave ends a directory.
func (r *receiver) leave(complete bool) {
	r.cur.in = false
	if r.cur.seen == nil || r.cur.d == nil || r.cur.new || !complete {
		return
	}
	names, err := r.cur.d.list()
	if err != nil {
		r.failed(r.cur.path, err)
		return
	}
	for _, name := range names {
		if !r.cur.seen[name] && !isOurs(name) {
			r.delete(r.cur.d, join(r.cur.path, name), name)
		}
	}
}

// delete removes what the source doesn't have.
func (r *receiver) delete(d *dir, path, name string) bool {
	if r.rules.dry {
		r.peer.act(action{'d', path})
		r.add(&r.res.Deleted, 1)
		return true
	}
	n, err := d.remove(name)
	r.add(&r.res.Deleted, n)
	if err != nil {
		r.failed(path, err)
		return false
	}
	r.top.tree.forget(path)
	r.peer.act(action{'d', path})
	return true
}

// failed notes that a path isn't copied.
func (r *receiver) failed(path string, err error) {
	if causeOf(err).stops() {
		r.stop(path, err)
		return
	}
	r.peer.problem(problemOf(classFailed, path, err))
}

// stop ends the copy for a reason that would stop every other file.
func (r *receiver) stop(path string, err error) { r.giveUp(&nearError{path, err}) }

// giveUp ends the copy and tells the sender why.
func (r *receiver) giveUp(err error) {
	var far *farError
	if r.ctx.Err() == nil && !errors.As(err, &far) && !errors.Is(err, errCut) {
		p := problemOf(classFatal, "", err)
		if near, ok := err.(*nearError); ok {
			p = problemOf(classFatal, near.path, near.err)
		}
		r.c.send(frameFail, p.append(nil))
		r.c.flush()
	}
	r.quit(err)
}

// A nearError is what this end gives up with because of one path.
type nearError struct {
	path string
	err  error
}

func (e *nearError) Error() string { return e.path + ": " + e.err.Error() }
func (e *nearError) Unwrap() error { return e.err }

func (r *receiver) add(counter *int64, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*counter += n
}

// entry takes an entry of the current directory.
func (r *receiver) entry(e entry) error {
	if r.cur.seen != nil {
		r.cur.seen[e.name] = true
	}
	path := join(r.cur.path, e.name)
	if len(path) >= maxPath {
		return fmt.Errorf("%w: a path that is too long", errProtocol)
	}
	if r.cur.d == nil {
		if e.kind == kindDir {
			e.size = isNew
			r.dirs[path] = e
		}
		if r.rules.dry && !r.broken[r.cur.path] {
			r.peer.act(action{'c', path})
			r.count(e)
		}
		return nil
	}
	return r.put(r.cur.d, r.cur.path, path, e)
}

// count counts what a dry run would make.
func (r *receiver) count(e entry) {
	switch e.kind {
	case kindFile:
		r.add(&r.res.Files, 1)
		r.add(&r.res.Bytes, e.size)
	case kindDir:
		r.add(&r.res.Dirs, 1)
	case kindLink:
		r.add(&r.res.Links, 1)
	}
}

// put makes d have an entry, whose path is from the top of the source.
func (r *receiver) put(d *dir, dirPath, path string, e entry) error {
	var st unix.Stat_t
	err := error(unix.ENOENT)
	if !r.cur.new {
		st, err = d.lstat(e.name)
	}
	there := err == nil
	if err != nil && err != unix.ENOENT {
		r.refused(path, e, err)
		return nil
	}
	typ := st.Mode & unix.S_IFMT
	if there {
		if e.kind == kindDir && typ == unix.S_IFDIR {
			e.size = 0
			r.dirs[path] = e
			if st.Mode&0o700 != 0o700 && !r.rules.dry {
				r.openUp(dirPath, e.name)
			}
			return nil
		}
		if e.kind == kindDir || typ == unix.S_IFDIR {
			if there = !r.makeRoom(d, path, e, typ); there {
				return nil
			}
		}
	}
	if r.rules.dry {
		if there && r.unchanged(d, &st, e) {
			r.add(&r.res.Skipped, 1)
			return nil
		}
		r.peer.act(action{'c', path})
		r.count(e)
		if e.kind == kindDir {
			e.size = isNew
			r.dirs[path] = e
		}
		return nil
	}
	switch e.kind {
	case kindDir:
		r.makeDir(d, path, e)
	case kindLink:
		r.makeLink(d, path, e, there && typ == unix.S_IFLNK)
	case kindFile:
		return r.ask(d, dirPath, path, e, there, &st)
	}
	return nil
}

// unchanged says whether what is there is what the source has, as far as a
// dry run can know.
func (r *receiver) unchanged(d *dir, st *unix.Stat_t, e entry) bool {
	switch e.kind {
	case kindFile:
		return r.rules.sync && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == e.size && sameTime(modified(st), e.mtime)
	case kindLink:
		target, err := d.readlink(e.name)
		return err == nil && target == e.target
	}
	return false
}

// refused notes that an entry can't be had, and what is below it neither.
func (r *receiver) refused(path string, e entry, err error) {
	r.failed(path, err)
	if e.kind == kindDir {
		e.size = isNew
		r.dirs[path] = e
		r.broken[path] = true
	}
}

// makeRoom takes away what is of another type than the entry, where that is
// allowed.
func (r *receiver) makeRoom(d *dir, path string, e entry, typ uint32) bool {
	switch {
	case e.kind == kindDir && !r.rules.sync:
		r.refused(path, e, errors.New("it is a directory, and what is there isn't"))
		return false
	case e.kind != kindDir && !(r.rules.sync && r.rules.del):
		r.refused(path, e, errors.New("what is there is a directory"))
		return false
	}
	return r.delete(d, path, e.name)
}

// openUp lets the owner into a directory; its mode is set at the end.
func (r *receiver) openUp(dirPath, name string) {
	if sub, err := r.top.tree.dir(join(dirPath, name)); err == nil {
		sub.chmodSelf(0o700)
		sub.done()
	}
}

func (r *receiver) makeDir(d *dir, path string, e entry) {
	if err := d.mkdir(e.name); err != nil {
		r.refused(path, e, err)
		return
	}
	r.add(&r.res.Dirs, 1)
	e.size = isNew
	r.dirs[path] = e
}

func (r *receiver) makeLink(d *dir, path string, e entry, isLink bool) {
	if isLink {
		if target, err := d.readlink(e.name); err == nil && target == e.target {
			r.add(&r.res.Skipped, 1)
			d.times(e.name, e.mtime)
			return
		}
	}
	temp := tempName(e.name)
	err := d.symlink(e.target, temp)
	if err == nil {
		d.times(temp, e.mtime)
		err = d.replace(temp, e.name)
	}
	if err != nil {
		r.failed(path, err)
		return
	}
	r.add(&r.res.Links, 1)
}

// finish gives directories their modes and times, the deepest first.
func (r *receiver) finish() {
	if r.rules.dry || r.top.tree == nil {
		return
	}
	for i := len(r.final) - 1; i >= 0; i-- {
		f := r.final[i]
		d, err := r.top.tree.dir(f.path)
		if err != nil {
			r.failed(f.path, err)
			continue
		}
		err = d.timesSelf(f.e.mtime)
		if e := d.chmodSelf(f.e.mode); err == nil {
			err = e
		}
		d.done()
		if err != nil {
			r.failed(f.path, err)
		}
	}
}
