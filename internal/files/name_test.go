package files

import (
	"bytes"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	tests := []struct {
		name              string
		valid, path, ours bool
	}{
		{name: "a", valid: true, path: true},
		{name: ".hidden", valid: true, path: true},
		{name: "...", valid: true, path: true},
		{name: "\xff\n", valid: true, path: true},
		{name: strings.Repeat("n", 255), valid: true, path: true},
		{name: strings.Repeat("n", 256)},
		{name: ""},
		{name: "."},
		{name: ".."},
		{name: "a\x00"},
		{name: "a/b", path: true},
		{name: "a/"},
		{name: "/a"},
		{name: "a/../b"},
		{name: "a/./b"},
		{name: strings.Repeat("d/", maxDepth-1) + "d", path: true},
		{name: strings.Repeat("d/", maxDepth) + "d"},
		{name: partName("a", 1, 2), valid: true, path: true, ours: true},
		{name: partName(strings.Repeat("n", 255), 1, 2), valid: true, path: true, ours: true},
		{name: tempName("a"), valid: true, path: true, ours: true},
		{name: ".a.hpcexec-part", valid: true, path: true},
		{name: ".a.0123456789zz.hpcexec-tmp", valid: true, path: true},
		{name: "a.0123456789ab.hpcexec-tmp", valid: true, path: true},
	}
	for _, tt := range tests {
		if got := validName(tt.name); got != tt.valid {
			t.Errorf("validName(%q): got %v", tt.name, got)
		}
		if got := validPath(tt.name); got != tt.path {
			t.Errorf("validPath(%q): got %v", tt.name, got)
		}
		if got := isOurs(tt.name); got != tt.ours {
			t.Errorf("isOurs(%q): got %v", tt.name, got)
		}
	}
}

// A partial file belongs to one version of one file.
func TestPartName(t *testing.T) {
	a := partName("a", 1, 2)
	if partName("a", 1, 2) != a {
		t.Error("got another name for the same file")
	}
	for _, b := range []string{partName("b", 1, 2), partName("a", 2, 2), partName("a", 1, 3)} {
		if b == a {
			t.Errorf("got %q for two files", a)
		}
	}
}

func TestBaseOf(t *testing.T) {
	for path, want := range map[string]string{
		"a": "a", "a/b": "b", "/a/b/": "b", "a//": "a", "": "", ".": "", "..": "", "/": "", "a/.": "", "a/..": "", "../x": "x",
	} {
		if got := baseOf(path); got != want {
			t.Errorf("baseOf(%q): got %q, want %q", path, got, want)
		}
	}
}

func TestSameTime(t *testing.T) {
	const s = 1_000_000_000
	tests := []struct {
		a, b int64
		want bool
	}{
		{5*s + 7, 5*s + 7, true}, {5*s + 7, 5*s + 8, false}, {5*s + 7, 5 * s, true}, {5 * s, 5*s + 7, true},
		{5 * s, 6 * s, false}, {-5*s + 7, -5 * s, true}, {-5*s + 7, -4 * s, false}, {-s / 2, 0, false},
	}
	for _, tt := range tests {
		if got := sameTime(tt.a, tt.b); got != tt.want {
			t.Errorf("sameTime(%d, %d): got %v", tt.a, tt.b, got)
		}
	}
}

func TestTrimZeros(t *testing.T) {
	z := func(n int) []byte { return make([]byte, n) }
	x := []byte("x")
	tests := []struct {
		name string
		data []byte
		lead int
		rest int
	}{
		{"empty", nil, 0, 0},
		{"zeros", z(10000), 10000, 0},
		{"data", bytes.Repeat(x, 10000), 0, 10000},
		{"short zeros before data", append(z(100), x...), 0, 101},
		{"blocks before data", append(z(8192), x...), 8192, 1},
		{"blocks after data", append([]byte("x"), z(8191+4096)...), 0, 4096},
		{"both", append(append(z(4096), x...), z(9000)...), 4096, 4096},
	}
	for _, tt := range tests {
		lead, rest := trimZeros(tt.data)
		if lead != tt.lead || len(rest) != tt.rest {
			t.Errorf("%s: got %d and %d bytes, want %d and %d", tt.name, lead, len(rest), tt.lead, tt.rest)
		}
	}
}
