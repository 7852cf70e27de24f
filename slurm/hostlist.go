package slurm

import (
	"strconv"
	"strings"
)

// maxHosts bounds what a host list may expand to.
const maxHosts = 1 << 17

// ParseHostlist expands a list of nodes: "gpu[1-2,7],cpu01" is gpu1 gpu2 gpu7
// cpu01, "rack[1-2]n[01-03]" six nodes. "(null)" and "None assigned" are no
// nodes. What can't be expanded stays as it is, as one name.
func ParseHostlist(s string) []string {
	s = strings.TrimSpace(s)
	switch s {
	case "", "(null)", "None assigned", "None", "N/A":
		return nil
	}
	var hosts []string
	for _, entry := range splitOutside(s, ',') {
		if entry == "" {
			continue
		}
		expanded, ok := expandHost(entry, maxHosts-len(hosts))
		if !ok {
			expanded = []string{entry}
		}
		hosts = append(hosts, expanded...)
	}
	return hosts
}

// expandHost expands one entry with any number of brackets.
func expandHost(s string, room int) ([]string, bool) {
	open := strings.IndexByte(s, '[')
	if open < 0 {
		return []string{s}, room > 0 && !strings.Contains(s, "]")
	}
	end := strings.IndexByte(s, ']')
	if end < open {
		return nil, false
	}
	tails, ok := expandHost(s[end+1:], room)
	if !ok {
		return nil, false
	}
	var hosts []string
	for _, r := range strings.Split(s[open+1:end], ",") {
		first, last, isRange := strings.Cut(r, "-")
		if !isRange {
			last = first
		}
		a, err1 := strconv.ParseUint(first, 10, 32)
		b, err2 := strconv.ParseUint(last, 10, 32)
		if err1 != nil || err2 != nil || b < a || b-a >= uint64(room) {
			return nil, false
		}
		for n := a; n <= b; n++ {
			digits := strconv.FormatUint(n, 10)
			for len(digits) < len(first) {
				digits = "0" + digits
			}
			if len(hosts)+len(tails) > room {
				return nil, false
			}
			for _, t := range tails {
				hosts = append(hosts, s[:open]+digits+t)
			}
		}
	}
	return hosts, true
}
