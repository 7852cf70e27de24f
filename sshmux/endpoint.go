package sshmux

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"

	"github.com/hpcexec/hpcexec"
)

// A Kind is how the place behind an endpoint is reached.
type Kind string

const (
	// ShimSocket: a shim listens on a unix socket of the host.
	ShimSocket Kind = "shim-socket"

	// ShimStdio: a command on the host is the shim, on its stdin and stdout.
	ShimStdio Kind = "shim-stdio"

	// SSH: the host itself, through its SSH server.
	SSH Kind = "ssh"
)

// An Endpoint is a place that a master serves on a socket of its own. The
// socket speaks the same protocol as the master's.
type Endpoint struct {
	// Socket is the path where the master listens.
	Socket string `json:"socket"`

	// Place is for Response.Place.
	Place string `json:"place"`

	Kind Kind `json:"kind"`

	// Path is where a ShimSocket listens on the host.
	Path string `json:"path,omitempty"`

	// BridgeCommand joins its stdin and stdout with Path, for hosts that
	// don't let their SSH server do that; it runs on the host.
	BridgeCommand []string `json:"bridge_command,omitempty"`

	// Command is a ShimStdio's.
	Command []string `json:"command,omitempty"`

	SharesFilesystem bool `json:"shares_filesystem,omitempty"`
}

// check says whether e is well formed.
func (e *Endpoint) check() error {
	if err := checkSocketPath(e.Socket); err != nil {
		return err
	}
	switch {
	case e.Kind == ShimSocket && e.Path != "":
	case e.Kind == ShimStdio && len(e.Command) > 0:
	case e.Kind == SSH:
	default:
		return hpcexec.Errorf(hpcexec.ErrInvalid, "endpoint %s: kind %q lacks a path or a command, or is unknown", e.Socket, e.Kind)
	}
	return nil
}

func (e *Endpoint) same(f *Endpoint) bool {
	return e.Socket == f.Socket && e.Place == f.Place && e.Kind == f.Kind && e.Path == f.Path &&
		e.SharesFilesystem == f.SharesFilesystem &&
		slices.Equal(e.BridgeCommand, f.BridgeCommand) && slices.Equal(e.Command, f.Command)
}

// A carrier gives byte streams into a host: over its SSH connection, or on
// this machine where there is none.
type carrier interface {
	unix(ctx context.Context, path string) (io.ReadWriteCloser, error)
	command(ctx context.Context, argv []string) (io.ReadWriteCloser, error)
}

// farCarrier carries over an SSH connection.
type farCarrier struct{ link *link }

func (c farCarrier) unix(ctx context.Context, path string) (io.ReadWriteCloser, error) {
	h, err := c.link.get(ctx)
	if err != nil {
		return nil, err
	}
	return h.dialUnix(ctx, path)
}

func (c farCarrier) command(ctx context.Context, argv []string) (io.ReadWriteCloser, error) {
	h, err := c.link.get(ctx)
	if err != nil {
		return nil, err
	}
	return h.command(ctx, argv)
}

// nearCarrier is this machine.
type nearCarrier struct{}

func (nearCarrier) unix(ctx context.Context, path string) (io.ReadWriteCloser, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "shim: %w", err)
	}
	return c, nil
}

func (nearCarrier) command(_ context.Context, argv []string) (io.ReadWriteCloser, error) {
	return localCommand(argv)
}

// shimLink is the link to the shim of an endpoint.
func shimLink(e Endpoint, via carrier) *link {
	var bridge atomic.Bool // the direct way was refused, and the bridge worked
	opts := HostOptions{Place: e.Place, SharesFilesystem: e.SharesFilesystem}
	throughCommand := func(ctx context.Context, argv []string) (*Host, error) {
		c, err := via.command(ctx, argv)
		if err != nil {
			return nil, err
		}
		h, err := shimHost(ctx, c, opts)
		if cs, ok := c.(*commandStream); ok && err != nil {
			err = cs.explain(err)
		}
		return h, err
	}
	direct := func(ctx context.Context) (*Host, error) {
		c, err := via.unix(ctx, e.Path)
		if err != nil {
			return nil, err
		}
		return shimHost(ctx, c, opts)
	}
	return &link{dial: func(ctx context.Context) (*Host, error) {
		if e.Kind == ShimStdio {
			return throughCommand(ctx, e.Command)
		}
		if len(e.BridgeCommand) == 0 {
			return direct(ctx)
		}
		if bridge.Load() {
			if h, err := throughCommand(ctx, e.BridgeCommand); err == nil {
				return h, nil
			}
		}
		h, err := direct(ctx)
		if err == nil || !errors.Is(err, hpcexec.ErrUnavailable) {
			return h, err
		}
		if ctx.Err() != nil {
			return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%s was closed while the connection to it was made", e.Place)
		}
		h, err2 := throughCommand(ctx, e.BridgeCommand)
		if err2 != nil {
			return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "%w; through the bridge: %v", err, err2)
		}
		bridge.Store(true)
		return h, nil
	}}
}
