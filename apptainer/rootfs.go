package apptainer

import (
	"os"

	"github.com/sylabs/sif/v2/pkg/sif"

	"github.com/hpcexec/hpcexec"
)

// RootFS says where the root file system of an image is: in the file at path,
// offset bytes from its start, as squashfs, or in the directory at path. The
// image is not started by that. The error is of kind
// hpcexec.ErrInvalid; an image whose file system is ext3, or encrypted, is one.
func RootFS(path string) (offset int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, imageFileError(path, err)
	}
	if info.IsDir() {
		return 0, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, imageFileError(path, err)
	}
	defer f.Close()
	var magic [4]byte
	if _, err := f.ReadAt(magic[:], 0); err != nil {
		return 0, damaged(path, "it is too short")
	}
	if string(magic[:]) == "hsqs" {
		return 0, nil
	}
	// The header's counts are checked here; see there.
	img := Image{Path: path, Size: info.Size()}
	if _, err := openSIF(img, f); err != nil {
		return 0, err
	}
	fi, err := sif.LoadContainer(readOnly{f}, sif.OptLoadWithCloseOnUnload(false))
	if err != nil {
		return 0, damaged(path, err.Error())
	}
	defer fi.UnloadContainer()
	d, err := fi.GetDescriptor(sif.WithPartitionType(sif.PartPrimSys))
	if err != nil {
		return 0, damaged(path, err.Error())
	}
	if kind, _, _, err := d.PartitionMetadata(); err != nil || kind != sif.FsSquash {
		return 0, hpcexec.Errorf(hpcexec.ErrInvalid, "image %s has no squashfs file system", path)
	}
	return d.Offset(), nil
}
