package files

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// version is that of the protocol. An end refuses another one.
const version = 1

// errProtocol says that the other end doesn't keep to the protocol.
var errProtocol = errors.New("the other end breaks the protocol")

// The types of frames.
const (
	frameHello = 'h' // agent: hello
	frameJob   = 'j' // to an agent: job
	frameFail  = '!' // either end: problem; it gives up

	// From the sender.
	frameTop    = 't' // entry: what is copied; its name is empty
	frameDir    = 'd' // path: the entries that follow are in this directory
	frameEntry  = 'e' // entry
	frameDirEnd = 'u' // 1 byte: 1 where all entries of the directory were told
	frameEnd    = 'l' // nothing: the walk is over
	frameSmall  = 's' // file, content: a whole file
	frameFile   = 'f' // file: its data follow
	frameData   = 'b' // data
	frameClose  = 'z' // closing: the end of a file, or why there is none
	frameSame   = 'q' // id: the receiver has it already

	// From the receiver.
	frameWant    = 'w' // want
	framePartial = 'p' // path, as people know it: kept if the copy is cut; empty: none
	frameAction  = 'a' // action: what a dry run would do
	frameResult  = 'r' // result

	// From either.
	frameProblem = 'x' // problem: the copy goes on
)

// A kind is the type of a file.
type kind byte

const (
	kindFile kind = 'f'
	kindDir  kind = 'd'
	kindLink kind = 'l'
)

// An entry is a file, as the sender sees it.
type entry struct {
	name   string // one component, or empty for the top
	kind   kind
	mode   uint32 // permission bits
	size   int64  // of a regular file
	mtime  int64  // ns since 1970
	target string // of a link
}

// A want asks for a file. Where offset isn't 0 the receiver has as many bytes
// already, with this hash.
type want struct {
	id     uint32
	path   string // from the top; empty: the top
	size   int64  // of the entry
	mtime  int64  // of the entry
	offset int64
	hash   [sha256.Size]byte
	flags  byte
}

const (
	wantHash = 1 << iota // tell the hash of the whole
	wantSame             // answer with frameSame if all of it is the same
)

// A fileHead begins a file. It has what is known of it now that it is open.
type fileHead struct {
	id    uint32
	mode  uint32
	size  int64
	mtime int64
	start int64 // where the data begin: 0, or the want's offset
	hash  []byte
}

// A closing ends a file.
type closing struct {
	id   uint32
	err  problem // class 0: none
	hash []byte  // nil, or of the whole file
}

// A problem is what went wrong with one path, or with all.
type problem struct {
	class byte
	cause cause
	path  string
	text  string
	hint  string
}

const (
	classFailed  = 'f' // it isn't copied
	classSpecial = 's' // it is neither file nor directory nor link
	classFatal   = '!' // all is over
)

// An action is one step of a dry run.
type action struct {
	op   byte // 'c'opy, 'd'elete
	path string
}

// A result is what a receiver has done.
type result struct {
	Files, Dirs, Links, Skipped, Deleted, Bytes, Resumed int64
}

// A job says what an agent is to do.
type job struct {
	version uint32
	send    bool
	path    string // of this end
	base    string // name of the source, for a directory that exists; empty: none
	rules   rules
}

// rules are what of the options a receiver has to know.
type rules struct {
	sync, del, dry, checksum, verify bool
}

func appendString(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

func appendInt(b []byte, v int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(v)) }

func (e *entry) append(b []byte) []byte {
	b = append(b, byte(e.kind))
	b = binary.BigEndian.AppendUint32(b, e.mode)
	b = appendInt(appendInt(b, e.size), e.mtime)
	return appendString(appendString(b, e.name), e.target)
}

func parseEntry(body []byte) (e entry, err error) {
	d := decoder{b: body}
	e = entry{kind: kind(d.byte()), mode: d.uint32() & 0o777, size: d.size(), mtime: d.int64(), name: d.string(maxPath), target: d.string(maxPath)}
	if e.kind != kindFile && e.kind != kindDir && e.kind != kindLink {
		d.fail("an entry of no kind")
	}
	if e.kind == kindLink && (e.target == "" || hasNUL(e.target)) {
		d.fail("a link without a target")
	}
	return e, d.end()
}

func (w *want) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, w.id)
	b = append(b, w.flags)
	b = appendInt(appendInt(appendInt(b, w.size), w.mtime), w.offset)
	b = append(b, w.hash[:]...)
	return appendString(b, w.path)
}

func parseWant(body []byte) (w want, err error) {
	d := decoder{b: body}
	w = want{id: d.uint32(), flags: d.byte(), size: d.size(), mtime: d.int64(), offset: d.size()}
	copy(w.hash[:], d.take(sha256.Size))
	w.path = d.string(maxPath)
	if w.path != "" && !validPath(w.path) {
		d.fail("a path that isn't below the top")
	}
	return w, d.end()
}

