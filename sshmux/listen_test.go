package sshmux

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hpcexec/hpcexec"
)

func TestListenSocket(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	s, err := listenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v, want mode 0600", st.Mode(), err)
	}
	if _, err := listenSocket(path); !errors.Is(err, errLocked) {
		t.Errorf("a second one: got error %v, want %v", err, errLocked)
	}
	s.release()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after release: %v, want no file", err)
	}
	again, err := listenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	again.release()
}

func TestListenReplacesStale(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	if _, err := listenSocket(path); !errors.Is(err, errLocked) {
		t.Errorf("in front of a foreign listener: got error %v, want %v", err, errLocked)
	}
	ln.Close() // killed
	s, err := listenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.release()
	if c, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
}

// Only one of many gets a stale socket, and the others find a listener at
// every moment.
func TestListenRace(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	for range 20 {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		ln.SetUnlinkOnClose(false)
		ln.Close()
		var mu sync.Mutex
		var got []*socket
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				s, err := listenSocket(path)
				if err != nil {
					if !errors.Is(err, errLocked) {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				defer mu.Unlock()
				got = append(got, s)
			})
		}
		all.Wait()
		if len(got) != 1 {
			t.Errorf("got %d listeners, want 1", len(got))
		}
		for _, s := range got {
			s.release()
		}
	}
}

func TestRemoveOnlyOwn(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	s, err := listenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(path)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.release()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the file of another one is gone: %v", err)
	}
}

func TestSocketPlaces(t *testing.T) {
	dir := tempDir(t)
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	os.Chmod(open, 0o755)
	closed := filepath.Join(dir, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(closed, link); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, path string
		wantErr    error
		text       string
	}{
		{"path too long", dir + "/" + strings.Repeat("x", 108-len(dir)-1-17), hpcexec.ErrInvalid, "characters"},
		{"as long as possible", dir + "/" + strings.Repeat("x", 108-len(dir)-2-17), nil, ""},
		{"relative", "s", hpcexec.ErrInvalid, "absolute"},
		{"others can enter the directory", open + "/s", hpcexec.ErrDenied, "0755"},
		{"directory is a link", link + "/s", hpcexec.ErrDenied, "not a directory"},
		{"directory is missing", dir + "/missing/s", hpcexec.ErrUnavailable, "missing"},
		{"directory of another user", "/s", hpcexec.ErrDenied, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := listenSocket(tt.path)
			if err == nil {
				s.release()
			}
			if !errors.Is(err, tt.wantErr) || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got error %v, want %v with %q", err, tt.wantErr, tt.text)
			}
		})
	}
}
