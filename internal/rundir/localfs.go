package rundir

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// localFS is nil for a directory on a file system that only this node sees and
// that holds sockets. Only those that are known to be are accepted: a new
// network file system must not pass by being unknown.
func localFS(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("file system: %w", err)
	}
	magic := uint32(st.Type)
	if isLocal(magic) {
		return nil
	}
	return fmt.Errorf("file system %s isn't known to be local to the node", fsName(magic))
}

func isLocal(magic uint32) bool {
	switch magic {
	case unix.EXT4_SUPER_MAGIC, // ext2 and ext3 as well
		unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.REISERFS_SUPER_MAGIC,
		unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
		0x2fc12fc1, // zfs
		0xca451a4e, // bcachefs
		0x3153464a: // jfs
		return true
	}
	return false
}

// fsName is for the error text only.
func fsName(magic uint32) string {
	names := map[uint32]string{
		unix.NFS_SUPER_MAGIC:  "nfs",
		0x0bd00bd0:            "lustre",
		0x47504653:            "gpfs",
		0x19830326:            "beegfs",
		unix.FUSE_SUPER_MAGIC: "fuse",
		unix.V9FS_MAGIC:       "9p",
		unix.CIFS_SUPER_MAGIC: "cifs",
		unix.SMB2_SUPER_MAGIC: "smb2",
		unix.CEPH_SUPER_MAGIC: "ceph",
		unix.AFS_SUPER_MAGIC:  "afs",
	}
	if n, ok := names[magic]; ok {
		return n
	}
	return fmt.Sprintf("of type %#x", magic)
}
