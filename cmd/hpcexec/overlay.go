package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/docker/go-units"
	"github.com/urfave/cli/v2"

	"github.com/hpcexec/hpcexec/internal/session"
)

func (in *invocation) overlayCommand() *cli.Command {
	return &cli.Command{
		Name:  "overlay",
		Usage: "see the writable layers of sessions",
		Description: `An overlay has what a session has written over its image. It stays when the
session stops, and goes with it on ` + "`hpcexec session rm`" + `.`,
		Subcommands: []*cli.Command{
			{
				Name: "ls", Usage: "list the overlays, who writes to them and what they hold", UsageText: "hpcexec overlay ls",
				Description: `WRITER is who holds the lease; BEAT is how long ago it gave a sign of life.

EXAMPLES:
   hpcexec overlay ls
   hpcexec overlay ls --json | jq -r '.overlays[] | select(.session == "").path'`,
				Action: in.overlayLs,
			},
			{
				Name: "du", Usage: "say what each overlay holds, and all of them", UsageText: "hpcexec overlay du",
				Description: `Bytes are those on disk, as quotas count them.

EXAMPLES:
   hpcexec overlay du`,
				Action: in.overlayDu,
			},
		},
	}
}

// overlaysJSON is what ls and du print.
type overlaysJSON struct {
	Overlays []session.OverlayInfo `json:"overlays"`
	Bytes    int64                 `json:"bytes"`
	Inodes   int64                 `json:"inodes"`
}

// overlays runs print with all overlays, or prints them as JSON.
func (in *invocation) overlays(c *cli.Context, print func(overlaysJSON) error) error {
	if _, err := in.args(0, 0, "no name"); err != nil {
		return err
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		list, err := m.Overlays(ctx)
		if err != nil {
			return err
		}
		in.progress.clear()
		all := overlaysJSON{Overlays: list}
		for _, o := range list {
			all.Bytes += o.Bytes
			all.Inodes += o.Inodes
		}
		if in.json {
			return printJSON(in.out, all)
		}
		return print(all)
	})
}

func (in *invocation) overlayLs(c *cli.Context) error {
	return in.overlays(c, func(all overlaysJSON) error {
		t := newTable("SESSION", "KIND", "WRITER", "BEAT", "BYTES", "INODES", "PATH")
		for _, o := range all.Overlays {
			var writer, beat string
			if h := o.Holder; h != nil {
				writer = fmt.Sprintf("%s:%d", h.Host, h.PID)
				beat = max(0, time.Since(h.Beat)).Round(time.Second).String()
				if h.Dead {
					beat += " (dead)"
				}
			}
			t.row(o.Session, o.Kind, writer, beat, units.BytesSize(float64(o.Bytes)), strconv.FormatInt(o.Inodes, 10), o.Path)
			if o.Problem != "" {
				fmt.Fprintf(in.err, "hpcexec: %s\n", safeText([]byte(o.Problem)))
			}
		}
		return t.print(in.out)
	})
}

func (in *invocation) overlayDu(c *cli.Context) error {
	return in.overlays(c, func(all overlaysJSON) error {
		t := newTable("BYTES", "INODES", "SESSION", "PATH")
		for _, o := range all.Overlays {
			t.row(units.BytesSize(float64(o.Bytes)), strconv.FormatInt(o.Inodes, 10), o.Session, o.Path)
		}
		t.row(units.BytesSize(float64(all.Bytes)), strconv.FormatInt(all.Inodes, 10), "", "total")
		return t.print(in.out)
	})
}
