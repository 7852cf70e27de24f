package overlay

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkLease is what a lease costs: to take and give back, and each beat.
func BenchmarkLease(b *testing.B) {
	o, err := Create(filepath.Join(b.TempDir(), "o"), CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	opts := AcquireOptions{Beat: time.Hour}
	b.Run("take", func(b *testing.B) {
		for b.Loop() {
			l, err := o.Acquire(b.Context(), opts)
			if err != nil {
				b.Fatal(err)
			}
			if err := l.Release(); err != nil {
				b.Fatal(err)
			}
		}
	})
	l, err := o.Acquire(b.Context(), opts)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Release()
	b.Run("beat", func(b *testing.B) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for b.Loop() {
			if err := l.beatLocked(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkTree is what 5,000 small files cost.
func BenchmarkTree(b *testing.B) {
	dir := b.TempDir()
	made := 0
	make5000 := func() *Overlay {
		made++
		o, err := Create(filepath.Join(dir, fmt.Sprint(made)), CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		for i := range 5000 {
			sub := filepath.Join(o.Upper(), fmt.Sprint(i/50))
			if i%50 == 0 {
				if err := os.Mkdir(sub, 0o755); err != nil {
					b.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(i)), []byte("x"), 0o644); err != nil {
				b.Fatal(err)
			}
		}
		return o
	}
	b.Run("usage", func(b *testing.B) {
		o := make5000()
		for b.Loop() {
			if _, err := o.Usage(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("remove", func(b *testing.B) {
		for range b.N {
			b.StopTimer()
			o := make5000()
			b.StartTimer()
			if err := o.Remove(b.Context(), AcquireOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
