package sshmux

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
)

// hostKeys checks the keys of a host against the known_hosts files that
// OpenSSH would use.
type hostKeys struct {
	config *sshConfig
	db     *knownhosts.HostKeyDB
	files  []string // of the user; the first one gets new keys
	err    error    // why a key was refused
	passed bool
}

// errNoKey is the error of a host whose key nobody has accepted.
var errNoKey = errors.New("no key of the host is known")

func loadHostKeys(c *sshConfig) (*hostKeys, error) {
	k := &hostKeys{config: c}
	var files []string
	for _, key := range []string{"userknownhostsfile", "globalknownhostsfile"} {
		for _, v := range c.all[key] {
			for _, f := range strings.Fields(v) {
				if f == "none" {
					continue
				}
				f = c.path(f)
				if key == "userknownhostsfile" {
					k.files = append(k.files, f)
				}
				// A device such as /dev/null is a usual way to say none.
				if st, err := os.Stat(f); err == nil && st.Mode().IsRegular() {
					files = append(files, f)
				} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "known hosts: %w", err)
				}
			}
		}
	}
	db, err := knownhosts.NewDB(files...)
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "known hosts: %w", err)
	}
	k.db = db
	return k, nil
}

// algorithms are those of the keys that are known, so that a host with keys of
// several kinds shows the one that is.
func (k *hostKeys) algorithms() []string { return k.db.HostKeyAlgorithms(k.config.keyName()) }

// check is an ssh.HostKeyCallback.
func (k *hostKeys) check(name string, remote net.Addr, key ssh.PublicKey) error {
	err := k.db.HostKeyCallback()(name, remote, key)
	switch {
	case err == nil:
	case knownhosts.IsHostKeyChanged(err):
		k.err = hpcexec.Errorf(hpcexec.ErrDenied, "the key of %s has CHANGED: somebody may be listening in, or the host was installed anew (its %s key is %s)",
			k.config.name, key.Type(), ssh.FingerprintSHA256(key)).
			WithHint("ask the site whether the key is right; then: ssh-keygen -R %s", knownhosts.Normalize(name))
	case !knownhosts.IsHostUnknown(err):
		k.err = hpcexec.Errorf(hpcexec.ErrDenied, "the key of %s is refused: %w", k.config.name, err)
	case k.config.is("stricthostkeychecking", "accept-new"), k.config.is("stricthostkeychecking", "false"), k.config.is("stricthostkeychecking", "off"), k.config.is("stricthostkeychecking", "no"):
		k.err = k.accept(name, remote, key)
	default:
		k.err = hpcexec.Errorf(hpcexec.ErrNeedsLogin, "%w: %s (its %s key is %s)", errNoKey, k.config.name, key.Type(), ssh.FingerprintSHA256(key)).
			WithHint("log in once with `ssh %s` and look at the key", k.config.name)
	}
	k.passed = k.err == nil
	return k.err
}

// accept writes a new key down, as the user's configuration says.
func (k *hostKeys) accept(name string, remote net.Addr, key ssh.PublicKey) error {
	if len(k.files) == 0 {
		return nil
	}
	path := k.files[0]
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "known hosts: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "known hosts: %w", err)
	}
	err = knownhosts.WriteKnownHost(f, name, remote, key)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "known hosts: %w", err)
	}
	return nil
}
