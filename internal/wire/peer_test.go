package wire

import (
	"errors"
	"os"
	"testing"

	"github.com/hpcexec/hpcexec"
)

func TestPeer(t *testing.T) {
	a, b := socketpair(t, 0)
	defer a.Close()
	defer b.Close()
	uid, err := PeerUID(a)
	if err != nil || uid != uint32(os.Geteuid()) {
		t.Errorf("PeerUID: got %d, %v, want %d", uid, err, os.Geteuid())
	}
	if err := CheckPeer(a); err != nil {
		t.Errorf("CheckPeer: got %v, want nil", err)
	}
}

func TestPeerOfClosedSocket(t *testing.T) {
	a, b := socketpair(t, 0)
	a.Close()
	b.Close()
	if err := CheckPeer(a); !errors.Is(err, hpcexec.ErrDenied) {
		t.Errorf("got %v, want kind %v", err, hpcexec.ErrDenied)
	}
}

func TestCheckUID(t *testing.T) {
	for _, tt := range []struct {
		name          string
		uid, own, ovf uint32
		wantErr       error
	}{
		{"own", 2001, 2001, 65534, nil},
		{"own, root", 0, 0, 65534, nil},
		{"other", 2002, 2001, 65534, hpcexec.ErrDenied},
		{"root", 0, 2001, 65534, hpcexec.ErrDenied},
		{"unmapped", 65534, 2001, 65534, hpcexec.ErrDenied},
		{"unmapped, and own has its number", 65534, 65534, 65534, hpcexec.ErrDenied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := checkUID(tt.uid, tt.own, tt.ovf); !errors.Is(err, tt.wantErr) {
				t.Errorf("got %v, want %v", err, tt.wantErr)
			}
		})
	}
}
