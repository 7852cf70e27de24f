package files

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"os"

	"golang.org/x/sys/unix"
)

// refuse tells the receiver why it doesn't get a file.
func (s *sender) refuse(w *want, err error) error {
	c := closing{id: w.id, err: problemOf(classFailed, "", err)}
	return s.c.send(frameClose, c.append(nil))
}

// sendSmall sends a file in one frame. Its error ends the copy.
func (s *sender) sendSmall(w want) error {
	f, st, err := s.open(&w)
	if err != nil {
		return s.refuse(&w, err)
	}
	defer f.Close()
	if st.Size > chunk {
		return s.sendOpen(&w, f, &st)
	}
	buf := make([]byte, st.Size)
	n, err := readFull(f, buf, 0)
	if err != nil {
		return s.refuse(&w, err)
	}
	// A file that became shorter meanwhile is what it is now.
	buf = buf[:n]
	head := fileHead{id: w.id, mode: st.Mode & 0o777, size: int64(n), mtime: modified(&st)}
	if w.flags&(wantHash|wantSame) != 0 {
		sum := sha256.Sum256(buf)
		if w.flags&wantSame != 0 && w.offset == int64(n) && sum == w.hash {
			return s.same(&w)
		}
		if w.flags&wantHash != 0 {
			head.hash = sum[:]
		}
	}
	if err := s.c.send(frameSmall, head.append(nil), buf); err != nil {
		return err
	}
	s.peer.sent(w.path, int64(n))
	s.peer.fileDone()
	return nil
}

// same tells the receiver that it has the file.
func (s *sender) same(w *want) error {
	s.peer.fileDone()
	return s.c.send(frameSame, binary.BigEndian.AppendUint32(nil, w.id))
}

// sendLarge sends a file in pieces, from where the receiver has it.
func (s *sender) sendLarge(w want) error {
	f, st, err := s.open(&w)
	if err != nil {
		return s.refuse(&w, err)
	}
	defer f.Close()
	return s.sendOpen(&w, f, &st)
}

func (s *sender) sendOpen(w *want, f *os.File, st *unix.Stat_t) error {
	unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_SEQUENTIAL)
	head := fileHead{id: w.id, mode: st.Mode & 0o777, size: st.Size, mtime: modified(st)}
	var sum hash.Hash
	if w.flags&wantHash != 0 {
		sum = sha256.New()
	}
	if w.offset > 0 && w.offset <= st.Size && (w.flags&wantSame != 0 || head.mtime == w.mtime && head.size == w.size) {
		h := sha256.New()
		if err := hashRange(s.ctx, h, f, w.offset); err != nil {
			return s.refuse(w, err)
		}
		switch has := bytes.Equal(h.Sum(nil), w.hash[:]); {
		case has && w.flags&wantSame != 0 && w.offset == st.Size:
			return s.same(w)
		case has && w.flags&wantSame == 0:
			head.start, sum = w.offset, h // and the whole is verified
		}
	}
	if err := s.c.send(frameFile, head.append(nil)); err != nil {
		return err
	}
	c := closing{id: w.id}
	if err := s.data(w, f, st, head.start, sum); err != nil {
		if s.ctx.Err() != nil || s.c.flush() != nil {
			return err
		}
		c.err = problemOf(classFailed, "", err)
	} else if sum != nil {
		c.hash = sum.Sum(nil)
	}
	s.peer.fileDone()
	return s.c.send(frameClose, c.append(nil))
}

// data sends the data of a file from an offset, but no holes.
func (s *sender) data(w *want, f *os.File, st *unix.Stat_t, off int64, sum hash.Hash) error {
	buf := make([]byte, chunk)
	var at [8]byte
	sparse := isSparse(st)
	for off < st.Size {
		end := st.Size
		if sparse {
			start, stop := nextData(f, off, st.Size)
			if sum != nil {
				zeros(sum, start-off)
			}
			if off, end = start, stop; off == st.Size {
				break
			}
		}
		for off < end {
			if s.ctx.Err() != nil {
				return s.ctx.Err()
			}
			n, err := readFull(f, buf[:min(chunk, end-off)], off)
			if err != nil {
				return err
			}
			if n == 0 {
				return errChanged
			}
			if sum != nil {
				sum.Write(buf[:n])
			}
			lead, data := 0, buf[:n]
			if sparse { // not every file system tells where holes are
				lead, data = trimZeros(data)
			}
			if len(data) > 0 {
				binary.BigEndian.PutUint64(at[:], uint64(off)+uint64(lead))
				if err := s.c.send(frameData, at[:], data); err != nil {
					return err
				}
			}
			off += int64(n)
			s.peer.sent(w.path, int64(n))
		}
	}
	return nil
}

// zeros adds n zero bytes to a hash.
func zeros(h hash.Hash, n int64) {
	var z [32 << 10]byte
	for n > 0 {
		m := min(n, int64(len(z)))
		h.Write(z[:m])
		n -= m
	}
}
