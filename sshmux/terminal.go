package sshmux

import (
	"encoding/binary"
	"io"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// terminalSize is the size of the terminal that the descriptor is.
func (s *fdStream) terminalSize() (cols, rows int, err error) {
	// Without mu, which a Read that waits holds: the session's end, which
	// alone closes fd, comes after the last call.
	ws, err := unix.IoctlGetWinsize(s.fd, unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, err
	}
	return int(ws.Col), int(ws.Row), nil
}

// ptyRequest is the payload of "pty-req" (RFC 4254, section 6.2) for the
// terminal that fd is; sizes are 0 and modes empty where it is none.
func ptyRequest(term string, fd int) []byte {
	var cols, rows, xpixel, ypixel uint16
	if ws, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil {
		cols, rows, xpixel, ypixel = ws.Col, ws.Row, ws.Xpixel, ws.Ypixel
	}
	var modes []byte
	if tio, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
		modes = terminalModes(tio)
	}
	return ptyPayload(term, uint32(cols), uint32(rows), uint32(xpixel), uint32(ypixel), modes)
}

func ptyPayload(term string, cols, rows, xpixel, ypixel uint32, modes []byte) []byte {
	return ssh.Marshal(struct {
		Term                       string
		Cols, Rows, XPixel, YPixel uint32
		Modes                      string
	}{term, cols, rows, xpixel, ypixel, string(modes) + "\x00"})
}

// terminalModes encodes the settings of a terminal as RFC 4254, section 8,
// numbers them.
func terminalModes(tio *unix.Termios) []byte {
	var b []byte
	add := func(op byte, v uint32) {
		b = append(b, op)
		b = binary.BigEndian.AppendUint32(b, v)
	}
	for _, m := range []struct {
		op byte
		cc int
	}{
		{ssh.VINTR, unix.VINTR}, {ssh.VQUIT, unix.VQUIT}, {ssh.VERASE, unix.VERASE}, {ssh.VKILL, unix.VKILL},
		{ssh.VEOF, unix.VEOF}, {ssh.VEOL, unix.VEOL}, {ssh.VEOL2, unix.VEOL2}, {ssh.VSTART, unix.VSTART},
		{ssh.VSTOP, unix.VSTOP}, {ssh.VSUSP, unix.VSUSP}, {ssh.VREPRINT, unix.VREPRINT},
		{ssh.VWERASE, unix.VWERASE}, {ssh.VLNEXT, unix.VLNEXT}, {ssh.VDISCARD, unix.VDISCARD},
	} {
		v := uint32(tio.Cc[m.cc])
		if v == 0 { // disabled, here; RFC 4254 says 255
			v = 255
		}
		add(m.op, v)
	}
	for _, group := range []struct {
		flags uint32
		bits  []terminalBit
	}{
		{tio.Iflag, []terminalBit{
			{ssh.IGNPAR, unix.IGNPAR}, {ssh.PARMRK, unix.PARMRK}, {ssh.INPCK, unix.INPCK}, {ssh.ISTRIP, unix.ISTRIP},
			{ssh.INLCR, unix.INLCR}, {ssh.IGNCR, unix.IGNCR}, {ssh.ICRNL, unix.ICRNL}, {ssh.IUCLC, unix.IUCLC},
			{ssh.IXON, unix.IXON}, {ssh.IXANY, unix.IXANY}, {ssh.IXOFF, unix.IXOFF}, {ssh.IMAXBEL, unix.IMAXBEL},
			{ssh.IUTF8, unix.IUTF8},
		}},
		{tio.Lflag, []terminalBit{
			{ssh.ISIG, unix.ISIG}, {ssh.ICANON, unix.ICANON}, {ssh.XCASE, unix.XCASE}, {ssh.ECHO, unix.ECHO},
			{ssh.ECHOE, unix.ECHOE}, {ssh.ECHOK, unix.ECHOK}, {ssh.ECHONL, unix.ECHONL}, {ssh.NOFLSH, unix.NOFLSH},
			{ssh.TOSTOP, unix.TOSTOP}, {ssh.IEXTEN, unix.IEXTEN}, {ssh.ECHOCTL, unix.ECHOCTL}, {ssh.ECHOKE, unix.ECHOKE},
		}},
		{tio.Oflag, []terminalBit{
			{ssh.OPOST, unix.OPOST}, {ssh.OLCUC, unix.OLCUC}, {ssh.ONLCR, unix.ONLCR}, {ssh.OCRNL, unix.OCRNL},
			{ssh.ONOCR, unix.ONOCR}, {ssh.ONLRET, unix.ONLRET},
		}},
		{tio.Cflag, []terminalBit{{ssh.PARENB, unix.PARENB}, {ssh.PARODD, unix.PARODD}}},
	} {
		for _, bit := range group.bits {
			v := uint32(0)
			if group.flags&bit.flag != 0 {
				v = 1
			}
			add(bit.op, v)
		}
	}
	switch tio.Cflag & unix.CSIZE {
	case unix.CS7:
		add(ssh.CS7, 1)
	case unix.CS8:
		add(ssh.CS8, 1)
	}
	for _, op := range []byte{ssh.TTY_OP_ISPEED, ssh.TTY_OP_OSPEED} {
		add(op, 38400)
	}
	return b
}

type terminalBit struct {
	op   byte
	flag uint32
}

// An escapeReader gives what a user types, and obeys the escape character of
// OpenSSH at the beginning of a line: followed by a dot it disconnects,
// followed by itself it stands for itself.
type escapeReader struct {
	r          io.Reader
	escape     byte
	disconnect func()

	midLine bool   // something was typed since the last newline
	escaped bool   // the escape character was typed
	held    []byte // read, and filtered, but not given yet
}

func (e *escapeReader) Read(p []byte) (int, error) {
	for len(e.held) == 0 {
		n, err := e.r.Read(p)
		if err != nil {
			return 0, err
		}
		ok := true
		if e.held, ok = e.filter(p[:n]); !ok {
			e.disconnect()
			return 0, io.EOF
		}
	}
	n := copy(p, e.held)
	e.held = e.held[n:]
	return n, nil
}

// filter is p without escapes; ok is false for the order to disconnect.
func (e *escapeReader) filter(p []byte) (out []byte, ok bool) {
	out = make([]byte, 0, len(p)+1)
	for _, b := range p {
		if e.escaped {
			e.escaped = false
			switch b {
			case '.':
				return nil, false
			case e.escape:
			default:
				out = append(out, e.escape)
			}
		} else if b == e.escape && !e.midLine {
			e.escaped = true
			continue
		}
		out = append(out, b)
		e.midLine = b != '\r' && b != '\n'
	}
	return out, true
}
