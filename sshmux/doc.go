// Package sshmux runs many commands through one SSH connection, and shares
// that connection between processes.
//
//	hpcexec exec        ssh -S, scp, rsync, git, editors
//	     │                    │
//	     ▼ private request    ▼ OpenSSH's mux protocol      (unix socket, 0600
//	┌─────────────────────────────────┐                      in a 0700 directory)
//	│ master: one per user, host and  │  one process, started on demand,
//	│ node; its socket speaks for the │  leaves when it is idle
//	│ host itself                     │
//	│   endpoint "train" ── its own ──┼── socket, the same protocol
//	│   endpoint "prep"  ── socket    │
//	└────────────┬────────────────────┘
//	             │ one SSH connection (none for "local")
//	             ▼
//	   host ── sshd                       [PeerSSHD]: plain exec, a sh watcher
//	             ├─▶ shim on a socket     [PeerShim]: exec@hpcexec
//	             └─▶ shim on stdin/stdout [PeerShim]
//
// A [Host] is an hpcexec.Executor over one live connection. [ServeMaster] is
// the master, [EnsureMaster] finds or starts one, and a [Client] is an
// hpcexec.Executor over the socket of a master or of an [Endpoint].
//
// The mux protocol is version 4 of PROTOCOL.mux of OpenSSH. What it can't
// express, such as argv, time-outs and how a command ended, travels in request
// codes of our own, which no OpenSSH uses.
package sshmux
