// Command hpcexec runs commands in the places that a cluster has: here, on
// another host, in a Slurm allocation, each bare or inside a container.
//
// It is thin. main.go looks at the first word: the programs that hpcexec
// starts itself (shim, master, supervise, guard, bridge) go straight to their
// packages; all else is a command of the user's:
//
//	argv ─▶ line.go (flags before and after names) ─▶ urfave/cli (typed flags)
//	     ─▶ one file per command ─▶ internal/session, slurm, …
//	     ─▶ exit.go (errors to exit codes, once)
package main

import "os"

func main() {
	if len(os.Args) > 1 {
		if internal := internalCommand(os.Args[1]); internal != nil {
			os.Exit(internal(os.Args[2:]))
		}
	}
	os.Exit(runCLI(os.Args, stdio{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}
