package apptainer

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/sylabs/sif/v2/pkg/sif"
	"golang.org/x/sys/unix"

	"github.com/hpcexec/hpcexec"
)

// An Image is what identifies an image cheaply: nothing of its content is read
// but the header.
type Image struct {
	Path  string    `json:"path"` // absolute, links resolved
	Kind  ImageKind `json:"kind"`
	Arch  string    `json:"arch,omitempty"` // as GOARCH; empty is unknown
	Size  int64     `json:"size,omitempty"`
	MTime time.Time `json:"mtime,omitzero"`
	// SIFID is the UUID in the header of a SIF file, new with every build.
	SIFID string `json:"sif_id,omitempty"`
}

// An ImageKind is a format of images.
type ImageKind string

const (
	SIF      ImageKind = "sif"
	Sandbox  ImageKind = "sandbox"  // a directory that holds a root file system
	SquashFS ImageKind = "squashfs" // a bare file system
	Ext3     ImageKind = "ext3"     // a bare file system
)

// Key is a short text that changes when the image does: for a file, that of
// size, time and SIF id; for a sandbox, whose content can change unnoticed, of
// the path.
func (m Image) Key() string {
	text := fmt.Sprintf("%s\n%d\n%d\n%s", m.Kind, m.Size, m.MTime.UnixNano(), m.SIFID)
	if m.Kind == Sandbox {
		text = fmt.Sprintf("%s\n%s", m.Kind, m.Path)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// CheckImage says whether an image can be started on this machine, as far as
// its header tells. The error is of kind ErrInvalid and says what is wrong.
func CheckImage(path string) error {
	_, err := OpenImage(path)
	return err
}

// OpenImage checks an image as CheckImage does, and identifies it.
func OpenImage(path string) (Image, error) {
	if strings.Contains(path, "://") {
		return Image{}, hpcexec.Errorf(hpcexec.ErrInvalid, "image %s is an address, not a file", path).
			WithHint("pull it first: apptainer pull NAME.sif %s", path)
	}
	if !filepath.IsAbs(path) {
		return Image{}, hpcexec.Errorf(hpcexec.ErrInvalid, "image path %q is not absolute", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return Image{}, imageFileError(path, err)
	}
	st, err := os.Stat(real)
	if err != nil {
		return Image{}, imageFileError(path, err)
	}
	img := Image{Path: real, Size: st.Size(), MTime: st.ModTime()}
	switch {
	case st.IsDir():
		return openSandbox(img)
	case !st.Mode().IsRegular():
		return Image{}, imageError(path, "is neither a file nor a directory", "give a SIF file or a sandbox directory")
	}
	f, err := os.Open(real)
	if err != nil {
		return Image{}, imageFileError(path, err)
	}
	defer f.Close()
	return openFile(img, f)
}

// openFile tells the formats of image files apart by their magic numbers.
func openFile(img Image, f *os.File) (Image, error) {
	head := make([]byte, 1082)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return Image{}, imageFileError(img.Path, err)
	}
	head = head[:n]
	switch {
	case n == 0:
		return Image{}, imageError(img.Path, "is empty", "copy or build it again")
	case n >= 42 && string(head[32:41]) == "SIF_MAGIC":
		return openSIF(img, f)
	case n >= 4 && string(head[:4]) == "hsqs":
		img.Kind = SquashFS
		return img, checkSquashFS(img.Path, f, 0, img.Size)
	case n >= 1082 && binary.LittleEndian.Uint16(head[1080:]) == 0xEF53:
		img.Kind = Ext3
		return img, nil
	}
	return Image{}, imageError(img.Path, "is not a container image", "give a SIF file (apptainer pull or build makes one) or a sandbox directory")
}

func openSIF(img Image, f *os.File) (Image, error) {
	img.Kind = SIF
	// Its counts are read before anything is allocated for them: a damaged
	// header could ask for any amount of memory.
	var h struct {
		_                   [32 + 10 + 3 + 3 + 16]byte // launch, magic, version, arch, id
		_, _                int64                      // created, modified
		_, Total, Off, Size int64                      // free descriptors, all, their place
	}
	if err := binary.Read(io.NewSectionReader(f, 0, 128), binary.LittleEndian, &h); err != nil {
		return Image{}, damaged(img.Path, "its header is cut off")
	}
	if h.Total < 0 || h.Total > 1<<16 || h.Off < 0 || h.Size < 0 || h.Off > img.Size || h.Size > img.Size-h.Off {
		return Image{}, damaged(img.Path, "its list of contents is cut off")
	}
	fi, err := sif.LoadContainer(readOnly{f}, sif.OptLoadWithCloseOnUnload(false))
	if err != nil {
		return Image{}, damaged(img.Path, "its header can't be read: "+err.Error())
	}
	defer fi.UnloadContainer()
	img.SIFID = fi.ID()

	var root *sif.Descriptor
	var bad error
	oci := false
	fi.WithDescriptors(func(d sif.Descriptor) bool {
		if d.Offset() < 0 || d.Size() < 0 || d.Offset() > img.Size || d.Size() > img.Size-d.Offset() {
			bad = damaged(img.Path, fmt.Sprintf("it is %d bytes long and should be %d or more", img.Size, d.Offset()+d.Size()))
			return true
		}
		switch d.DataType() {
		case sif.DataOCIRootIndex:
			oci = true
		case sif.DataPartition:
			if _, pt, _, err := d.PartitionMetadata(); err == nil && (pt == sif.PartPrimSys || pt == sif.PartSystem && root == nil) {
				root = &d
			}
		}
		return false
	})
	switch {
	case bad != nil:
		return Image{}, bad
	case root == nil && oci:
		return Image{}, imageError(img.Path, "is an OCI-SIF, which can't be started as an instance", "build a plain SIF of it: apptainer build NEW.sif docker://…")
	case root == nil:
		return Image{}, imageError(img.Path, "is a SIF file without a root file system", "build the image again")
	}
	fstype, _, arch, err := root.PartitionMetadata()
	if err != nil {
		return Image{}, damaged(img.Path, err.Error())
	}
	if arch == "unknown" {
		arch = ""
	}
	img.Arch = arch
	if fstype == sif.FsEncryptedSquashfs {
		return Image{}, imageError(img.Path, "is encrypted, which hpcexec can't open", "build it without encryption")
	}
	if err := checkArch(img.Path, arch); err != nil {
		return Image{}, err
	}
	if fstype == sif.FsSquash {
		return img, checkSquashFS(img.Path, f, root.Offset(), root.Size())
	}
	return img, nil
}

// readOnly is a file that the SIF library can't change.
type readOnly struct{ *os.File }

func (readOnly) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }
func (readOnly) Truncate(int64) error      { return errors.ErrUnsupported }

// checkSquashFS reads the superblock of a squashfs of at most size bytes: a
// cut-off copy shows in its length. Format: Documentation/filesystems/
// squashfs.rst of Linux; bytes_used is at 40.
func checkSquashFS(path string, f io.ReaderAt, off, size int64) error {
	var sb [96]byte
	if _, err := f.ReadAt(sb[:], off); err != nil {
		return damaged(path, "its file system is cut off")
	}
	if string(sb[:4]) != "hsqs" {
		return damaged(path, "its file system has no squashfs header")
	}
	if used := binary.LittleEndian.Uint64(sb[40:]); used > uint64(size) {
		return damaged(path, fmt.Sprintf("its file system should be %d bytes long, %d are there", used, size))
	}
	return nil
}

// openSandbox checks a directory that is said to hold a root file system.
func openSandbox(img Image) (Image, error) {
	img.Kind, img.Size = Sandbox, 0
	if err := unix.Access(img.Path, unix.R_OK|unix.X_OK); err != nil {
		return Image{}, imageFileError(img.Path, err)
	}
	// Links in it are meant for its own root: none is followed out of it.
	root, err := os.OpenRoot(img.Path)
	if err != nil {
		return Image{}, imageFileError(img.Path, err)
	}
	defer root.Close()
	if _, err := root.Lstat("bin"); err != nil {
		if _, err := root.Lstat("usr"); err != nil {
			return Image{}, imageError(img.Path, "is a directory without bin and usr, so it holds no system", "give a SIF file or the directory that apptainer build --sandbox made")
		}
	}
	for _, name := range []string{"bin/sh", "bin/busybox", "bin/bash", "usr/bin/env"} {
		f, err := root.Open(name)
		if err != nil {
			continue
		}
		e, err := elf.NewFile(f)
		f.Close()
		if err == nil {
			img.Arch = elfArch(e)
			break
		}
	}
	return img, checkArch(img.Path, img.Arch)
}

// elfArch is the GOARCH of an ELF file, or empty.
func elfArch(e *elf.File) string {
	switch e.Machine {
	case elf.EM_X86_64:
		return "amd64"
	case elf.EM_386:
		return "386"
	case elf.EM_AARCH64:
		return "arm64"
	case elf.EM_ARM:
		return "arm"
	case elf.EM_RISCV:
		return "riscv64"
	case elf.EM_S390:
		return "s390x"
	case elf.EM_PPC64:
		if e.Data == elf.ELFDATA2LSB {
			return "ppc64le"
		}
		return "ppc64"
	}
	return ""
}

// checkArch says whether this machine runs programs of an architecture. An
// unknown one passes: the runtime has the last word.
func checkArch(path, arch string) error {
	host := runtime.GOARCH
	if arch == "" || arch == host || arch == "386" && host == "amd64" || arch == "arm" && host == "arm64" {
		return nil
	}
	return imageError(path, fmt.Sprintf("is built for %s, this machine is %s", arch, host), "use an image for "+host)
}

// Digest reads the whole image and gives its SHA-256 in hex. A sandbox has
// none: ErrInvalid.
func (m Image) Digest() (string, error) {
	if m.Kind == Sandbox {
		return "", imageError(m.Path, "is a directory, which has no digest", "build a SIF file of it: apptainer build NEW.sif "+m.Path)
	}
	f, err := os.Open(m.Path)
	if err != nil {
		return "", imageFileError(m.Path, err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", imageFileError(m.Path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func imageError(path, what, hint string) error {
	return hpcexec.Errorf(hpcexec.ErrInvalid, "image %s %s", path, what).WithHint("%s", hint)
}

func damaged(path, how string) error {
	return imageError(path, "is damaged: "+how, "copy or build it again; a copy that was cut off is the usual cause")
}

func imageFileError(path string, err error) error {
	reason := err
	var pe *fs.PathError
	if errors.As(err, &pe) {
		reason = pe.Err
	}
	e := hpcexec.Errorf(hpcexec.ErrInvalid, "image %s: %w", path, reason)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return e.WithHint("check the path; it must exist on the node where the session runs")
	case errors.Is(err, fs.ErrPermission):
		return e.WithHint("ask its owner for read permission, on the directories above it too")
	}
	return e
}
