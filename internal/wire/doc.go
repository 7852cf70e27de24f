// Package wire carries an SSH connection between two programs of hpcexec: the
// client (or master) on one side, the shim in the place on the other.
//
//	channels                                                   channels
//	   │                                                           │
//	┌──▼──────────────┐                              ┌─────────────▼───┐
//	│ gate            │  data waits for room         │ gate            │
//	├─────────────────┤                              ├─────────────────┤
//	│ x/crypto/ssh    │  RFC 4254, proxy mode        │ x/crypto/ssh    │
//	├─────────────────┤                              ├─────────────────┤
//	│ Queue           │  writes never block          │ Queue           │
//	└──┬──────────────┘                              └─────────────▲───┘
//	   └────────────── unix socket, or stdin and stdout ───────────┘
//
// The protocol is the proxy mode of OpenSSH's ControlMaster socket (PROTOCOL.mux
// of OpenSSH: HELLO, MUX_C_PROXY, and then bare packets of the SSH connection
// protocol). It has no encryption of its own: it belongs on a socket that only
// its owner can open, or inside a connection that encrypts. [Client] and
// [Server] are its two ends.
//
// x/crypto/ssh reads with one goroutine, and that goroutine also writes
// replies. Where both directions of a socket are full, both readers wait in a
// write, and nobody reads any more. [Queue] takes the write away from the
// reader; what bounds its memory is the gate, which stands above x/crypto/ssh
// and makes those who send data wait before they hold any lock.
//
// On top of it are the messages that RFC 4254 has no room for: [Exec] and
// [Exit], [Hello] and [Status].
package wire
