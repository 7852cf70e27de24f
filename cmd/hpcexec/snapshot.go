package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/urfave/cli/v2"

	"github.com/hpcexec/hpcexec/internal/session"
	"github.com/hpcexec/hpcexec/snapshots"
)

func (in *invocation) snapshotCommand() *cli.Command {
	return &cli.Command{
		Name:  "snapshot",
		Usage: "keep, restore and fork the files of a session",
		Description: `A snapshot is what a session has written over its image, as one immutable file
with a checksum. It costs what changed, and nothing to mount.`,
		Subcommands: []*cli.Command{
			{
				Name: "create", Usage: "keep the state of a session", UsageText: "hpcexec snapshot create NAME [--note TEXT]",
				Description: "The session may run; files that are being written are kept as they are then.\n\nEXAMPLES:\n   hpcexec snapshot create train --note 'after pip install'\n   id=$(hpcexec snapshot create train --json | jq -r .id)",
				Flags:       []cli.Flag{&cli.StringFlag{Name: "note", Usage: "remember `TEXT` with it"}},
				Action:      in.snapshotCreate,
			},
			{
				Name: "ls", Usage: "list the snapshots", UsageText: "hpcexec snapshot ls",
				Description: "EXAMPLES:\n   hpcexec snapshot ls",
				Action:      in.snapshotLs,
			},
			{
				Name: "show", Usage: "say what is known of a snapshot", UsageText: "hpcexec snapshot show ID",
				Description: "EXAMPLES:\n   hpcexec snapshot show 7f3a",
				Action:      in.snapshotShow,
			},
			{
				Name: "restore", Usage: "put a session back to a snapshot", UsageText: "hpcexec snapshot restore NAME ID [--yes]",
				Description: "Stops the session. The state until then is kept as a snapshot, which is\nprinted. It asks, unless --yes is given.\n\nEXAMPLES:\n   hpcexec snapshot restore train 7f3a",
				Flags:       []cli.Flag{&cli.BoolFlag{DisableDefaultText: true, Name: "yes", Aliases: []string{"y"}, Usage: "don't ask"}},
				Action:      in.snapshotRestore,
			},
			{
				Name: "fork", Usage: "make a session that starts from a snapshot", UsageText: "hpcexec snapshot fork ID NEWNAME",
				Description: "The new session has the image, place and options of the old one, and shares\nnothing that is written later.\n\nEXAMPLES:\n   hpcexec snapshot fork 7f3a experiment-2",
				Action:      in.snapshotFork,
			},
			in.diffCommand(),
			in.verifyCommand(),
			{
				Name: "rm", Usage: "remove snapshots", UsageText: "hpcexec snapshot rm ID… [--yes]",
				Description: "A snapshot that a session or another snapshot lies on stays. It asks, unless\n--yes is given.\n\nEXAMPLES:\n   hpcexec snapshot rm 7f3a",
				Flags:       []cli.Flag{&cli.BoolFlag{DisableDefaultText: true, Name: "yes", Aliases: []string{"y"}, Usage: "don't ask"}},
				Action:      in.snapshotRm,
			},
			in.pruneCommand(),
		},
	}
}

func (in *invocation) snapshotCreate(c *cli.Context) error {
	names, err := in.args(1, 1, "the name of a session")
	if err != nil {
		return err
	}
	if err := session.CheckName(names[0]); err != nil {
		return err
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		s, err := m.Snapshot(ctx, names[0], c.String("note"))
		if err != nil {
			return err
		}
		return in.printSnapshotID(s)
	})
}

// snapshotJSON is how a snapshot is printed: its manifest, the snapshot beneath
// it and what is wrong with it.
type snapshotJSON struct {
	snapshots.Snapshot
	Parent  string `json:"parent"`
	Problem string `json:"problem,omitempty"`
}

// printSnapshotID says which snapshot was made: what a script needs.
func (in *invocation) printSnapshotID(s snapshots.Snapshot) error {
	in.progress.clear()
	if in.json {
		return printJSON(in.out, snapshotJSON{s, s.Parent(), s.Problem})
	}
	_, err := fmt.Fprintln(in.out, s.ID)
	return err
}