func (h *fileHead) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, h.id)
	b = binary.BigEndian.AppendUint32(b, h.mode)
	b = appendInt(appendInt(appendInt(b, h.size), h.mtime), h.start)
	return appendHash(b, h.hash)
}

// parseHead reads a fileHead and gives what follows it.
func parseHead(body []byte) (h fileHead, content []byte, err error) {
	d := decoder{b: body}
	h = fileHead{id: d.uint32(), mode: d.uint32() & 0o777, size: d.size(), mtime: d.int64(), start: d.size(), hash: d.hash()}
	if h.start > h.size {
		d.fail("a file that begins after its end")
	}
	content, d.b = d.b, nil
	return h, content, d.end()
}

func appendHash(b, hash []byte) []byte { return append(append(b, byte(len(hash))), hash...) }

func (c *closing) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, c.id)
	return c.err.append(appendHash(b, c.hash))
}

func parseClosing(body []byte) (c closing, err error) {
	d := decoder{b: body}
	c = closing{id: d.uint32(), hash: d.hash()}
	c.err = d.problem()
	return c, d.end()
}

func (p *problem) append(b []byte) []byte {
	b = append(b, p.class, byte(p.cause))
	return appendString(appendString(appendString(b, cut(p.path, maxPath)), cut(p.text, 1024)), cut(p.hint, 1024))
}

func parseProblem(body []byte) (problem, error) {
	d := decoder{b: body}
	p := d.problem()
	return p, d.end()
}

func cut(s string, n int) string { return s[:min(n, len(s))] }

func parseAction(body []byte) (action, error) {
	d := decoder{b: body}
	a := action{op: d.byte(), path: d.string(maxPath)}
	return a, d.end()
}

func (r *result) fields() []*int64 {
	return []*int64{&r.Files, &r.Dirs, &r.Links, &r.Skipped, &r.Deleted, &r.Bytes, &r.Resumed}
}

func (r *result) append(b []byte) []byte {
	for _, f := range r.fields() {
		b = appendInt(b, *f)
	}
	return b
}

func parseResult(body []byte) (r result, err error) {
	d := decoder{b: body}
	for _, f := range r.fields() {
		*f = d.size()
	}
	return r, d.end()
}

func (j *job) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, version)
	b = appendBools(b, j.send, j.rules.sync, j.rules.del, j.rules.dry, j.rules.checksum, j.rules.verify)
	return appendString(appendString(b, j.path), j.base)
}

func appendBools(b []byte, v ...bool) []byte {
	for _, v := range v {
		if v {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	return b
}

func parseJob(body []byte) (j job, err error) {
	d := decoder{b: body}
	j = job{version: d.uint32(), send: d.bool()}
	j.rules = rules{sync: d.bool(), del: d.bool(), dry: d.bool(), checksum: d.bool(), verify: d.bool()}
	j.path, j.base = d.string(maxPath), d.string(maxPath)
	if j.version != version {
		return j, fmt.Errorf("%w: version %d, not %d", errProtocol, j.version, version)
	}
	return j, d.end()
}

// A decoder takes a body apart. After an error it gives zero values; end has
// the error.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(text string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", errProtocol, text)
		d.b = nil
	}
}

func (d *decoder) take(n int) []byte {
	if n > len(d.b) {
		d.fail("a message is cut off")
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) bool() bool { return d.byte() != 0 }

func (d *decoder) uint32() uint32 {
	if b := d.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) int64() int64 {
	if b := d.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// size is an int64 that isn't negative and leaves room to add to it.
func (d *decoder) size() int64 {
	v := d.int64()
	if v < 0 || v > math.MaxInt64/2 {
		d.fail("a size that can't be")
		return 0
	}
	return v
}

func (d *decoder) string(most int) string {
	n := d.uint32()
	if n > uint32(most) {
		d.fail("a text that is too long")
		return ""
	}
	return string(d.take(int(n)))
}

func (d *decoder) hash() []byte {
	switch n := d.byte(); n {
	case 0:
		return nil
	case sha256.Size:
		return append([]byte(nil), d.take(sha256.Size)...)
	default:
		d.fail("a hash of another length")
		return nil
	}
}

func (d *decoder) problem() problem {
	return problem{class: d.byte(), cause: cause(d.byte()), path: d.string(maxPath), text: d.string(1024), hint: d.string(1024)}
}

func (d *decoder) end() error {
	if len(d.b) > 0 {
		d.fail("a message is too long")
	}
	return d.err
}
