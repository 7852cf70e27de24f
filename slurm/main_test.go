package slurm

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "srun" {
		os.Exit(fakeSrunMain(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}
