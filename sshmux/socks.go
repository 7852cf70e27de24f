package sshmux

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// errSOCKS is the error of a client that speaks no SOCKS, or asks for what
// isn't served: only connections to be made are (RFC 1928, and versions 4 and
// 4A).
var errSOCKS = errors.New("not a SOCKS request for a connection")

// readSOCKS reads to where a client wants to be connected. It writes what
// version 5 says on the way. answer tells the client how it went.
func readSOCKS(rw io.ReadWriter) (host string, port uint32, answer func(ok bool) error, err error) {
	// One byte at a time: what follows the request belongs to the connection.
	r := bufio.NewReaderSize(oneByte{rw}, 16)
	version, err := r.ReadByte()
	if err != nil {
		return "", 0, nil, err
	}
	switch version {
	case 4:
		return readSOCKS4(r, rw)
	case 5:
		return readSOCKS5(r, rw)
	}
	return "", 0, nil, fmt.Errorf("%w: version %d", errSOCKS, version)
}

type oneByte struct{ r io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.r.Read(p[:1]) }

// readSOCKS4 reads: command, port, address, user, and in version 4A, where the
// address is 0.0.0.x, a name.
func readSOCKS4(r *bufio.Reader, w io.Writer) (host string, port uint32, answer func(bool) error, err error) {
	var head [7]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", 0, nil, err
	}
	if head[0] != 1 {
		return "", 0, nil, fmt.Errorf("%w: command %d", errSOCKS, head[0])
	}
	port = uint32(binary.BigEndian.Uint16(head[1:]))
	if _, err := readText(r); err != nil { // user
		return "", 0, nil, err
	}
	host = net.IP(head[3:7]).String()
	if head[3] == 0 && head[4] == 0 && head[5] == 0 && head[6] != 0 {
		if host, err = readText(r); err != nil {
			return "", 0, nil, err
		}
	}
	return host, port, func(ok bool) error {
		reply := [8]byte{1: 91} // refused
		if ok {
			reply[1] = 90
		}
		_, err := w.Write(reply[:])
		return err
	}, nil
}

// readText reads a text with a NUL at its end.
func readText(r *bufio.Reader) (string, error) {
	var b []byte
	for len(b) < 256 {
		c, err := r.ReadByte()
		if err != nil {
			return "", err
		}
		if c == 0 {
			return string(b), nil
		}
		b = append(b, c)
	}
	return "", fmt.Errorf("%w: text too long", errSOCKS)
}

// readSOCKS5 agrees on no authentication and reads the request.
func readSOCKS5(r *bufio.Reader, w io.Writer) (host string, port uint32, answer func(bool) error, err error) {
	n, err := r.ReadByte()
	if err != nil {
		return "", 0, nil, err
	}
	methods := make([]byte, n)
	if _, err := io.ReadFull(r, methods); err != nil {
		return "", 0, nil, err
	}
	ok := false
	for _, m := range methods {
		ok = ok || m == 0
	}
	if !ok {
		w.Write([]byte{5, 0xff})
		return "", 0, nil, fmt.Errorf("%w: only without authentication", errSOCKS)
	}
	if _, err := w.Write([]byte{5, 0}); err != nil {
		return "", 0, nil, err
	}
	var head [4]byte // version, command, reserved, kind of address
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", 0, nil, err
	}
	if head[0] != 5 || head[1] != 1 {
		w.Write([]byte{5, 7, 0, 1, 0, 0, 0, 0, 0, 0}) // command not supported
		return "", 0, nil, fmt.Errorf("%w: command %d", errSOCKS, head[1])
	}
	size := 0
	switch head[3] {
	case 1:
		size = net.IPv4len
	case 4:
		size = net.IPv6len
	case 3:
		n, err := r.ReadByte()
		if err != nil {
			return "", 0, nil, err
		}
		size = int(n)
	default:
		w.Write([]byte{5, 8, 0, 1, 0, 0, 0, 0, 0, 0}) // kind not supported
		return "", 0, nil, fmt.Errorf("%w: kind of address %d", errSOCKS, head[3])
	}
	rest := make([]byte, size+2)
	if _, err := io.ReadFull(r, rest); err != nil {
		return "", 0, nil, err
	}
	if head[3] == 3 {
		host = string(rest[:size])
	} else {
		host = net.IP(rest[:size]).String()
	}
	port = uint32(binary.BigEndian.Uint16(rest[size:]))
	return host, port, func(ok bool) error {
		reply := [10]byte{5, 5, 0, 1} // refused
		if ok {
			reply[1] = 0
		}
		_, err := w.Write(reply[:])
		return err
	}, nil
}
