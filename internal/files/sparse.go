package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// nextData finds the next run of data of a file at or after off, below size;
// start is size where none is left. Where the file system knows no holes all
// is data.
func nextData(f *os.File, off, size int64) (start, end int64) {
	start, err := f.Seek(off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size
	case err != nil || start < off:
		return off, size
	case start >= size:
		return size, size
	}
	end, err = f.Seek(start, unix.SEEK_HOLE)
	if err != nil || end <= start || end > size {
		end = size
	}
	return start, end
}

// isSparse says whether a file may have holes.
func isSparse(st *unix.Stat_t) bool { return st.Blocks*512 < st.Size }

// trimZeros cuts blocks of zeros from both ends of data, and says how many
// bytes that were in front.
func trimZeros(data []byte) (lead int, rest []byte) {
	const block = 4096
	for len(data) > 0 && allZero(data[:min(block, len(data))]) {
		n := min(block, len(data))
		lead, data = lead+n, data[n:]
	}
	for len(data) > 0 {
		from := (len(data) - 1) / block * block
		if !allZero(data[from:]) {
			break
		}
		data = data[:from]
	}
	return lead, data
}

func allZero(b []byte) bool {
	// Comparing a slice with itself, one further, runs at the speed of memory.
	return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}

// hashRange adds the first n bytes of a file to a hash. It fails where the file
// is shorter.
func hashRange(ctx context.Context, h hash.Hash, f *os.File, n int64) error {
	buf := make([]byte, chunk)
	for off := int64(0); off < n; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		m, err := readFull(f, buf[:min(int64(len(buf)), n-off)], off)
		if err != nil {
			return err
		}
		if m == 0 {
			return io.ErrUnexpectedEOF
		}
		h.Write(buf[:m])
		off += int64(m)
	}
	return nil
}

// hashFile is the hash of the first n bytes of a file.
func hashFile(ctx context.Context, f *os.File, n int64) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	err = hashRange(ctx, h, f, n)
	h.Sum(sum[:0])
	return sum, err
}
