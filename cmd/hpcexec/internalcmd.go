package main

import (
	"fmt"
	"os"
)

// internalCommand is the entry of a program that hpcexec starts itself, or
// nil. These never see the command line parser: they start in a millisecond
// and their arguments are not an interface for people.
func internalCommand(name string) func(args []string) int {
	switch name {
	case "shim", "master", "supervise", "guard", "bridge":
		return func([]string) int {
			fmt.Fprintf(os.Stderr, "hpcexec: %s is not built into this binary\n", name)
			return exitFailed
		}
	}
	return nil
}
