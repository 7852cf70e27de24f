package wire

import (
	"encoding/json"
	"time"

	"github.com/hpcexec/hpcexec"
)

// maxJSON bounds Hello and Status, which travel in one packet.
const maxJSON = 64 << 10

// A Hello is both the payload of RequestHello, where the client says what it
// speaks, and the answer of the shim. Fields that a side doesn't know are
// ignored, so both can be of different releases.
type Hello struct {
	// Versions are the versions of Exec and Exit that the side reads, best
	// first.
	Versions []uint32 `json:"versions"`
	Build    string   `json:"build,omitempty"` // release of hpcexec

	// The rest is in the shim's answer only.
	PID     int       `json:"pid,omitempty"` // in its own PID namespace
	UID     int       `json:"uid"`
	Home    string    `json:"home,omitempty"` // where commands start
	Started time.Time `json:"started,omitzero"`
}

// Common is the best version that both sides read, or 0.
func (h *Hello) Common(peer *Hello) uint32 {
	for _, v := range h.Versions {
		for _, w := range peer.Versions {
			if v == w {
				return v
			}
		}
	}
	return 0
}

// Marshal encodes h as JSON.
func (h *Hello) Marshal() []byte { return marshalJSON(h) }

// ParseHello decodes what Hello.Marshal makes. Its errors are of kind
// hpcexec.ErrInvalid.
func ParseHello(b []byte) (Hello, error) {
	var h Hello
	err := parseJSON("hello", b, &h)
	return h, err
}

// A Status is the answer to RequestStatus.
type Status struct {
	Running      int       `json:"running"`    // foreground commands
	Background   int       `json:"background"` // processes beside them
	LastActivity time.Time `json:"last_activity"`
	PID          int       `json:"pid"`
	UID          int       `json:"uid"`
	Connections  int       `json:"connections"`
}

// Marshal encodes s as JSON.
func (s *Status) Marshal() []byte { return marshalJSON(s) }

// ParseStatus decodes what Status.Marshal makes. Its errors are of kind
// hpcexec.ErrInvalid.
func ParseStatus(b []byte) (Status, error) {
	var s Status
	err := parseJSON("status", b, &s)
	return s, err
}

func marshalJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs of numbers, texts and times
	}
	return b
}

func parseJSON(what string, b []byte, v any) error {
	if len(b) > maxJSON {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "%s message of %d bytes", what, len(b))
	}
	if err := json.Unmarshal(b, v); err != nil {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "%s message: %w", what, err)
	}
	return nil
}
