//go:build testbed

package sshmux

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/exectest"
)

// These tests run as a user on a node of the testbed, with the test binary in
// a place that all nodes share (see testbed/).

// farNode is the node that they reach by ssh.
const farNode = "gpu1"

func dialNode(t *testing.T, opts HostOptions) *Host {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	h, err := Dial(ctx, farNode, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// farShim is a shim on the far node, at the end of a session of sshd.
func farShim(t *testing.T) *Host {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	carrier := dialNode(t, HostOptions{Place: "ssh:" + farNode, Peer: PeerSSHD})
	c, err := carrier.command(context.Background(), []string{exe, "shim", "--stdio"})
	if err != nil {
		t.Fatal(err)
	}
	h, err := shimHost(context.Background(), c, HostOptions{Place: "ssh:" + farNode})
	if err != nil {
		t.Fatal(c.(*commandStream).explain(err))
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func TestTestbedConformanceShim(t *testing.T) {
	facts := shimFacts
	facts.Place, facts.SharesFilesystem = "ssh:"+farNode, false
	probe := farShim(t)
	exectest.Run(t, exectest.Suite{
		New:   func(t *testing.T) hpcexec.Executor { return farShim(t) },
		Probe: func(*testing.T) hpcexec.Executor { return probe },
		Facts: &facts,
		Break: func(t *testing.T, ex hpcexec.Executor) { ex.(*Host).conn.Close() },
	})
}

func TestTestbedConformanceMaster(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(tempDir(t), "m")
	ctx := t.Context()
	master, err := EnsureMaster(ctx, EnsureOptions{Host: farNode, Socket: socket, Argv: []string{exe, "master", "--host", farNode, "--socket", socket}})
	if err != nil {
		t.Fatal(err)
	}
	defer master.Stop(context.Background())
	e := Endpoint{Socket: filepath.Join(tempDir(t), "e"), Place: "ssh:" + farNode, Kind: ShimStdio, Command: []string{exe, "shim", "--stdio"}}
	if err := master.Attach(ctx, e); err != nil {
		t.Fatal(err)
	}
	facts := shimFacts
	facts.Place, facts.SharesFilesystem, facts.OutlivesClient = "ssh:"+farNode, false, true
	exectest.Run(t, exectest.Suite{
		New: func(t *testing.T) hpcexec.Executor {
			c, err := Open(e.Socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		},
		Facts: &facts,
	})
}

func TestTestbedConformanceSSHD(t *testing.T) {
	facts := shimFacts
	facts.Place, facts.SharesFilesystem = "ssh:"+farNode, false
	probe := farShim(t)
	exectest.Run(t, exectest.Suite{
		New: func(t *testing.T) hpcexec.Executor {
			return dialNode(t, HostOptions{Place: "ssh:" + farNode, Peer: PeerSSHD})
		},
		Probe: func(*testing.T) hpcexec.Executor { return probe },
		Facts: &facts,
		Break: func(t *testing.T, ex hpcexec.Executor) { ex.(*Host).conn.Close() },
	})
}
