package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/urfave/cli/v2"

	"github.com/hpcexec/hpcexec/internal/session"
	"github.com/hpcexec/hpcexec/snapshots"
)

func (in *invocation) diffCommand() *cli.Command {
	return &cli.Command{
		Name: "diff", Usage: "say which files two states differ in", UsageText: "hpcexec snapshot diff ID [ID2|NAME]",
		Description: `With one ID: what the snapshot changed in the snapshot or image beneath it. With
two: what became of ID in ID2, or in the session NAME as it is now, which may run.
Times and owners don't count.

EXAMPLES:
   hpcexec snapshot diff 7f3a
   hpcexec snapshot diff 7f3a train
   hpcexec snapshot diff 7f3a 91bc --json | jq -r '.changes[] | select(.change == "removed").path'`,
		Action: in.snapshotDiff,
	}
}

func (in *invocation) snapshotDiff(c *cli.Context) error {
	names, err := in.args(1, 2, "the id of a snapshot, and another id or the name of a session")
	if err != nil {
		return err
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	to := ""
	if len(names) == 2 {
		to = names[1]
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		d, err := m.Diff(ctx, names[0], to)
		if err != nil {
			return err
		}
		in.progress.clear()
		if in.json {
			return in.printDiffJSON(d)
		}
		return in.printDiff(d)
	})
}

// printDiffJSON gives a path that isn't UTF-8 as safe text, as all JSON here.
func (in *invocation) printDiffJSON(d session.Comparison) error {
	if d.Changes == nil {
		d.Changes = []snapshots.Change{}
	}
	for i := range d.Changes {
		d.Changes[i].Path = safeText([]byte(d.Changes[i].Path))
	}
	return printJSON(in.out, d)
}

func (in *invocation) printDiff(d session.Comparison) error {
	if d.ImageProblem != "" {
		fmt.Fprintf(in.err, "hpcexec: without the image (%s): what replaces its files shows as added\n", safeText([]byte(d.ImageProblem)))
	}
	for _, path := range d.Unreadable {
		fmt.Fprintf(in.err, "hpcexec: %s can't be read and isn't compared\n", safeText([]byte(path)))
	}
	if len(d.Changes) > 0 {
		t := newTable("CHANGE", "TYPE", "OLD SIZE", "SIZE", "PATH")
		for _, ch := range d.Changes {
			var old, now string
			if ch.Type == "file" && ch.Change != "added" {
				old = units.BytesSize(float64(ch.OldSize))
			}
			if ch.Type == "file" && ch.Change != "removed" {
				now = units.BytesSize(float64(ch.Size))
			}
			t.row(ch.Change, ch.Type, old, now, strings.ReplaceAll(ch.Path, "\n", "\\n"))
		}
		if err := t.print(in.out); err != nil {
			return err
		}
	}
	var parts []string
	for _, s := range []struct {
		word string
		sum  snapshots.Sum
	}{{"added", d.Added}, {"changed", d.Changed}, {"removed", d.Removed}} {
		parts = append(parts, fmt.Sprintf("%d %s (%s)", s.sum.Count, s.word, units.BytesSize(float64(s.sum.Bytes))))
	}
	_, err := fmt.Fprintln(in.out, strings.Join(parts, ", "))
	return err
}

func (in *invocation) verifyCommand() *cli.Command {
	return &cli.Command{
		Name: "verify", Usage: "compare snapshots with their checksums", UsageText: "hpcexec snapshot verify [ID…]",
		Description: `Reads each, all of them without an ID. A snapshot that isn't what it was is an
error; the others are read all the same.

EXAMPLES:
   hpcexec snapshot verify
   hpcexec snapshot verify 7f3a 91bc`,
		Action: in.snapshotVerify,
	}
}

func (in *invocation) snapshotVerify(c *cli.Context) error {
	ids, err := in.args(0, 1000, "ids of snapshots")
	if err != nil {
		return err
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		var failed error
		err := m.VerifySnapshots(ctx, ids, func(id string, err error) {
			in.progress.clear()
			switch {
			case err != nil:
				if failed != nil {
					in.printFailure(failed)
				}
				failed = err
			case in.json:
				printJSON(in.out, map[string]any{"id": id, "ok": true})
			default:
				fmt.Fprintf(in.out, "%s is sound\n", id)
			}
		})
		if err != nil && failed != nil {
			in.printFailure(failed)
		}
		if err != nil {
			return err
		}
		return failed
	})
}

