// Package place reads the names of places: "local", "ssh:[USER@]HOST[:PORT]",
// "slurm", and chains of them with "/", such as "ssh:login/slurm", the
// allocation of a cluster that is reached through its login node.
package place

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/hpcexec/hpcexec"
)

// A Kind is what a hop is.
type Kind string

// The kinds of hop.
const (
	Local Kind = "local"
	SSH   Kind = "ssh"
	Slurm Kind = "slurm"
)

// A Hop is one step of the way to a place.
type Hop struct {
	Kind Kind
	Host string // of SSH: [USER@]HOST[:PORT]
}

func (h Hop) String() string {
	if h.Kind == SSH {
		return "ssh:" + h.Host
	}
	return string(h.Kind)
}

// A Place is the way to where a command runs: its last hop, through the
// others.
type Place struct{ Hops []Hop }

// Last is the hop where commands run.
func (p Place) Last() Hop { return p.Hops[len(p.Hops)-1] }

// Via is the way to the last hop; ok is false where it is this machine.
func (p Place) Via() (via Place, ok bool) {
	n := len(p.Hops) - 1
	return Place{p.Hops[:n]}, n > 0
}

func (p Place) String() string {
	s := make([]string, len(p.Hops))
	for i, h := range p.Hops {
		s[i] = h.String()
	}
	return strings.Join(s, "/")
}

// A user or host never starts with '-': it would be an option of ssh. (Not
// regular expressions: every command would pay for compiling them.)

func isUser(s string) bool {
	return len(s) <= 64 && s != "" && isWord(s[0]) && each(s, func(c byte) bool { return isWord(c) || strings.IndexByte(".@+-", c) >= 0 })
}

func isHost(s string) bool {
	return len(s) <= 253 && s != "" && isWord(s[0]) && isWord(s[len(s)-1]) &&
		each(s, func(c byte) bool { return isWord(c) || c == '.' || c == '-' })
}

func isWord(c byte) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func each(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

// Parse reads the name of a place. Its error is of kind hpcexec.ErrInvalid and
// says what places there are.
func Parse(s string) (Place, error) {
	var p Place
	bad := func(format string, args ...any) (Place, error) {
		return Place{}, hpcexec.Errorf(hpcexec.ErrInvalid, "place %q: "+format, append([]any{s}, args...)...).
			WithHint("a place is local, ssh:[USER@]HOST[:PORT] or slurm, or a chain such as ssh:login/slurm")
	}
	for i, part := range strings.Split(s, "/") {
		kind, host, hasHost := strings.Cut(part, ":")
		switch {
		case part == string(Local) && i > 0:
			return bad("local can only stand alone")
		case part == string(Local), part == string(Slurm):
			p.Hops = append(p.Hops, Hop{Kind: Kind(part)})
		case kind == string(SSH) && hasHost:
			if why := checkHost(host); why != "" {
				return bad("%s", why)
			}
			p.Hops = append(p.Hops, Hop{SSH, host})
		case part == "":
			return bad("it has an empty part")
		default:
			return bad("there is no such place")
		}
		if n := len(p.Hops); n > 1 && p.Hops[n-2].Kind != SSH {
			return bad("only ssh:HOST can come before another place")
		}
	}
	return p, nil
}

// checkHost says what is wrong with [USER@]HOST[:PORT], or "".
func checkHost(s string) string {
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		if !isUser(s[:i]) {
			return "the user is not a name"
		}
		s = s[i+1:]
	}
	host, port, hasPort := s, "", false
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return "a '[' has no ']'"
		}
		host = s[1:end]
		if _, err := netip.ParseAddr(host); err != nil {
			return "between brackets there must be an address"
		}
		port, hasPort = strings.CutPrefix(s[end+1:], ":")
		if !hasPort && s[end+1:] != "" {
			return "after ']' only :PORT can follow"
		}
	} else {
		host, port, hasPort = strings.Cut(s, ":")
		if !isHost(host) {
			return "the host is not a name"
		}
	}
	if hasPort {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return "the port is not a number from 1 to 65535"
		}
	}
	return ""
}
