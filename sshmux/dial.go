package sshmux

import (
	"context"

	"github.com/hpcexec/hpcexec"
)

// Dial connects to a host as `ssh` would.
func Dial(ctx context.Context, host string, opts HostOptions) (*Host, error) {
	return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "not yet")
}
