// Package files copies trees between this machine and a place, and between two
// places, over one stream of bytes for each copy.
//
//	sender                                         receiver
//	  walk ──▶ dir, entry, entry, …, dir end ────▶ makes directories and links,
//	                                               compares files with what it has
//	  queue ◀── want (path, bytes that are there, their hash) ─────┘
//	    └────▶ small file (one frame) ───────────▶ temporary name ─▶ rename
//	    └────▶ file, data, data, …, close ───────▶ partial file ───▶ rename
//	         ◀── result ──────────────────────────┘
//
// Nobody waits for an answer to one file before the next: wants and files flow
// at the same time as the walk, so that many small files cost no round trips.
// One end is this process and the other is an agent, the same binary as the
// shim that starts it (`hpcexec files`), on its stdin and stdout. Which end
// sends makes no difference to the code.
//
// The other end may be hostile, as what runs in a container is. A receiver
// takes names that are one component, opens each directory from its parent
// without following links, and writes to a new file only. A sender gives what
// is below its top, by the same rule, and no devices. That is stricter than
// os.Root, which follows links that stay inside.
//
// What is copied: regular files with holes, directories, symbolic links as
// they are, permission bits, times of modification. What isn't: owners, set-id
// bits, extended attributes, devices, sockets, pipes. Hard links become files
// of their own.
package files
