//go:build testbed

package modules

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hpcexec/hpcexec"
)

// TestLmod runs on a node of the testbed, with its Lmod.
func TestLmod(t *testing.T) {
	c := New(&hpcexec.Local{Env: []string{"PATH=/usr/bin:/bin", "HOME=" + os.Getenv("HOME")}}, Options{})
	avail, err := c.Avail(t.Context())
	if err != nil || !slices.Contains(avail, "apptainer/1.4.5") || !slices.Contains(avail, "tools/1.0") {
		t.Errorf("Avail: got %q, %v", avail, err)
	}
	d, err := c.Load(t.Context(), "tools")
	if err != nil || !slices.Equal(d.Loaded, []string{"tools/1.0"}) || len(d.Set) == 0 {
		t.Errorf("Load: got %+v, %v", d, err)
	}
	_, err = c.Load(t.Context(), "aptainer")
	if !errors.Is(err, ErrUnknownModule) || !strings.Contains(hpcexec.Hint(err), "apptainer/1.4.5") {
		t.Errorf("unknown: got %v, hint %q", err, hpcexec.Hint(err))
	}
	path, module, err := c.Which(t.Context(), "apptainer", "singularity", "apptainer")
	if err != nil || module != "" || path != "/usr/bin/apptainer" {
		t.Errorf("Which: got %q, %q, %v", path, module, err)
	}
}
