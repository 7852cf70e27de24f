package sshmux

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hpcexec/hpcexec/internal/shim"
)

// The test binary is also the programs that tests start as processes.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "master":
		os.Exit(MasterMain(os.Args[2:]))
	case len(os.Args) > 1 && os.Args[1] == "shim":
		os.Exit(shim.Main(os.Args[2:]))
	case len(os.Args) > 2 && os.Args[1] == "pipe":
		os.Exit(pipeMain("tcp", os.Args[2]))
	case len(os.Args) > 2 && os.Args[1] == "bridge":
		os.Exit(pipeMain("unix", os.Args[2]))
	case len(os.Args) > 2 && os.Args[1] == "client":
		os.Exit(clientMain(os.Args[2], os.Args[3:]))
	}
	goleak.VerifyTestMain(m)
}

// tempDir is a directory for sockets: closed to others, with a short name.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mux")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// serveShim runs a shim in this process and gives its socket.
func serveShim(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(tempDir(t), "shim"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- shim.Serve(ctx, shim.Options{Listener: l}) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("shim: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("the shim doesn't end")
		}
	})
	return l.Addr().String()
}

// serveMaster runs a master in this process and gives its client.
func serveMaster(t testing.TB, opts MasterOptions) *Client {
	t.Helper()
	if opts.Socket == "" {
		opts.Socket = filepath.Join(tempDir(t), "master")
	}
	if opts.Host == "" {
		opts.Host = Local
	}
	if testing.Verbose() {
		opts.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	ready := make(chan struct{})
	opts.Ready = func() { close(ready) }
	go func() { served <- ServeMaster(ctx, opts) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("ServeMaster: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("ServeMaster doesn't end")
		}
	})
	select {
	case <-ready:
	case err := <-served:
		served <- nil
		t.Fatalf("ServeMaster: %v", err)
	case <-time.After(10 * time.Second):
		t.Fatal("the master isn't ready")
	}
	c, err := Open(opts.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// attachShim makes an endpoint for a shim and gives its client.
func attachShim(t testing.TB, master *Client, path string) *Client {
	t.Helper()
	e := Endpoint{Socket: filepath.Join(tempDir(t), "ep"), Place: "local", Kind: ShimSocket, Path: path, SharesFilesystem: true}
	if err := master.Attach(context.Background(), e); err != nil {
		t.Fatal(err)
	}
	c, err := Open(e.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
