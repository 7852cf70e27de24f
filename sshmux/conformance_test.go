package sshmux

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/exectest"
	"github.com/hpcexec/hpcexec/internal/sshtest"
)

// shimFacts are what a place behind a shim on this machine is.
var shimFacts = hpcexec.Properties{
	Place: "local", SharesFilesystem: true, ReportsSignal: true, TreeByGroup: true, TreeWhole: true,
	OutlivesClient: true, Terminal: true, Signals: true,
}

// here runs commands on this machine without anything of this package.
func here(*testing.T) hpcexec.Executor { return &hpcexec.Local{} }

func dialShim(t *testing.T, path string) *Host {
	t.Helper()
	h, err := DialShim(context.Background(), path, HostOptions{Place: "local", SharesFilesystem: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func TestConformanceShim(t *testing.T) {
	path := serveShim(t)
	exectest.Run(t, exectest.Suite{
		New:   func(t *testing.T) hpcexec.Executor { return dialShim(t, path) },
		Probe: here,
		Facts: &shimFacts,
		Break: func(t *testing.T, ex hpcexec.Executor) { ex.(*Host).conn.Close() },
	})
}

func TestConformanceClient(t *testing.T) {
	path := serveShim(t)
	exectest.Run(t, exectest.Suite{
		New: func(t *testing.T) hpcexec.Executor {
			line := newLine(t, path)
			return &linedClient{attachShim(t, serveMaster(t, MasterOptions{}), line.path), line}
		},
		Probe: here,
		Facts: &shimFacts,
		Break: func(t *testing.T, ex hpcexec.Executor) { ex.(*linedClient).line.cut() },
	})
}

// A linedClient is a client whose master reaches the shim through a line that
// can be cut.
type linedClient struct {
	*Client
	line *line
}

// A line carries connections to a socket, until they are cut.
type line struct {
	path string

	mu    sync.Mutex
	conns []net.Conn
}

func newLine(t testing.TB, to string) *line {
	t.Helper()
	l := &line{path: filepath.Join(tempDir(t), "line")}
	ln, err := net.Listen("unix", l.path)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("unix", to)
			if err != nil {
				a.Close()
				continue
			}
			l.mu.Lock()
			l.conns = append(l.conns, a, b)
			l.mu.Unlock()
			for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
				serving.Go(func() {
					io.Copy(way[0], way[1])
					way[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		ln.Close()
		l.cut()
		serving.Wait()
	})
	return l
}

func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close()
	}
	l.conns = nil
}

func TestConformanceSSHD(t *testing.T) {
	facts := shimFacts
	facts.Place, facts.SharesFilesystem = "ssh:test", false
	// One case runs 64 commands at once; others have more than ten.
	server := sshtest.New(t, sshtest.Options{MaxSessions: 100})
	exectest.Run(t, exectest.Suite{
		New: func(t *testing.T) hpcexec.Executor {
			conn, chans, reqs := server.Connect()
			h := NewHost(conn, chans, reqs, HostOptions{Place: "ssh:test", Peer: PeerSSHD})
			t.Cleanup(func() { h.Close() })
			return h
		},
		Probe: here,
		Facts: &facts,
		Break: func(t *testing.T, ex hpcexec.Executor) { ex.(*Host).conn.Close() },
	})
}
