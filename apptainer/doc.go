// Package apptainer runs containers with the Apptainer or SingularityCE that a
// machine has: it finds the program, checks images, starts instances and stops
// them, and runs commands inside.
//
//	Find ──▶ Runtime ──Start──▶ Instance ──Argv, Environ──▶ the shim's start command
//	            │                  │  └──Wrap(base)──▶ an Executor, one call a command
//	            │                  └──Verify, Alive, Stop
//	            └──List, Adopt (what a crash left over)
//
// An instance is a tree of processes that outlives who started it:
//
//	Apptainer instance: ada [hpcexec-train]     the parent, own session; PPID 1
//	├── appinit                                 the container's init: Info.PID
//	├── squashfuse_ll                           serves the image        \  Info.Helpers
//	└── fuse-overlayfs                          serves the overlay      /
//
// Everything here that acts on processes does so on this machine: the session's
// supervisor runs on the instance's node. Only [Wrapper] works at a distance,
// through the Executor that it wraps.
//
// The runtimes have traps, and most of this package is about them: an overlay
// that is dropped in silence, two starts of one name that lose the record, an
// environment that leaks or is evaluated, a stop that waits ten seconds. Each
// is explained where it is dealt with. Two rules hold throughout: the runtime
// gets an environment of our making, for its own variables act as flags; and
// instances whose names don't begin with [Prefix] are never touched.
package apptainer
