package files

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// maxDepth bounds how deep a tree may be.
const maxDepth = 256

func hasNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }

// validName says whether a name is one component, whoever made it.
func validName(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= 255 && strings.IndexByte(s, '/') < 0 && !hasNUL(s)
}

// validPath says whether a path is one or more such names.
func validPath(s string) bool {
	n := 0
	for name := range strings.SplitSeq(s, "/") {
		if n++; n > maxDepth || !validName(name) {
			return false
		}
	}
	return true
}

// split gives the directory of a path, empty for the top, and the name in it.
func split(path string) (dir, name string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

const (
	partSuffix = ".hpcexec-part" // of a partial file, which a later copy goes on with
	tempSuffix = ".hpcexec-tmp"  // of what is renamed in a moment
	tagLen     = 12
)

// partName is where a large file is while it isn't whole: the same for the
// same version of the file.
func partName(name string, size, mtime int64) string {
	sum := sha256.Sum256([]byte(name + "\x00" + strconv.FormatInt(size, 10) + "\x00" + strconv.FormatInt(mtime, 10)))
	return hidden(name, hex.EncodeToString(sum[:tagLen/2]), partSuffix)
}

// tempName is a name that nobody has.
func tempName(name string) string {
	var b [tagLen / 2]byte
	rand.Read(b[:])
	return hidden(name, hex.EncodeToString(b[:]), tempSuffix)
}

func hidden(name, tag, suffix string) string { return "." + cut(name, 200) + "." + tag + suffix }

// isOurs says whether a name is one that partName or tempName makes. Such
// files are never copied.
func isOurs(name string) bool {
	rest, ok := strings.CutSuffix(name, partSuffix)
	if !ok {
		rest, ok = strings.CutSuffix(name, tempSuffix)
	}
	if !ok || len(rest) < tagLen+2 || rest[0] != '.' || rest[len(rest)-tagLen-1] != '.' {
		return false
	}
	_, err := hex.DecodeString(rest[len(rest)-tagLen:])
	return err == nil
}
