package wire

import (
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
)

// defaultOverflowUID is the kernel's default of
// /proc/sys/kernel/overflowuid.
const defaultOverflowUID = 65534

// PeerUID is the user id of the process that connected c (SO_PEERCRED), as
// the user namespace of the caller sees it.
func PeerUID(c *net.UnixConn) (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, os.NewSyscallError("getsockopt", credErr)
	}
	return cred.Uid, nil
}

// CheckPeer says whether the process that connected c belongs to the caller's
// user. Who has no id in the caller's user namespace shows as the overflow uid
// and is refused, even where the caller has that id itself. Its errors are of
// kind hpcexec.ErrDenied.
func CheckPeer(c *net.UnixConn) error {
	uid, err := PeerUID(c)
	if err != nil {
		return hpcexec.Errorf(hpcexec.ErrDenied, "peer of the socket is not known: %w", err)
	}
	return checkUID(uid, uint32(os.Geteuid()), overflowUID())
}

func checkUID(uid, own, overflow uint32) error {
	if uid == overflow {
		return hpcexec.Errorf(hpcexec.ErrDenied, "peer of the socket has no user id in this user namespace")
	}
	if uid != own {
		return hpcexec.Errorf(hpcexec.ErrDenied, "peer of the socket is user %d, not %d", uid, own)
	}
	return nil
}

func overflowUID() uint32 {
	b, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil {
		return defaultOverflowUID
	}
	uid, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return defaultOverflowUID
	}
	return uint32(uid)
}
