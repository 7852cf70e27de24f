package hpcexec

import (
	"bytes"
	"context"
	"os/exec"
	"testing"
)

func BenchmarkLocal(b *testing.B) {
	l := &Local{}
	b.Run("Local", func(b *testing.B) {
		for b.Loop() {
			var out, errOut bytes.Buffer
			if _, err := l.Run(context.Background(), Request{Args: []string{"/bin/true"}, Stdout: &out, Stderr: &errOut}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("os-exec", func(b *testing.B) {
		for b.Loop() {
			var out, errOut bytes.Buffer
			cmd := exec.CommandContext(context.Background(), "/bin/true")
			cmd.Stdout, cmd.Stderr = &out, &errOut
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
