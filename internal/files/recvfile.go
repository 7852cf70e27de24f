package files

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// resumable is the size from which a file that was cut is kept, so that the
// next copy goes on with it.
const resumable = 8 << 20

var errDiffers = errors.New("its checksum differs from the source's: it was damaged on the way or on the disk")

// ask asks for a file, unless it is there.
func (r *receiver) ask(d *dir, dirPath, path string, e entry, there bool, st *unix.Stat_t) error {
	w := &wanted{want: want{path: path, size: e.size, mtime: e.mtime}, dir: dirPath, name: e.name, old: there}
	if r.rules.verify {
		w.flags |= wantHash
	}
	regular := there && st.Mode&unix.S_IFMT == unix.S_IFREG
	compare := false
	if r.rules.sync && regular && st.Size == e.size {
		if !r.rules.checksum && sameTime(modified(st), e.mtime) {
			r.keep(d, path, e, st)
			return nil
		}
		if r.rules.checksum && e.size > 0 {
			w.flags |= wantSame
			compare = true
		}
	}
	if !compare && e.size >= resumable {
		if part := openPart(d, partName(e.name, e.size, e.mtime), e.size); part != nil {
			w.part, compare = part, true
		}
	}
	for r.wants[r.next] != nil {
		r.next++
	}
	w.id = r.next
	r.next++
	r.wants[w.id] = w
	if !compare {
		return r.want(w)
	}
	select {
	case r.hash <- w: // asked for when its hash is known
		return nil
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}

func (r *receiver) want(w *wanted) error {
	r.peer.wanted(w.size - w.offset)
	if err := r.c.send(frameWant, w.want.append(nil)); err != nil {
		return lost(r.ctx, err)
	}
	return nil
}

// keep leaves a file that is the same, but for its mode.
func (r *receiver) keep(d *dir, path string, e entry, st *unix.Stat_t) {
	r.add(&r.res.Skipped, 1)
	if st.Mode&0o777 == e.mode {
		return
	}
	f, _, err := d.openRegular(e.name, unix.O_RDONLY)
	if err == nil {
		err = f.Chmod(os.FileMode(e.mode))
		f.Close()
	}
	if err != nil {
		r.failed(path, err)
	}
}

// openPart opens what is there of a file, for this process alone; nil where
// nothing is.
func openPart(d *dir, name string, size int64) *os.File {
	f, st, err := d.openRegular(name, unix.O_RDWR)
	if err != nil {
		return nil
	}
	if st.Uid != uint32(os.Geteuid()) || st.Nlink != 1 || st.Size == 0 || st.Size > size || unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		f.Close()
		return nil
	}
	return f
}

// compare hashes what is there of files, and then asks for them.
func (r *receiver) compare() {
	for w := range r.hash {
		if r.ctx.Err() != nil {
			continue
		}
		w.mu.Lock()
		f := w.part
		if f == nil {
			if d, err := r.top.tree.dir(w.dir); err == nil {
				f, _, _ = d.open(w.name)
				d.done()
			}
		}
		if f != nil {
			if fi, err := f.Stat(); err == nil {
				if sum, err := hashFile(r.ctx, f, fi.Size()); err == nil {
					w.offset, w.hash = fi.Size(), sum
				}
			}
			if w.part == nil {
				f.Close()
			}
		}
		if w.offset == 0 {
			w.flags &^= wantSame
		}
		err := r.want(w)
		w.mu.Unlock()
		if err != nil {
			r.quit(err)
		}
	}
}

// sameFile ends the want of a file whose content is there.
func (r *receiver) sameFile(w *wanted) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, err := r.top.tree.dir(w.dir)
	if err == nil {
		err = d.times(w.name, w.mtime)
		d.done()
	}
	if err != nil {
		r.failed(w.path, err)
		return
	}
	r.peer.fileDone()
	r.add(&r.res.Skipped, 1)
}

// A job1 is a small file to be written.
type job1 struct {
	w       *wanted
	head    fileHead
	content []byte
	f       frame // has the memory of content
}

