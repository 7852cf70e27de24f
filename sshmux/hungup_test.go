package sshmux

import (
	"errors"
	"net"
	"path/filepath"
	"testing"

	"github.com/hpcexec/hpcexec"
)

// A master that dies between accept and answer is one that isn't there: the
// caller finds the next one.
func TestHungUpIsNoMaster(t *testing.T) {
	socket := filepath.Join(tempDir(t), "m")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	tests := []struct {
		name string
		do   func(*Client) error
	}{
		{"alive", func(c *Client) error { _, err := c.Alive(t.Context()); return err }},
		{"attach", func(c *Client) error {
			return c.Attach(t.Context(), Endpoint{Socket: socket + ".e", Place: "local", Kind: ShimSocket, Path: "/x"})
		}},
		{"dial", func(c *Client) error { _, err := c.DialUnix(t.Context(), "/x"); return err }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Open(socket)
			if err != nil {
				t.Fatal(err)
			}
			err = tt.do(c)
			if !errors.Is(err, ErrNoMaster) || !errors.Is(err, hpcexec.ErrUnavailable) {
				t.Errorf("got error %v, want ErrNoMaster, of kind ErrUnavailable", err)
			}
		})
	}
}
