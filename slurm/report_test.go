package slurm

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestMarkedWriter cuts the same output at every place.
func TestMarkedWriter(t *testing.T) {
	const word = "w0rd"
	m := markBytes + word
	for _, tt := range []struct {
		name, in, out string
		lines         []string
		log           string
	}{
		{"plain", "hello\n", "hello\n", nil, ""},
		{"start and end", m + " start 3 gpu1\nhello" + m + " end 0 \n", "hello", []string{"start 3 gpu1", "end 0"}, ""},
		{"a terminal's line ends", m + " start\r\nhi\r\n" + m + " end 0\r\n", "hi\r\n", []string{"start", "end 0"}, ""},
		{"noise after the end", m + " end 0\nslurmstepd: error: x\n" + m + " srun 1\nsrun: error: gpu1\nmore\n", "", []string{"end 0", "srun 1"}, "srun: error: gpu1\nmore\n"},
		{"control bytes of its own", "\x1e\x1d\x1e\x1dx\x1e", "\x1e\x1d\x1e\x1dx\x1e", nil, ""},
		{"the word alone", word + " end 0\n", word + " end 0\n", nil, ""},
		{"another word", markBytes + "other end 0\n", markBytes + "other end 0\n", nil, ""},
		{"a mark without an end", m + " en", m + " en", nil, ""},
		{"a line that is too long", m + strings.Repeat("x", 2*maxLine) + "\n", m + strings.Repeat("x", 2*maxLine) + "\n", nil, ""},
		{"binary", "\x00\x1e\x00\xff" + m + " out\n", "\x00\x1e\x00\xff", []string{"out"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for cut := range len(tt.in) + 1 {
				for _, single := range []bool{false, true} {
					var out bytes.Buffer
					var lines []string
					w := &marked{mark: []byte(m), out: &out, told: func(l string) { lines = append(lines, l) }}
					parts := []string{tt.in[:cut], tt.in[cut:]}
					if single {
						parts = strings.Split(tt.in, "") // runes; bytes that are none stay together
					}
					for _, p := range parts {
						if n, err := w.Write([]byte(p)); n != len(p) || err != nil {
							t.Fatalf("Write: got %d, %v; want %d, nil", n, err, len(p))
						}
					}
					w.flush()
					if out.String() != tt.out || !slices.Equal(lines, tt.lines) || string(w.log) != tt.log {
						t.Fatalf("cut at %d: got %q, %q, log %q; want %q, %q, %q", cut, out.String(), lines, w.log, tt.out, tt.lines, tt.log)
					}
				}
			}
		})
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken") }

func TestMarkedWriterThatFails(t *testing.T) {
	failed := 0
	w := &marked{mark: []byte(markBytes + "w"), out: brokenWriter{}, told: func(string) {}, fail: func() { failed++ }}
	for range 3 {
		if n, err := w.Write([]byte("abc")); n != 3 || err != nil {
			t.Errorf("got %d, %v; want 3, nil: srun isn't told", n, err)
		}
	}
	if failed != 1 {
		t.Errorf("told %d times, want once", failed)
	}
}
