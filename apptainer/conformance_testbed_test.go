//go:build testbed

package apptainer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/exectest"
)

// TestConformance holds the wrapper to the contract, with the real runtime:
// an image with coreutils and bash or dash, and one with busybox alone.
func TestConformance(t *testing.T) {
	for _, image := range []string{testImage, testBusybox} {
		name := strings.TrimSuffix(filepath.Base(image), ".sif")
		t.Run(name, func(t *testing.T) {
			r := testRuntime(t)
			// The same path in and outside, so that Probe sees what cases write.
			files := testOverlay(t)
			local := &hpcexec.Local{Env: ScrubEnv(os.Environ())}
			var shared *Wrapper
			exectest.Run(t, exectest.Suite{
				New: func(*testing.T) hpcexec.Executor {
					if shared == nil || !shared.inst.Running() {
						i := testStart(t, r, StartOptions{
							Name: testInstance + "conf-" + name, Image: image, Overlay: testOverlay(t),
							Home: "/session", Mounts: []Mount{{Src: files, Dst: files}}, DeferVerify: true,
						})
						shared = i.Wrap(local)
					}
					return shared
				},
				Probe: func(*testing.T) hpcexec.Executor { return local },
				Break: func(t *testing.T, ex hpcexec.Executor) {
					if _, err := ex.(*Wrapper).inst.Stop(t.Context(), 0); err != nil {
						t.Errorf("stop: %v", err)
					}
				},
				TempDir: files,
			})
		})
	}
}
