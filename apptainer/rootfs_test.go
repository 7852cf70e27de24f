package apptainer

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/sylabs/sif/v2/pkg/sif"

	"github.com/hpcexec/hpcexec"
)

func TestRootFS(t *testing.T) {
	bare := filepath.Join(t.TempDir(), "bare.sqfs")
	if err := os.WriteFile(bare, squash(5000), 0o600); err != nil {
		t.Fatal(err)
	}
	image := writeSIF(t, runtime.GOARCH, sif.FsSquash, sif.PartPrimSys, squash(5000))
	off, err := RootFS(image)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(image)
	if err != nil || off <= 0 || string(b[off:off+4]) != "hsqs" {
		t.Errorf("SIF: got offset %d, want that of the file system", off)
	}
	for _, path := range []string{bare, t.TempDir()} {
		if off, err := RootFS(path); off != 0 || err != nil {
			t.Errorf("%s: got %d %v, want 0", path, off, err)
		}
	}
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"missing": filepath.Join(t.TempDir(), "none"), "junk": junk,
		"encrypted": writeSIF(t, runtime.GOARCH, sif.FsEncryptedSquashfs, sif.PartPrimSys, squash(5000)),
		"ext3":      writeSIF(t, runtime.GOARCH, sif.FsExt3, sif.PartPrimSys, squash(5000)),
	} {
		if _, err := RootFS(path); !errors.Is(err, hpcexec.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
}
