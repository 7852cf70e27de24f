package snapshots

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestACL: attributes that squashfs can't hold don't fail a snapshot: sites put
// default access lists on scratch directories.
func TestACL(t *testing.T) {
	up := upper(t)
	acl := []byte{2, 0, 0, 0} // version 2, see linux/posix_acl_xattr.h
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 6, ^uint32(0)}, {2, 4, 12345}, {4, 4, ^uint32(0)}, {0x10, 4, ^uint32(0)}, {0x20, 0, ^uint32(0)}} {
		acl = binary.LittleEndian.AppendUint16(acl, e.tag)
		acl = binary.LittleEndian.AppendUint16(acl, e.perm)
		acl = binary.LittleEndian.AppendUint32(acl, e.id)
	}
	if err := unix.Setxattr(filepath.Join(up, "a"), "system.posix_acl_access", acl, 0); err != nil {
		t.Fatalf("this file system has no access lists: %v", err)
	}
	s := open(t, Options{})
	snap := create(t, s, CreateOptions{Upper: up})
	out := filepath.Join(t.TempDir(), "out")
	if err := s.Unpack(t.Context(), snap.ID, out); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(out, "a")); string(data) != "one" {
		t.Errorf("got %q %v, want the content", data, err)
	}
}
