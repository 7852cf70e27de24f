package sshmux

import (
	"context"
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
			return attachShim(t, serveMaster(t, MasterOptions{}), path)
		},
		Probe: here,
		Facts: &shimFacts,
	})
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