func (in *invocation) snapshotLs(c *cli.Context) error {
	if _, err := in.args(0, 0, "no name"); err != nil {
		return err
	}
	store, err := in.store()
	if err != nil {
		return err
	}
	list, err := store.List(c.Context)
	if err != nil {
		return err
	}
	if in.json {
		all := make([]snapshotJSON, len(list))
		for i, s := range list {
			all[i] = snapshotJSON{s, s.Parent(), s.Problem}
		}
		return printJSON(in.out, map[string]any{"snapshots": all})
	}
	t := newTable("ID", "SESSION", "CREATED", "SIZE", "IMAGE", "NOTE")
	for _, s := range list {
		t.row(s.ID, s.Session, s.Created.Local().Format(time.DateTime), units.BytesSize(float64(s.Size)), s.Image.Path, s.Message)
	}
	return t.print(in.out)
}

func (in *invocation) store() (*snapshots.Store, error) {
	m, err := in.manager()
	if err != nil {
		return nil, err
	}
	return m.Store()
}

func (in *invocation) snapshotShow(*cli.Context) error {
	ids, err := in.args(1, 1, "the id of a snapshot")
	if err != nil {
		return err
	}
	store, err := in.store()
	if err != nil {
		return err
	}
	s, err := store.Get(ids[0])
	if err != nil {
		return err
	}
	if in.json {
		return printJSON(in.out, snapshotJSON{s, s.Parent(), s.Problem})
	}
	for _, l := range [][2]string{
		{"id", s.ID}, {"session", s.Session}, {"created", s.Created.Local().Format(time.DateTime)},
		{"size", units.BytesSize(float64(s.Size))}, {"image", s.Image.Path}, {"parent", s.Parent()}, {"note", s.Message}, {"problem", s.Problem},
	} {
		if l[1] != "" {
			fmt.Fprintf(in.out, "%-13s %s\n", l[0], safeText([]byte(l[1])))
		}
	}
	return nil
}

func (in *invocation) snapshotRestore(c *cli.Context) error {
	names, err := in.args(2, 2, "the name of a session and the id of a snapshot")
	if err != nil {
		return err
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	if _, err := m.Dirs.Load(names[0]); err != nil {
		if _, e := m.Dirs.Load(names[1]); e != nil {
			return err
		}
		slices.Reverse(names) // fork has them in this order
	}
	if !c.Bool("yes") {
		if err := in.confirm("stop " + names[0] + " and put it back to snapshot " + names[1] + "?"); err != nil {
			return err
		}
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		kept, err := m.Restore(ctx, names[0], names[1])
		if err != nil {
			return err
		}
		in.progress.clear()
		if in.json {
			return printJSON(in.out, map[string]any{"name": names[0], "restored": names[1], "kept": snapshotJSON{kept, kept.Parent(), kept.Problem}})
		}
		_, err = fmt.Fprintf(in.out, "%s is snapshot %s; what it was is snapshot %s\n", names[0], names[1], kept.ID)
		return err
	})
}

func (in *invocation) snapshotFork(c *cli.Context) error {
	names, err := in.args(2, 2, "the id of a snapshot and a new name")
	if err != nil {
		return err
	}
	if err := session.CheckName(names[1]); err != nil {
		return err
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		info, err := m.Fork(ctx, names[0], names[1])
		if err != nil {
			return err
		}
		return in.printInfo(info)
	})
}

func (in *invocation) snapshotRm(c *cli.Context) error {
	ids, err := in.args(1, 1000, "ids of snapshots")
	if err != nil {
		return err
	}
	if !c.Bool("yes") {
		if err := in.confirm("remove " + strings.Join(ids, ", ") + " for good?"); err != nil {
			return err
		}
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	store, err := m.Store()
	if err != nil {
		return err
	}
	return in.each(ids, func(id string) (any, error) {
		s, err := store.Get(id)
		if err != nil {
			return nil, err
		}
		inUse := func(_ context.Context, id string) ([]string, error) { return m.References(id) }
		return map[string]any{"id": s.ID, "removed": true}, store.Remove(c.Context, s.ID, snapshots.RemoveOptions{InUse: inUse})
	})
}

func snapshotIDs(m *session.Manager) []string {
	store, err := m.Store()
	if err != nil {
		return nil
	}
	list, _ := store.List(context.Background())
	ids := make([]string, len(list))
	for i, s := range list {
		ids[i] = s.ID
	}
	return ids
}
