package snapshots

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// BenchmarkCreate compares a snapshot of many small files with the program that
// makes it and with what people do instead. HPCEXEC_BENCH_FILES is the number
// of files, 5,000 where it isn't set; read the figures of one run only.
func BenchmarkCreate(b *testing.B) {
	n := 5000
	if v, err := strconv.Atoi(os.Getenv("HPCEXEC_BENCH_FILES")); err == nil {
		n = v
	}
	up := filepath.Join(b.TempDir(), "upper")
	manyFiles(b, up, n)
	s, err := Open(filepath.Join(b.TempDir(), "store"), Options{})
	if err != nil {
		b.Fatal(err)
	}
	tool, err := s.find("mksquashfs")
	if err != nil {
		b.Fatal(err)
	}
	out := b.TempDir()
	sh := func(script string) func(b *testing.B) {
		return func(b *testing.B) {
			for i := range b.N {
				cmd := exec.Command("sh", "-c", script)
				cmd.Env = append(os.Environ(), "UP="+up, fmt.Sprintf("OUT=%s/%d-%d", out, b.N, i))
				if msg, err := cmd.CombinedOutput(); err != nil {
					b.Fatalf("%v: %s", err, msg)
				}
			}
		}
	}
	b.Run("store", func(b *testing.B) {
		for b.Loop() {
			snap, err := s.Create(b.Context(), CreateOptions{Upper: up})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(snap.Size), "bytes")
		}
	})
	b.Run("mksquashfs", sh(tool+` "$UP" "$OUT.sqfs" -no-progress -comp zstd -Xcompression-level 1 >/dev/null`))
	b.Run("cp -a", sh(`cp -a "$UP" "$OUT"`))
	b.Run("tar zstd", sh(`tar -C "$UP" -cf - . | zstd -1 -q -T0 >"$OUT.tar.zst"`))
	b.Run("untar", sh(`mkdir "$OUT.d"; set -- $(ls "${OUT%/*}"/*.tar.zst); zstd -dc "$1" | tar -C "$OUT.d" -xf -`))
	b.Run("layers", func(b *testing.B) { // what a fork needs of the store
		list, err := s.List(b.Context())
		if err != nil || len(list) == 0 {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := s.Layers(list[0].ID); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// manyFiles makes n files of about 7 KB, as a Python environment has them.
func manyFiles(b *testing.B, dir string, n int) {
	b.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	line := "def f(self, value=None, other=%d): return self.values[%d]\n"
	for i := range n {
		sub := filepath.Join(dir, fmt.Sprint(i/1000), fmt.Sprint(i/50))
		if i%50 == 0 {
			if err := os.MkdirAll(sub, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		var text []byte
		for range rnd.IntN(250) {
			text = fmt.Appendf(text, line, i, rnd.IntN(100))
		}
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(i, ".py")), text, 0o644); err != nil {
			b.Fatal(err)
		}
	}
}
