package hpcexec_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/exectest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLocalConformance(t *testing.T) {
	exectest.Run(t, exectest.Suite{
		New: func(t *testing.T) hpcexec.Executor { return &hpcexec.Local{Grace: 300 * time.Millisecond} },
		Facts: &hpcexec.Properties{
			Place: "local", SharesFilesystem: true, ReportsSignal: true,
			TreeByGroup: true, TreeWhole: true, Terminal: true, Signals: true,
		},
	})
}
