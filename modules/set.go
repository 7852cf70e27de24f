package modules

import (
	"context"
	"sync"

	"github.com/hpcexec/hpcexec"
)

// A Set runs commands with modules loaded: it adds the variables of their
// Delta to every request, which has the last word on each of them. What
// modules unset stays set, for a request can't take away.
//
// The modules are loaded once, with the first command, and again after a
// failure. It is safe for concurrent use.
type Set struct {
	client *Client
	names  []string
	base   hpcexec.Executor

	mu    sync.Mutex // held while they are loaded
	delta *Delta
}

var (
	_ hpcexec.Starter   = (*Set)(nil)
	_ hpcexec.Describer = (*Set)(nil)
)

// NewSet wraps base, in whose place the client's shell must run too.
func NewSet(base hpcexec.Executor, client *Client, names ...string) *Set {
	return &Set{client: client, names: names, base: base}
}

// Delta loads the modules, if that hasn't been done, and tells what they
// change. Loaded is for audit records.
func (s *Set) Delta(ctx context.Context) (Delta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.delta == nil {
		d, err := s.client.Load(ctx, s.names...)
		if err != nil {
			return Delta{}, err
		}
		s.delta = &d
	}
	return *s.delta, nil
}

// Properties are those of the base.
func (s *Set) Properties() hpcexec.Properties {
	if d, ok := s.base.(hpcexec.Describer); ok {
		return d.Properties()
	}
	return hpcexec.Properties{}
}

// Run runs one command. Beside the base's errors: those of [Client.Load].
func (s *Set) Run(ctx context.Context, req hpcexec.Request) (hpcexec.Response, error) {
	req, err := s.rewrite(ctx, req)
	if err != nil {
		return hpcexec.Response{Place: s.Properties().Place, ID: req.ID}, err
	}
	return s.base.Run(ctx, req)
}

// Start starts a command. The base must be a Starter, else it is ErrInvalid.
func (s *Set) Start(ctx context.Context, req hpcexec.Request) (hpcexec.Process, error) {
	starter, ok := s.base.(hpcexec.Starter)
	if !ok {
		return nil, hpcexec.Errorf(hpcexec.ErrInvalid, "this place can't start commands in the background")
	}
	req, err := s.rewrite(ctx, req)
	if err != nil {
		return nil, err
	}
	return starter.Start(ctx, req)
}

func (s *Set) rewrite(ctx context.Context, req hpcexec.Request) (hpcexec.Request, error) {
	if err := req.Check(); err != nil {
		return req, err
	}
	if ctx.Err() != nil {
		return req, context.Cause(ctx)
	}
	d, err := s.Delta(ctx)
	if err != nil {
		return req, err
	}
	req.Env = hpcexec.MergeEnv(d.Set, req.Env)
	return req, nil
}
