package slurm

import (
	"math"
	"strconv"
	"strings"

	"github.com/hpcexec/hpcexec"
)

// A GRES is one generic resource of a node, a job or a request.
type GRES struct {
	Name  string // "gpu", "shard", "mps"
	Type  string // "a100"; empty where the site names no types
	Count int64
	Index string // which ones, "0-1,3"; empty where not told, or none
	Cores string // sockets or cores they are near to, "0-1"
}

// ParseGRES reads a list of generic resources in all the forms that Slurm has:
//
//	gpu:a100:4   gpu:h100:2(S:0),gpu:a100:1(S:1)   gpu:4,shard:16   (null)
//	gpu:a100:2(IDX:0-1,3)   gpu:a100:0(IDX:N/A)   gpu:(null):2(IDX:0-1)
//	shard:(null):3(0/4,0/4,3/4,0/4)   gpu   gres:gpu:2   gres/gpu:a100:4
//	gres/gpu=2   gres/gpu:a100=2   lustre:no_consume:4K
//
// Commas occur in the parentheses, and the type may be "(null)". An entry that
// can't be read is left out of the list and given in unknown, as it came.
func ParseGRES(s string) (list []GRES, unknown []string) {
	s = strings.TrimSpace(s)
	switch s {
	case "", "(null)", "N/A", "none", "NONE":
		return nil, nil
	}
	for _, entry := range splitOutside(s, ',') {
		if entry == "" {
			continue
		}
		g, ok := parseGRESEntry(entry)
		if !ok {
			unknown = append(unknown, entry)
			continue
		}
		list = append(list, g)
	}
	return list, unknown
}

func parseGRESEntry(s string) (GRES, bool) {
	var g GRES
	body := strings.ReplaceAll(s, "(null)", "")
	if i := strings.IndexByte(body, '('); i >= 0 {
		if !strings.HasSuffix(body, ")") {
			return g, false
		}
		detail := body[i+1 : len(body)-1]
		body = body[:i]
		switch what, value, _ := strings.Cut(detail, ":"); what {
		case "IDX":
			if value != "N/A" {
				g.Index = value
			}
		case "S", "CORES", "C":
			g.Cores = value
		}
		// Others are the use of each device, (0/4,3/4): the count has it.
	}
	if strings.ContainsAny(body, "()") {
		return g, false
	}
	body = strings.TrimPrefix(strings.TrimPrefix(body, "gres/"), "gres:")
	count, hasCount := "", false
	if name, n, ok := strings.Cut(body, "="); ok {
		body, count, hasCount = name, n, true
	}
	parts := strings.Split(body, ":")
	if !hasCount && len(parts) > 1 {
		if last := parts[len(parts)-1]; last != "" && '0' <= last[0] && last[0] <= '9' {
			if _, ok := parseCount(last); ok {
				count, hasCount = last, true
				parts = parts[:len(parts)-1]
			}
		}
	}
	g.Name = parts[0]
	if !plainWord(g.Name) {
		return g, false
	}
	for _, p := range parts[1:] {
		switch {
		case p == "" || p == "no_consume":
		case g.Type == "":
			g.Type = p
		default:
			return g, false
		}
	}
	g.Count = 1 // a request of "gpu" or "gpu:a100" is for one
	if hasCount {
		n, ok := parseCount(count)
		if !ok {
			return g, false
		}
		g.Count = n
	}
	return g, true
}

// parseCount reads a count with Slurm's suffixes, which are powers of 1024.
func parseCount(s string) (int64, bool) {
	shift := uint(0)
	if s != "" {
		switch s[len(s)-1] {
		case 'k', 'K':
			shift = 10
		case 'm', 'M':
			shift = 20
		case 'g', 'G':
			shift = 30
		case 't', 'T':
			shift = 40
		case 'p', 'P':
			shift = 50
		}
	}
	if shift > 0 {
		s = s[:len(s)-1]
	}
	if s == "" || s[0] < '0' || s[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, false
	}
	return n << shift, true
}

// splitOutside splits s at sep where it stands outside of parentheses and
// brackets.
func splitOutside(s string, sep byte) []string {
	var parts []string
	depth, from := 0, 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '(', '[':
			depth++
		case ')', ']':
			if depth > 0 {
				depth--
			}
		case sep:
			if depth == 0 {
				parts = append(parts, s[from:i])
				from = i + 1
			}
		}
	}
	return append(parts, s[from:])
}

// gpuCounts adds up the gpu entries of a list, by type; other names, such as
// shard and mps, are views of the same devices and don't count. A MIG slice is
// a type of its own.
func gpuCounts(list []GRES) map[string]int {
	counts := map[string]int{}
	for _, g := range list {
		if g.Name == "gpu" && g.Count <= math.MaxInt32 {
			counts[g.Type] += int(g.Count)
		}
	}
	return counts
}

// ParseTRES reads a list of trackable resources, "cpu=4,mem=700M,node=1,
// gres/gpu:a100=2". Values are kept as they came.
func ParseTRES(s string) map[string]string {
	m := map[string]string{}
	for _, entry := range splitOutside(strings.TrimSpace(s), ',') {
		if name, value, ok := strings.Cut(entry, "="); ok && name != "" {
			m[name] = value
		}
	}
	return m
}

// A GPURequest asks for GPUs on each node of a job.
type GPURequest struct {
	Type  string // empty: of any type
	Count int    // on each node
}

// ParseGPURequest reads [TYPE:]N: "2", "a100:1". "0" asks for none.
func ParseGPURequest(s string) (GPURequest, error) {
	typ, count, ok := "", s, true
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		typ, count = s[:i], s[i+1:]
		ok = gpuType(typ)
	}
	n, isNumber := number64(count)
	if !ok || !isNumber || n > 1<<16 {
		err := hpcexec.Errorf(hpcexec.ErrInvalid, "GPUs %q are not [TYPE:]N, such as 2 or a100:1", s)
		if gpuType(s) && !isNumber {
			return GPURequest{}, err.WithHint("for one GPU of that type say %s:1", s)
		}
		return GPURequest{}, err
	}
	return GPURequest{typ, int(n)}, nil
}

func gpuType(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(`,:=()[]"'\`, c) >= 0 {
			return false
		}
	}
	return s != "" && s[0] != '-'
}

// String gives the request as ParseGPURequest reads it.
func (g GPURequest) String() string {
	if g.Type == "" {
		return strconv.Itoa(g.Count)
	}
	return g.Type + ":" + strconv.Itoa(g.Count)
}

// gres is the value of --gres, which all releases know since before 20.11 and
// squeue shows in %b; --gpus and --gpus-per-node it shows elsewhere.
func (g GPURequest) gres() string { return "gpu:" + g.String() }
