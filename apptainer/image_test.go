package apptainer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sylabs/sif/v2/pkg/sif"

	"github.com/hpcexec/hpcexec"
)

// squash is the head of a squashfs that says it is n bytes long.
func squash(n int) []byte {
	b := make([]byte, max(n, 96))
	copy(b, "hsqs")
	binary.LittleEndian.PutUint64(b[40:], uint64(n))
	return b
}

// writeSIF makes an image with one root partition.
func writeSIF(t *testing.T, arch string, fs sif.FSType, part sif.PartType, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.sif")
	di, err := sif.NewDescriptorInput(sif.DataPartition, bytes.NewReader(data), sif.OptPartitionMetadata(fs, part, arch))
	if err != nil {
		t.Fatal(err)
	}
	f, err := sif.CreateContainerAtPath(path, sif.OptCreateWithDescriptors(di))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.UnloadContainer(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheckImage(t *testing.T) {
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	file := func(content string) func(*testing.T) string {
		return func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "x")
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
			return path
		}
	}
	good := func(t *testing.T) string {
		return writeSIF(t, runtime.GOARCH, sif.FsSquash, sif.PartPrimSys, squash(5000))
	}
	cut := func(n int64) func(*testing.T) string {
		return func(t *testing.T) string {
			path := good(t)
			if err := os.Truncate(path, n); err != nil {
				t.Fatal(err)
			}
			return path
		}
	}
	sandbox := func(names ...string) func(*testing.T) string {
		return func(t *testing.T) string {
			dir := t.TempDir()
			for _, n := range names {
				if err := os.MkdirAll(filepath.Join(dir, n), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			return dir
		}
	}
	for _, tc := range []struct {
		name string
		make func(t *testing.T) string
		want string // in the error; empty is good
	}{
		{"good", good, ""},
		{"link to good", func(t *testing.T) string {
			link := filepath.Join(t.TempDir(), "l")
			if err := os.Symlink(good(t), link); err != nil {
				t.Fatal(err)
			}
			return link
		}, ""},
		{"sandbox", sandbox("bin"), ""},
		{"sandbox of merged usr", sandbox("usr/bin"), ""},
		{"bare squashfs", file(string(squash(100))), ""},
		{"missing", func(t *testing.T) string { return filepath.Join(t.TempDir(), "none.sif") }, "no such file"},
		{"dangling link", func(t *testing.T) string {
			link := filepath.Join(t.TempDir(), "l")
			os.Symlink("/nonexistent/x", link)
			return link
		}, "no such file"},
		{"empty file", file(""), "is empty"},
		{"junk", file("hello, this is no image at all, sorry for that"), "not a container image"},
		{"text", file(strings.Repeat("text\n", 1000)), "not a container image"},
		{"other cpu", func(t *testing.T) string { return writeSIF(t, other, sif.FsSquash, sif.PartPrimSys, squash(5000)) }, "built for " + other},
		{"encrypted", func(t *testing.T) string {
			return writeSIF(t, runtime.GOARCH, sif.FsEncryptedSquashfs, sif.PartPrimSys, squash(5000))
		}, "encrypted"},
		{"no root", func(t *testing.T) string {
			return writeSIF(t, runtime.GOARCH, sif.FsExt3, sif.PartOverlay, squash(200))
		}, "without a root file system"},
		{"squashfs says more", func(t *testing.T) string {
			b := squash(5000)
			binary.LittleEndian.PutUint64(b[40:], 1<<30)
			return writeSIF(t, runtime.GOARCH, sif.FsSquash, sif.PartPrimSys, b)
		}, "damaged"},
		{"squashfs of zeros", func(t *testing.T) string {
			return writeSIF(t, runtime.GOARCH, sif.FsSquash, sif.PartPrimSys, make([]byte, 5000))
		}, "damaged"},
		{"cut in the data", cut(36864), "damaged"},
		{"cut in the list", cut(4200), "damaged"},
		{"cut in the header", cut(100), "damaged"},
		{"empty directory", sandbox(), "holds no system"},
		{"device", func(*testing.T) string { return "/dev/null" }, "neither a file nor a directory"},
		{"address", func(*testing.T) string { return "docker://debian" }, "is an address"},
		{"relative", func(*testing.T) string { return "x.sif" }, "not absolute"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := CheckImage(tc.make(t))
			if tc.want == "" {
				if err != nil {
					t.Errorf("got %v, want none", err)
				}
				return
			}
			if !errors.Is(err, hpcexec.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want ErrInvalid with %q", err, tc.want)
			}
			if strings.Contains(err.Error()+hpcexec.Hint(err), "%!") {
				t.Errorf("bad format: %v, %s", err, hpcexec.Hint(err))
			}
		})
	}
}

func TestImageIdentity(t *testing.T) {
	path := writeSIF(t, runtime.GOARCH, sif.FsSquash, sif.PartPrimSys, squash(5000))
	a, err := OpenImage(path)
	if err != nil || a.Kind != SIF || a.SIFID == "" || a.Arch != runtime.GOARCH || a.Path != path {
		t.Fatalf("got %+v, %v", a, err)
	}
	d1, err := a.Digest()
	if err != nil || len(d1) != 64 {
		t.Errorf("digest: got %q, %v", d1, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{1}, a.Size-1); err != nil {
		t.Fatal(err)
	}
	f.Close()
	b, err := OpenImage(path)
	if err != nil || a.Key() == b.Key() {
		t.Errorf("after a change: got the same key %s, %v", b.Key(), err)
	}
	if d2, _ := b.Digest(); d1 == d2 {
		t.Error("after a change: the same digest")
	}
	if _, err := (Image{Kind: Sandbox, Path: "/x"}).Digest(); !errors.Is(err, hpcexec.ErrInvalid) {
		t.Errorf("sandbox: got %v, want ErrInvalid", err)
	}
}

// FuzzImage: a damaged header is an error, never a panic or a lot of memory.
func FuzzImage(f *testing.F) {
	di, err := sif.NewDescriptorInput(sif.DataPartition, bytes.NewReader(squash(200)), sif.OptPartitionMetadata(sif.FsSquash, sif.PartPrimSys, "amd64"))
	if err != nil {
		f.Fatal(err)
	}
	buf := sif.NewBuffer(nil)
	if _, err := sif.CreateContainer(buf, sif.OptCreateWithDescriptors(di), sif.OptCreateDeterministic(), sif.OptCreateWithDescriptorCapacity(2)); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add(squash(100))
	f.Add([]byte("junk"))
	path := filepath.Join(f.TempDir(), "fuzz")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := CheckImage(path); err != nil && !errors.Is(err, hpcexec.ErrInvalid) {
			t.Errorf("got %v, want ErrInvalid", err)
		}
	})
}

var _ io.ReaderAt = readOnly{}