func (in *invocation) pruneCommand() *cli.Command {
	return &cli.Command{
		Name: "prune", Usage: "remove old snapshots", UsageText: "hpcexec snapshot prune [--keep N] [--older D] [--dry-run] [--yes]",
		Description: `A snapshot goes if it is not among the N newest of its session and is older than
D; give one or both. What a session or another snapshot lies on stays, and so
does a damaged one. It asks, unless --yes is given.

EXAMPLES:
   hpcexec snapshot prune --keep 3 --dry-run
   hpcexec snapshot prune --keep 1 --older 30d --yes`,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "keep", Usage: "keep the `N` newest of each session"},
			&cli.StringFlag{Name: "older", Usage: "only those that are older than `D`, such as 12h or 30d"},
			&cli.BoolFlag{DisableDefaultText: true, Name: "dry-run", Usage: "say what would go, and remove nothing"},
			&cli.BoolFlag{DisableDefaultText: true, Name: "yes", Aliases: []string{"y"}, Usage: "don't ask"},
		},
		Action: in.snapshotPrune,
	}
}

// pruneJSON is what prune prints.
type pruneJSON struct {
	DryRun  bool     `json:"dry_run"`
	Removed []string `json:"removed"`
	Needed  []string `json:"needed"`
	Bytes   int64    `json:"bytes"`
}

func (in *invocation) snapshotPrune(c *cli.Context) error {
	if _, err := in.args(0, 0, "no name"); err != nil {
		return err
	}
	p := session.Prune{Keep: c.Int("keep"), DryRun: c.Bool("dry-run")}
	if p.Keep < 0 || !c.IsSet("keep") && !c.IsSet("older") {
		return usageError("`hpcexec snapshot prune` needs --keep N, --older D or both").WithHint("`hpcexec snapshot prune --help` has examples")
	}
	if c.IsSet("older") {
		var err error
		if p.Older, err = parseAge(c.String("older")); err != nil {
			return usageError("--older %s: %v", c.String("older"), err).WithHint("write 12h, 30d or 1h30m")
		}
	}
	if p.Keep == 0 && p.Older == 0 {
		p.Older = 1 // --keep 0: all that nobody needs
	}
	m, err := in.manager()
	if err != nil {
		return err
	}
	return in.interruptible(c.Context, func(ctx context.Context) error {
		if !p.DryRun && !c.Bool("yes") {
			dry := p
			dry.DryRun = true
			would, err := m.PruneSnapshots(ctx, dry)
			if err != nil {
				return err
			}
			if len(would.Removed) > 0 {
				if err := in.confirm(fmt.Sprintf("remove %d snapshots (%s) for good: %s?", len(would.Removed),
					units.BytesSize(float64(would.Bytes)), strings.Join(idsOf(would.Removed), ", "))); err != nil {
					return err
				}
			}
		}
		done, err := m.PruneSnapshots(ctx, p)
		in.progress.clear()
		return errors.Join(in.printPruned(p.DryRun, done), err)
	})
}

func (in *invocation) printPruned(dry bool, p snapshots.Pruned) error {
	if in.json {
		return printJSON(in.out, pruneJSON{dry, idsOf(p.Removed), idsOf(p.Needed), p.Bytes})
	}
	word := "removed"
	if dry {
		word = "would remove"
	}
	for _, s := range p.Removed {
		fmt.Fprintf(in.out, "%s %s  %s  %s  %s\n", word, s.ID, safeText([]byte(s.Session)), s.Created.Local().Format(time.DateTime), safeText([]byte(s.Message)))
	}
	if len(p.Needed) > 0 {
		fmt.Fprintf(in.err, "hpcexec: %d stay, since a session or another snapshot lies on them: %s\n", len(p.Needed), strings.Join(idsOf(p.Needed), ", "))
	}
	_, err := fmt.Fprintf(in.out, "%s %d snapshots, %s\n", word, len(p.Removed), units.BytesSize(float64(p.Bytes)))
	return err
}

func idsOf(list []snapshots.Snapshot) []string {
	ids := make([]string, len(list))
	for i, s := range list {
		ids[i] = s.ID
	}
	return ids
}

// parseAge is time.ParseDuration, and takes whole days: 30d.
func parseAge(s string) (time.Duration, error) {
	var days int
	if n, err := fmt.Sscanf(s, "%dd", &days); err == nil && n == 1 && s == fmt.Sprintf("%dd", days) {
		if days < 1 || days > 36500 {
			return 0, errors.New("out of range")
		}
		return time.Duration(days) * 24 * time.Hour, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, errors.New("not a time")
	}
	return d, nil
}
