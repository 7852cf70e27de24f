//go:build testbed

package snapshots

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// look is what Diff compares of a container's tree, as a process in it sees it:
// a line for each path.
const look = `
import os, stat, hashlib
skip = {b"/proc", b"/sys", b"/dev", b"/tmp", b"/var/tmp", b"/.singularity.d",
    b"/etc/passwd", b"/etc/group", b"/etc/resolv.conf", b"/etc/hosts", b"/etc/localtime"}
def one(p):
    st = os.lstat(p)
    f = [stat.S_IFMT(st.st_mode)]
    if stat.S_ISLNK(st.st_mode): f.append(os.readlink(p))
    else: f.append(stat.S_IMODE(st.st_mode))
    if stat.S_ISREG(st.st_mode):
        f.append(st.st_size)
        if st.st_size < 1 << 22:
            try: f.append(hashlib.sha256(open(p, "rb").read()).hexdigest())
            except PermissionError: f.append("closed")
    print(p.hex(), f)
def walk(d):
    if d in skip: return
    if d != b"/": one(d)
    try: names = sorted(os.listdir(d))
    except PermissionError: return
    for n in names:
        p = os.path.join(d, n)
        if stat.S_ISDIR(os.lstat(p).st_mode): walk(p)
        elif p not in skip: one(p)
walk(b"/")
`

// seen is the difference of two lists, as short has it.
func seen(a, b string) []string {
	parse := func(text string) map[string]string {
		m := map[string]string{}
		for line := range strings.Lines(text) {
			name, rest, _ := strings.Cut(line, " ")
			m[name] = rest
		}
		return m
	}
	x, y := parse(a), parse(b)
	var list []string
	for name, was := range x {
		if is, ok := y[name]; !ok {
			list = append(list, "-"+name)
		} else if is != was {
			list = append(list, "~"+name)
		}
	}
	for name := range y {
		if _, ok := x[name]; !ok {
			list = append(list, "+"+name)
		}
	}
	slices.Sort(list)
	return list
}

// TestRealDiff: what Diff tells of two snapshots on each other is what
// processes in the containers see, whatever the overlay left as marks.
func TestRealDiff(t *testing.T) {
	dir := workDir(t)
	s, err := Open(filepath.Join(dir, "store"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(testImage)
	if err != nil {
		t.Fatal(err)
	}
	opts := DiffOptions{Image: testImage}
	for opts.Offset = 4096; !bytes.HasPrefix(image[opts.Offset:], []byte("hsqs")); opts.Offset += 4096 {
	}
	first, fork := newUpper(t, filepath.Join(dir, "first")), newUpper(t, filepath.Join(dir, "fork"))
	before := inside(t, first, nil, "python3", look)
	inside(t, first, nil, "bash", work)
	middle := inside(t, first, nil, "python3", look)
	a, err := s.Create(t.Context(), CreateOptions{Upper: filepath.Join(first, "upper")})
	if err != nil {
		t.Fatal(err)
	}
	layers, err := s.Layers(a.ID)
	if err != nil {
		t.Fatal(err)
	}
	inside(t, fork, layers, "bash", more)
	after := inside(t, fork, layers, "python3", look)
	b, err := s.Create(t.Context(), CreateOptions{Upper: filepath.Join(fork, "upper"), Layers: a.Chain()})
	if err != nil {
		t.Fatal(err)
	}
	// What a process can't look into, Diff can.
	hidden := func(path string) bool { return strings.HasPrefix(path, "/data/closed") }
	for _, tt := range []struct {
		name     string
		from, to Side
		a, b     string
	}{
		{"first", Side{}, Side{ID: a.ID}, before, middle},
		{"second", Side{ID: a.ID}, Side{ID: b.ID}, middle, after},
		{"back", Side{ID: b.ID}, Side{ID: a.ID}, after, middle},
		{"both", Side{}, Side{ID: b.ID}, before, after},
		{"live", Side{ID: a.ID}, Side{ID: a.ID, Upper: filepath.Join(fork, "upper")}, middle, after},
	} {
		d, err := s.Diff(t.Context(), tt.from, tt.to, opts)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		var got, want []string
		for _, c := range d.Changes {
			if !hidden(c.Path) {
				got = append(got, map[string]string{"added": "+", "changed": "~", "removed": "-"}[c.Change]+c.Path)
			}
		}
		for _, line := range seen(tt.a, tt.b) {
			if path := line[:1] + unhex(t, line[1:]); !hidden(path[1:]) {
				want = append(want, path)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if len(want) < 10 || !slices.Equal(got, want) {
			for _, g := range got {
				if !slices.Contains(want, g) {
					t.Errorf("%s: got  %q", tt.name, g)
				}
			}
			for _, w := range want {
				if !slices.Contains(got, w) {
					t.Errorf("%s: want %q", tt.name, w)
				}
			}
			t.Errorf("%s: got %d changes, want %d", tt.name, len(got), len(want))
		}
		t.Logf("%s: %d changes", tt.name, len(want))
	}
}

func unhex(t *testing.T, s string) string {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
