package slurm

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

// maxLog bounds what is kept of srun's own messages.
const maxLog = 64 << 10

// A marked writer passes an output on and takes out the marks of the step
// (stepscript.go), of which it tells. Bytes that may be the beginning of a
// mark are held back until the next write shows what they are.
type marked struct {
	mark []byte            // what each mark begins with
	told func(line string) // a mark was seen; not called by two at once
	out  io.Writer         // may be nil
	lock *sync.Mutex       // of both outputs, where they go to one writer
	fail func()            // out has failed

	held []byte
	over bool // the command's output has ended: what comes is somebody else's
	rest bool // srun's own words follow
	dead bool // out has failed
	tail []byte
	log  []byte
}

// maxLine bounds the line of a mark. A longer one is no mark.
const maxLine = 512

func (m *marked) Write(p []byte) (int, error) {
	n := len(p)
	if len(m.held) > 0 {
		p = append(m.held, p...)
		m.held = nil
	}
	for len(p) > 0 {
		if m.rest {
			m.log = append(m.log, p[:min(len(p), maxLog-len(m.log))]...)
			break
		}
		at := bytes.IndexByte(p, m.mark[0])
		if at < 0 {
			m.pass(p)
			break
		}
		m.pass(p[:at])
		p = p[at:]
		switch {
		case len(p) < len(m.mark) && bytes.HasPrefix(m.mark, p):
			m.held = append([]byte(nil), p...)
			return n, nil
		case !bytes.HasPrefix(p, m.mark):
			m.pass(p[:1])
			p = p[1:]
			continue
		}
		end := bytes.IndexByte(p, '\n')
		switch {
		case end < 0 && len(p) < maxLine:
			m.held = append([]byte(nil), p...)
			return n, nil
		case end < 0 || end >= maxLine:
			m.pass(p[:1])
			p = p[1:]
			continue
		}
		m.tell(strings.TrimSpace(string(p[len(m.mark):end]))) // a terminal adds CR
		p = p[end+1:]
	}
	return n, nil
}

func (m *marked) tell(line string) {
	what, _, _ := strings.Cut(line, " ")
	switch what {
	case "end", "out", "dir":
		m.over = true
	case "srun":
		m.rest = true
	}
	m.told(line)
}

// flush passes on what was held back, once nothing more comes.
func (m *marked) flush() {
	held := m.held
	m.held = nil
	if !m.rest {
		m.pass(held)
	}
}

func (m *marked) pass(p []byte) {
	if len(p) == 0 || m.over {
		return
	}
	if len(m.tail) > maxLine {
		m.tail = m.tail[len(m.tail)-maxLine:]
	}
	m.tail = append(m.tail, p[max(0, len(p)-maxLine):]...)
	if m.out == nil || m.dead {
		return
	}
	if m.lock != nil {
		m.lock.Lock()
		defer m.lock.Unlock()
	}
	if _, err := m.out.Write(p); err != nil {
		// The command gets SIGPIPE (step.go). srun isn't told: up to 24.11
		// it would go on for ever when its output is closed.
		m.dead = true
		m.fail()
	}
}
