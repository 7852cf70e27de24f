package main

import (
	"github.com/urfave/cli/v2"

	"github.com/hpcexec/hpcexec/internal/files"
)

func (in *invocation) syncCommand() *cli.Command {
	return &cli.Command{
		Name:      "sync",
		Usage:     "make a copy the same as its source, with what differs alone",
		UsageText: "hpcexec sync [--delete] [--dry-run] [--checksum] [--verify] SRC DST",
		Description: `Makes DST be what SRC is: DST is the copy's name, also where it is a directory,
and a slash at the end of either changes nothing. Files of the same size and
time are taken for the same. What SRC doesn't have stays in DST, unless
--delete is given; where a part of SRC can't be read, nothing is deleted there.

` + whereHelp + `

EXAMPLES:
   hpcexec sync src train:src
   hpcexec sync --delete --dry-run src train:src
   hpcexec sync train:out out
   hpcexec sync --checksum ssh:gpu1:/scratch/ada/data data`,
		Flags: []cli.Flag{
			&cli.BoolFlag{DisableDefaultText: true, Name: "delete", Usage: "remove from DST what SRC doesn't have"},
			&cli.BoolFlag{DisableDefaultText: true, Name: "dry-run", Aliases: []string{"n"}, Usage: "change nothing, and print what would be done"},
			&cli.BoolFlag{DisableDefaultText: true, Name: "checksum", Aliases: []string{"c"}, Usage: "compare contents, not times"},
			verifyFlag(),
		},
		Action: in.sync,
	}
}

func (in *invocation) sync(c *cli.Context) error {
	names, err := in.args(2, 2, "SRC and DST")
	if err != nil {
		return err
	}
	return in.copyAll(c.Context, names[:1], names[1], files.Options{
		Sync: true, Delete: c.Bool("delete"), DryRun: c.Bool("dry-run"), Checksum: c.Bool("checksum"), Verify: c.Bool("verify"),
	})
}
