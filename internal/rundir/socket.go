package rundir

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"strings"
)

const (
	// sunPath is the space for a path in a unix socket's address, the final
	// NUL included (unix(7)).
	sunPath = 108

	// sshSuffix is what OpenSSH appends to a ControlPath while it makes the
	// socket: a dot and 16 random characters.
	sshSuffix = 17

	// maxName is the longest name of a session. maxDir leaves room for it.
	maxName = 63
	maxDir  = sunPath - 1 - sshSuffix - maxName - 1
)

// SocketPath is the path of the socket called name in dir, a directory that
// [Get] returned. A name that is too long for a socket's address, or has
// characters that ssh would expand or a shell would mind, is replaced by its
// hash. Names of up to 63 characters of [a-zA-Z0-9._@+=-] stay as they are.
func SocketPath(dir, name string) string {
	if plain(name) && len(dir)+1+len(name)+sshSuffix < sunPath {
		return filepath.Join(dir, name)
	}
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(dir, "H-"+hex.EncodeToString(sum[:16]))
}

// plain says whether a name can be a file name as it is. Those that begin with
// a dot or like a hash don't count: they would collide with other files.
func plain(name string) bool {
	if name == "" || name == ownerFile || name[0] == '.' || name[0] == '-' || len(name) > 1 && name[:2] == "H-" {
		return false
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		if strings.IndexByte("._-@+=", c) < 0 && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}