func (r *receiver) takeSmall(f frame) error {
	head, content, err := parseHead(f.body)
	if err != nil {
		return err
	}
	w, err := r.answered(head.id)
	if err != nil {
		return err
	}
	if int64(len(content)) != head.size || head.start != 0 {
		return fmt.Errorf("%w: a file that isn't as long as it says", errProtocol)
	}
	select {
	case r.small <- job1{w, head, content, f}:
		return nil
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}

func (r *receiver) writeSmalls() {
	for j := range r.small {
		if r.ctx.Err() == nil {
			if err := r.writeSmall(&j); err != nil {
				r.failed(j.w.path, err)
			} else {
				r.wrote(j.w, j.head.size)
			}
		}
		j.w.closePart()
		j.f.release(&r.pool)
	}
}

// wrote notes a file that is there now.
func (r *receiver) wrote(w *wanted, n int64) {
	r.mu.Lock()
	r.res.Files++
	r.res.Bytes += n
	r.mu.Unlock()
	r.peer.received(w.path, n)
	r.peer.fileDone()
}

func (r *receiver) writeSmall(j *job1) error {
	d, err := r.top.tree.dir(j.w.dir)
	if err != nil {
		return err
	}
	defer d.done()
	temp := tempName(j.w.name)
	f, err := d.create(temp)
	if err != nil {
		return err
	}
	_, err = f.Write(j.content)
	if err == nil && j.head.hash != nil {
		err = verify(r.ctx, f, j.head.size, j.head.hash)
	}
	return r.publish(d, f, temp, j.w.name, &j.head, err)
}

// verify compares what is on the disk with a hash.
func verify(ctx context.Context, f *os.File, size int64, want []byte) error {
	sum, err := hashFile(ctx, f, size)
	if err == nil && !bytes.Equal(sum[:], want) {
		err = errDiffers
	}
	return err
}

// publish closes a finished file and puts it under its name, or removes it
// where err isn't nil.
func (r *receiver) publish(d *dir, f *os.File, temp, name string, head *fileHead, err error) error {
	if err == nil {
		err = f.Chmod(os.FileMode(head.mode))
	}
	if e := f.Close(); err == nil {
		err = e // a file server may tell of a full disk only now
	}
	if err == nil {
		err = d.times(temp, head.mtime)
	}
	if err != nil {
		d.unlink(temp)
		return err
	}
	return d.replace(temp, name)
}

// A bulkStep is a piece of a large file.
type bulkStep struct {
	f    frame
	w    *wanted  // of frameFile and frameClose
	head fileHead // of frameFile
	end  closing  // of frameClose
}

// takeBulk gives a piece of a large file to its writer.
func (r *receiver) takeBulk(f frame) error {
	s := bulkStep{f: f}
	var err error
	switch f.typ {
	case frameFile:
		var rest []byte
		if s.head, rest, err = parseHead(f.body); err != nil {
			return err
		}
		if s.w = r.wants[s.head.id]; s.w == nil || len(rest) > 0 {
			return fmt.Errorf("%w: a file that wasn't asked for", errProtocol)
		}
	case frameClose:
		if s.end, err = parseClosing(f.body); err != nil {
			return err
		}
		if s.w, err = r.answered(s.end.id); err != nil {
			return err
		}
	}
	select {
	case r.bulk <- s:
		return nil
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}

// A large is a file that is being written in pieces.
type large struct {
	w     *wanted
	head  fileHead
	d     *dir
	f     *os.File
	temp  string
	keeps bool  // it is kept if it is cut
	end   int64 // of the data so far
	err   error // why it can't be written
}

// writeBulk writes large files, one after the other.
func (r *receiver) writeBulk() {
	var l *large
	for s := range r.bulk {
		if r.ctx.Err() == nil {
			var err error
			if l, err = r.bulkStep(l, &s); err != nil {
				r.giveUp(err)
			}
		}
		s.f.release(&r.pool)
	}
	if l != nil {
		r.abandon(l)
	}
}

// bulkStep does one step; its error is one of the protocol.
func (r *receiver) bulkStep(l *large, s *bulkStep) (*large, error) {
	switch s.f.typ {
	case frameFile:
		if l != nil {
			return l, fmt.Errorf("%w: a file within another", errProtocol)
		}
		return r.openLarge(s)
	case frameData:
		if l == nil || len(s.f.body) < 9 {
			return l, fmt.Errorf("%w: data of no file", errProtocol)
		}
		off, data := int64(binary.BigEndian.Uint64(s.f.body)), s.f.body[8:]
		if off < l.end || off > l.head.size-int64(len(data)) {
			return l, fmt.Errorf("%w: data outside of the file", errProtocol)
		}
		l.end = off + int64(len(data))
		if l.err == nil {
			_, l.err = l.f.WriteAt(data, off)
			if l.err != nil && causeOf(l.err).stops() {
				r.stop(l.w.path, l.err)
			}
		}
		r.peer.received(l.w.path, int64(len(data)))
		return l, nil
	default:
		if l == nil {
			s.w.closePart()
			if s.end.err.class == 0 {
				return nil, fmt.Errorf("%w: the end of no file", errProtocol)
			}
			p := s.end.err
			p.path = s.w.path
			r.peer.problem(p)
			return nil, nil
		}
		if l.w != s.w {
			return l, fmt.Errorf("%w: the end of another file", errProtocol)
		}
		r.closeLarge(l, s)
		return nil, nil
	}
}

func (w *wanted) closePart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.part != nil {
		w.part.Close()
		w.part = nil
	}
}

// openLarge opens where a large file goes meanwhile.
func (r *receiver) openLarge(s *bulkStep) (*large, error) {
	w := s.w
	w.mu.Lock()
	defer w.mu.Unlock()
	l := &large{w: w, head: s.head, end: s.head.start}
	if l.d, l.err = r.top.tree.dir(w.dir); l.err != nil {
		return l, nil
	}
	l.temp = partName(w.name, s.head.size, s.head.mtime)
	if s.head.start > 0 {
		if w.part == nil || s.head.start != w.offset {
			return l, fmt.Errorf("%w: a file that goes on where it never was", errProtocol)
		}
		l.f, w.part = w.part, nil
		r.add(&r.res.Resumed, s.head.start)
	} else if w.part != nil && s.head.size == w.size && s.head.mtime == w.mtime {
		l.f, w.part = w.part, nil // what is there is something else
		l.err = l.f.Truncate(0)
	}
	if w.part != nil { // the file has changed since
		w.part.Close()
		w.part = nil
		l.d.unlink(partName(w.name, w.size, w.mtime))
	}
	if l.f == nil {
		l.f, l.err = r.createLarge(l)
	}
	if l.keeps = l.err == nil && s.head.size >= resumable && l.temp == partName(w.name, s.head.size, s.head.mtime); l.keeps {
		r.peer.partial(join(l.w.dir, l.w.name)) // the path of a top is empty
	}
	return l, nil
}

// createLarge makes the file of a large file, under another name where
// somebody else is copying the same.
func (r *receiver) createLarge(l *large) (*os.File, error) {
	f, err := l.d.create(l.temp)
	if errors.Is(err, unix.EEXIST) {
		if part := openPart(l.d, l.temp, l.head.size); part != nil {
			return part, part.Truncate(0)
		}
		l.temp = tempName(l.w.name)
		f, err = l.d.create(l.temp)
	}
	if err == nil {
		unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	return f, err
}

// closeLarge ends a large file.
func (r *receiver) closeLarge(l *large, s *bulkStep) {
	if l.d != nil {
		defer l.d.done()
	}
	err := l.err
	if err == nil && s.end.err.class != 0 {
		err = errors.New(s.end.err.text)
	}
	if err == nil {
		err = l.f.Truncate(l.head.size) // a hole at the end
	}
	if err == nil && s.end.hash != nil {
		err = verify(r.ctx, l.f, l.head.size, s.end.hash)
	}
	if r.ctx.Err() != nil {
		r.abandonFile(l)
		return
	}
	if l.f != nil {
		err = r.publish(l.d, l.f, l.temp, l.w.name, &l.head, err)
	}
	if l.keeps {
		r.peer.partial("")
	}
	if err != nil {
		r.failed(l.w.path, err)
		return
	}
	r.add(&r.res.Files, 1)
	r.add(&r.res.Bytes, l.head.size-l.head.start)
	r.peer.fileDone()
}

// abandon gives up a file that was cut.
func (r *receiver) abandon(l *large) {
	r.abandonFile(l)
	if l.d != nil {
		l.d.done()
	}
}

func (r *receiver) abandonFile(l *large) {
	if l.f == nil {
		return
	}
	fi, err := l.f.Stat()
	l.f.Close()
	if !l.keeps || err != nil || fi.Size() == 0 {
		l.d.unlink(l.temp)
	}
	l.f = nil
}
