package sshmux

import (
	"os"
	"os/exec"
	"testing"

	"github.com/hpcexec/hpcexec"
)

// The ways to run `true`, from the barest to the longest; all on this machine.

func BenchmarkForkExec(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkRun(b *testing.B, ex hpcexec.Executor) {
	b.Helper()
	for b.Loop() {
		resp, err := ex.Run(b.Context(), hpcexec.Request{Args: []string{"true"}, Stdout: os.Stderr, Stderr: os.Stderr})
		if err != nil || resp.ExitCode != 0 {
			b.Fatal(resp, err)
		}
	}
}

func BenchmarkHost(b *testing.B) {
	h, err := DialShim(b.Context(), serveShim(b), HostOptions{Place: "local"})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	benchmarkRun(b, h)
}

func BenchmarkClient(b *testing.B) {
	benchmarkRun(b, attachShim(b, serveMaster(b, MasterOptions{}), serveShim(b)))
}

// BenchmarkClientParallel runs as many at once as there are processors.
func BenchmarkClientParallel(b *testing.B) {
	ep := attachShim(b, serveMaster(b, MasterOptions{}), serveShim(b))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if resp, err := ep.Run(b.Context(), hpcexec.Request{Args: []string{"true"}}); err != nil || resp.ExitCode != 0 {
				b.Error(resp, err)
				return
			}
		}
	})
}

// BenchmarkProcess is a whole process of a client.
func BenchmarkProcess(b *testing.B) {
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	ep := attachShim(b, serveMaster(b, MasterOptions{}), serveShim(b))
	for b.Loop() {
		if out, err := exec.Command(exe, "client", ep.socket, "true").CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
}

// BenchmarkOpenSSH is the same with OpenSSH's client.
func BenchmarkOpenSSH(b *testing.B) {
	ep := attachShim(b, serveMaster(b, MasterOptions{}), serveShim(b))
	for b.Loop() {
		if out, err := exec.Command("ssh", "-F", "/dev/null", "-S", ep.socket, "x", "true").CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
}
