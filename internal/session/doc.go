// Package session keeps named environments alive: a place, an image, an
// overlay, an allocation and a shim under one name that outlives the client,
// the connection, the instance, the allocation and the login node.
//
//	client (login node)                          node of the session
//	┌───────────────────────┐                    ┌───────────────────────────┐
//	│ Manager.Ensure        │  sbatch / ssh /    │ supervisor                │
//	│   sessions/NAME.json ─┼─ fork ────────────▶│   lease of the overlay    │
//	│   run/NAME.json  ◀────┼────────────────────┼── what it came to         │
//	│   master, endpoint ═══╪═ ssh ═════════════▶│   instance ── shim        │
//	└───────────────────────┘                    └───────────────────────────┘
//
// The record sessions/NAME.json says what the session is; clients write it.
// The state run/NAME.json says what became of its latest start; only the
// supervisor of that start writes it. Whatever touches the overlay happens in
// the supervisor, on the node that holds the overlay's lease.
package session
