package sshmux

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// auth logs in to hosts with what needs no person: keys of the agent and of
// files that have no passphrase.
type auth struct {
	agent  io.Closer
	locked []string // key files that have a passphrase
}

func (a *auth) close() {
	if a.agent != nil {
		a.agent.Close()
	}
}

// methods are tried in OpenSSH's order: first the keys that the configuration
// names, those of the agent ahead of files, then the agent's other keys.
// Servers cut clients off after a few keys, so the order matters.
func (a *auth) methods(c *sshConfig) []ssh.AuthMethod {
	return []ssh.AuthMethod{ssh.PublicKeysCallback(func() ([]ssh.Signer, error) {
		return a.signers(c), nil
	})}
}

func (a *auth) signers(c *sshConfig) []ssh.Signer {
	held := a.fromAgent(c)
	var out []ssh.Signer
	used := map[string]bool{}
	add := func(s ssh.Signer) {
		if id := string(s.PublicKey().Marshal()); !used[id] {
			used[id] = true
			out = append(out, s)
		}
	}
	for _, path := range c.files("identityfile") {
		pub := readPublicKey(path + ".pub")
		inAgent := false
		for _, s := range held {
			if pub != nil && bytes.Equal(s.PublicKey().Marshal(), pub.Marshal()) {
				inAgent = true
				add(s)
			}
		}
		if inAgent {
			continue
		}
		s := a.fromFile(path)
		if s == nil {
			continue
		}
		if cert := withCertificate(s, append([]string{path + "-cert.pub"}, c.files("certificatefile")...)); cert != nil {
			add(cert)
		}
		add(s)
	}
	if !c.is("identitiesonly", "yes") {
		for _, s := range held {
			add(s)
		}
	}
	return out
}

// fromAgent are the keys of the user's agent.
func (a *auth) fromAgent(c *sshConfig) []ssh.Signer {
	path := c.get("identityagent")
	switch {
	case path == "" || path == "SSH_AUTH_SOCK":
		path = os.Getenv("SSH_AUTH_SOCK")
	case path[0] == '$':
		path = os.Getenv(path[1:])
	default:
		path = c.path(path)
	}
	if path == "" || len(c.all["identityagent"]) > 0 && c.get("identityagent") == "" {
		return nil
	}
	conn, err := net.DialTimeout("unix", path, 2*time.Second)
	if err != nil {
		return nil
	}
	// A hung agent must not hang the login; signing may ask a person to
	// touch a key, so it gets a while.
	conn.SetDeadline(time.Now().Add(dialWait))
	signers, err := agent.NewClient(conn).Signers()
	if err != nil {
		conn.Close()
		return nil
	}
	a.agent = conn
	return signers
}

func (a *auth) fromFile(path string) ssh.Signer {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	s, err := ssh.ParsePrivateKey(b)
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		a.locked = append(a.locked, path)
	}
	if err != nil {
		return nil
	}
	return s
}

func readPublicKey(path string) ssh.PublicKey {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	pub, _, _, _, err := ssh.ParseAuthorizedKey(b)
	if err != nil {
		return nil
	}
	return pub
}

// withCertificate is a key with the certificate that belongs to it, if one of
// the files has it.
func withCertificate(s ssh.Signer, files []string) ssh.Signer {
	for _, f := range files {
		cert, ok := readPublicKey(f).(*ssh.Certificate)
		if !ok || !bytes.Equal(cert.Key.Marshal(), s.PublicKey().Marshal()) {
			continue
		}
		if cs, err := ssh.NewCertSigner(cert, s); err == nil {
			return cs
		}
	}
	return nil
}
