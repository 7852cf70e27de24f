package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// version is set by the linker (Makefile).
var version = "dev"

func (in *invocation) versionCommand() *cli.Command {
	return &cli.Command{
		Name:        "version",
		Usage:       "print the version",
		UsageText:   "hpcexec version",
		Description: "EXAMPLES:\n   hpcexec version\n   hpcexec version --json",
		Action: func(*cli.Context) error {
			if _, err := in.args(0, 0, "no name"); err != nil {
				return err
			}
			if !in.json {
				_, err := fmt.Fprintf(in.out, "hpcexec %s %s/%s %s\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
				return err
			}
			v := map[string]string{"version": version, "os": runtime.GOOS, "arch": runtime.GOARCH, "go": runtime.Version(), "commit": ""}
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						v["commit"] = s.Value
					}
				}
			}
			return printJSON(in.out, v)
		},
	}
}
