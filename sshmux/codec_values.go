package sshmux

import (
	"encoding/binary"
	"fmt"
)

// appendMessage appends a message without a request id.
func appendMessage(b []byte, typ uint32, body func([]byte) []byte) []byte {
	at := len(b)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, typ)
	if body != nil {
		b = body(b)
	}
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

// appendRequest appends a message with a request id, which all but HELLO have.
func appendRequest(b []byte, typ, id uint32, body func([]byte) []byte) []byte {
	return appendMessage(b, typ, func(b []byte) []byte {
		b = binary.BigEndian.AppendUint32(b, id)
		if body != nil {
			b = body(b)
		}
		return b
	})
}

// appendNumber appends a message whose body is one number after the id.
func appendNumber(b []byte, typ, id, v uint32) []byte {
	return appendRequest(b, typ, id, func(b []byte) []byte {
		return binary.BigEndian.AppendUint32(b, v)
	})
}

// appendText appends a message whose body is one string after the id.
func appendText[T string | []byte](b []byte, typ, id uint32, s T) []byte {
	return appendRequest(b, typ, id, func(b []byte) []byte { return appendString(b, s) })
}

func appendString[T string | []byte](b []byte, s T) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

// appendBool appends a flag. PROTOCOL.mux calls it a bool; on the wire it is a
// uint32.
func appendBool(b []byte, v bool) []byte {
	if v {
		return binary.BigEndian.AppendUint32(b, 1)
	}
	return binary.BigEndian.AppendUint32(b, 0)
}

// A decoder takes values off the front of a body. After the first error it
// gives zero values.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
	}
	d.rest = nil
}

func (d *decoder) uint32() uint32 {
	if d.err != nil {
		return 0
	}
	if len(d.rest) < 4 {
		d.fail("%d bytes where a number was expected", len(d.rest))
		return 0
	}
	v := binary.BigEndian.Uint32(d.rest)
	d.rest = d.rest[4:]
	return v
}

func (d *decoder) bool() bool { return d.uint32() != 0 }

// bytes is a part of the body, not a copy.
func (d *decoder) bytes() []byte {
	n := d.uint32()
	if d.err != nil {
		return nil
	}
	if uint64(n) > uint64(len(d.rest)) {
		d.fail("string of %d bytes where %d are left", n, len(d.rest))
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) string() string { return string(d.bytes()) }

// end is the error of the whole body; bytes that are left over are one.
func (d *decoder) end() error {
	if d.err == nil && len(d.rest) > 0 {
		d.fail("%d bytes too many", len(d.rest))
	}
	return d.err
}
