package main

import (
	"github.com/hpcexec/hpcexec/internal/files"
	"github.com/hpcexec/hpcexec/internal/session"
	"github.com/hpcexec/hpcexec/internal/shim"
	"github.com/hpcexec/hpcexec/sshmux"
)

// internalCommand is the entry of a program that hpcexec starts itself, or
// nil. These never see the command line parser: they start in a millisecond
// and their arguments are not an interface for people.
func internalCommand(name string) func(args []string) int {
	switch name {
	case "shim":
		return shim.Main
	case "master":
		return sshmux.MasterMain
	case "supervise":
		return session.SuperviseMain
	case "guard":
		return session.GuardMain
	case "reap":
		return session.ReapMain
	case "files":
		return files.Main
	case "bridge":
		return session.BridgeMain
	}
	return nil
}
