package sshmux

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/wire"
)

// loginWait is how long a client of ServeSSH may take for its handshake.
const loginWait = 2 * time.Minute

// ServeSSH is an SSH server on rwc, such as the two pipes of a ProxyCommand
// (ssh_config(5)): whatever a client asks for, a command, a shell, sftp, a
// forward from its side, is carried on to the place behind the socket.
//
//	ssh, VS Code, … ══ encrypted ══ ServeSSH ── socket ── master ── place
//
// It lets in whoever holds the other end of rwc, without a login: that must be a
// process of this user. The host key is that of the file, see [HostKey].
//
// It returns nil when the client has gone, and owns rwc from the start. Errors
// are of kind hpcexec.ErrUnavailable, or the cause of ctx.
func (c *Client) ServeSSH(ctx context.Context, rwc io.ReadWriteCloser, keyFile string) error {
	defer rwc.Close()
	signer, err := readHostKey(keyFile)
	if err != nil {
		return err
	}
	raw, err := c.connect(ctx)
	if err != nil {
		return err
	}
	place, placeChans, placeReqs, err := wire.Client(raw)
	if err != nil {
		return err
	}
	defer place.Close()
	go ssh.DiscardRequests(placeReqs)
	go refuse(placeChans)

	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	late := time.AfterFunc(loginWait, func() { rwc.Close() })
	defer late.Stop()
	stop := context.AfterFunc(ctx, func() { rwc.Close() })
	defer stop()
	client, chans, reqs, err := wire.NewServerConn(rwc, config)
	late.Stop()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return hpcexec.Errorf(hpcexec.ErrUnavailable, "handshake with the SSH client: %w", err)
	}
	go ssh.DiscardRequests(reqs)
	go func() {
		place.Wait() // nothing comes from there any more
		client.Close()
	}()
	for nc := range chans {
		go relay(place, nc)
	}
	return nil
}

// refuse refuses what a place, which may be hostile, wants to open.
func refuse(chans <-chan ssh.NewChannel) {
	for nc := range chans {
		nc.Reject(ssh.Prohibited, "nothing is opened from this side")
	}
}

// HostKey makes the key file of ServeSSH where there is none, readable for its
// owner alone, and returns its public half as known_hosts (sshd(8)) has it: type
// and key. Two processes that make it at once agree on one.
//
// Errors are of kind hpcexec.ErrUnavailable.
func HostKey(file string) (public string, err error) {
	signer, err := readHostKey(file)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeHostKey(file); err == nil {
			signer, err = readHostKey(file)
		}
	}
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))), nil
}

func readHostKey(file string) (ssh.Signer, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "host key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(b)
	if err != nil {
		return nil, hpcexec.Errorf(hpcexec.ErrUnavailable, "host key %s: %w", file, err).WithHint("remove the file; another one is made")
	}
	return signer, nil
}

func makeHostKey(file string) error {
	failed := func(err error) error { return hpcexec.Errorf(hpcexec.ErrUnavailable, "host key: %w", err) }
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return failed(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "hpcexec")
	if err != nil {
		return failed(err)
	}
	tmp := file + "." + hpcexec.NewID()
	if err := os.WriteFile(tmp, pem.EncodeToMemory(block), 0o600); err != nil {
		return failed(err)
	}
	defer os.Remove(tmp)
	// link(2), unlike rename(2), leaves the one that another process made.
	if err := os.Link(tmp, file); err != nil && !errors.Is(err, fs.ErrExist) {
		return failed(err)
	}
	return nil
}
