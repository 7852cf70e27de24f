package slurm

import (
	"strings"
	"time"
)

// A record is one object that scontrol shows, on one line (-o) or several.
type record map[string]string

// parseRecords reads scontrol's output. Objects begin with the key first
// ("NodeName"). Values may have spaces (OS, Reason, Comment), so a value ends
// where the next KEY= begins; of two with one name the first counts, since free
// text comes last.
func parseRecords(out, first string) []record {
	var records []record
	var r record
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, first+"=") {
			r = record{}
			records = append(records, r)
		}
		if r != nil {
			r.add(line)
		}
	}
	return records
}

func (r record) add(line string) {
	for len(line) > 0 {
		key, rest, ok := strings.Cut(line, "=")
		if !ok {
			return
		}
		// Before the "=" there may be words that belong to nothing.
		key = key[strings.LastIndexByte(key, ' ')+1:]
		end := len(rest)
		for i := 0; i < len(rest); i++ {
			if rest[i] == ' ' && isKey(rest[i+1:]) {
				end = i
				break
			}
		}
		if _, has := r[key]; !has {
			r[key] = strings.TrimSpace(rest[:end])
		}
		line = strings.TrimLeft(rest[end:], " ")
	}
}

// isKey says whether s begins with KEY=. Keys begin with a capital, and have
// letters, digits and :/_ ("NtasksPerN:B:S:C", "CPUs/Task", "MCS_label").
func isKey(s string) bool {
	if s == "" || s[0] < 'A' || s[0] > 'Z' {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '=':
			return true
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == ':', c == '/', c == '_':
		default:
			return false
		}
	}
	return false
}

func (r record) int(key string) int {
	n, ok := parseCount(r[key])
	if !ok || n > 1<<40 {
		return 0
	}
	return int(n)
}

// text is the value of a key, with Slurm's words for nothing as "".
func (r record) text(key string) string {
	switch v := r[key]; v {
	case "(null)", "N/A", "none", "None", "NONE":
		return ""
	default:
		return v
	}
}

func (r record) list(key string) []string {
	v := r.text(key)
	if v == "" {
		return nil
	}
	return strings.Split(v, ",")
}

// Unlimited is a time limit that never comes.
const Unlimited time.Duration = 1<<63 - 1

// parseLimit reads a time limit as Slurm prints it: [DAYS-]HH:MM:SS, MM:SS,
// or a number of minutes (sacct's TimelimitRaw). ok is false for what is no
// time, such as "Partition_Limit", "NOT_SET", "N/A" and "INVALID".
func parseLimit(s string) (d time.Duration, ok bool) {
	switch s {
	case "UNLIMITED", "INFINITE", "infinite":
		return Unlimited, true
	}
	var seconds uint64
	days, clock, hasDays := strings.Cut(s, "-")
	if hasDays {
		n, ok := number64(days)
		if !ok || n > 100000 {
			return 0, false
		}
		seconds = n * 86400
	} else {
		clock = s
	}
	parts := strings.Split(clock, ":")
	unit := []uint64{3600, 60, 1} // HH:MM:SS
	switch {
	case len(parts) == 3:
	case hasDays:
		unit = unit[:len(parts)%3] // D-HH, D-HH:MM
	case len(parts) == 2:
		unit = unit[1:] // MM:SS
	case len(parts) == 1:
		unit = unit[1:2] // minutes
	default:
		return 0, false
	}
	if len(unit) != len(parts) {
		return 0, false
	}
	for i, p := range parts {
		var n uint64
		if p == "" || len(p) > 9 {
			return 0, false
		}
		for _, c := range p {
			if c < '0' || c > '9' {
				return 0, false
			}
			n = n*10 + uint64(c-'0')
		}
		seconds += n * unit[i]
	}
	if seconds > 1<<33 {
		return 0, false
	}
	return time.Duration(seconds) * time.Second, true
}

// parseTime reads a time that a program with TZ=UTC0 printed. Slurm's words
// for no time (N/A, Unknown, None, NONE) are the zero time, as is all else.
func parseTime(s string) time.Time {
	t, err := time.ParseInLocation("2006-01-02T15:04:05", s, time.UTC)
	if err != nil || t.Unix() <= 0 {
		return time.Time{}
	}
	return t
}
