// Package shim is the SSH server in the place where the work runs: inside a
// container, in an allocation, on a bare host. It owns every process that is
// started there.
//
//	unix socket (--fd N)            stdin and stdout (--stdio)
//	       │ SO_PEERCRED: own uid            │
//	       └───────────────┬────────────────┘
//	                       ▼
//	                wire.Server, one connection each
//	       ┌───────────────┼───────────────────────┬─────────────────┐
//	  session           session                direct-streamlocal   global:
//	  exec@hpcexec      exec, shell, env,      direct-tcpip         hello, status,
//	       │            pty-req, sftp               │               beat, stop
//	       ▼                ▼                       ▼
//	  hpcexec.Local ─── process trees         sockets in the place
//
// What ends a command, beside itself: its time-out, a cancel@hpcexec or the
// close of its channel, the end of its connection, 15 s without a beat on a
// connection that has beaten before, and the end of the shim. In each case its
// whole tree is ended, with SIGTERM and then SIGKILL. What a command leaves
// running after its normal end lives on, until the end of the shim.
//
// A peer is of the same user, and may be hostile nevertheless: all that it can
// make the shim keep is bounded, and no request of its own can make the shim
// wait.
package shim
