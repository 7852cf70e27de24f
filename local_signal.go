package hpcexec

import (
	"strconv"
	"strings"
)

// The numbers of the real-time signals as programs see them: the C library
// keeps 32 and 33 to itself.
const sigRTMin, sigRTMax = 34, 64

// signalNames has the names of Linux's signals on all processors that it
// runs clusters on, by number, as in signal(7).
var signalNames = [...]string{
	1: "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL",
	"USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT",
	"STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
	"WINCH", "IO", "PWR", "SYS",
}

// SignalName is the name of a signal without SIG, such as "TERM" for 15.
// Real-time signals are named as shells do, "RTMIN+3" and "RTMAX-2"; numbers
// without a name stand for themselves.
func SignalName(number int) string {
	switch {
	case number > 0 && number < len(signalNames):
		return signalNames[number]
	case number == sigRTMin:
		return "RTMIN"
	case number == sigRTMax:
		return "RTMAX"
	case number > sigRTMin && number <= sigRTMin+15:
		return "RTMIN+" + strconv.Itoa(number-sigRTMin)
	case number > sigRTMin && number < sigRTMax:
		return "RTMAX-" + strconv.Itoa(sigRTMax-number)
	}
	return strconv.Itoa(number)
}

// SignalNumber is the number of a signal, 1 to 64, by a name that SignalName
// gives, or by its number in digits. The second value is false for a name
// that it doesn't know.
func SignalNumber(name string) (int, bool) {
	for n, s := range signalNames {
		if s == name && n > 0 {
			return n, true
		}
	}
	base, offset := 0, ""
	if s, ok := strings.CutPrefix(name, "RTMIN"); ok {
		base, offset = sigRTMin, s
	} else if s, ok := strings.CutPrefix(name, "RTMAX"); ok {
		base, offset = sigRTMax, s
	} else if name != "" && name[0] != '+' && name[0] != '-' {
		offset = name
	} else {
		return 0, false
	}
	n := 0
	if offset != "" {
		if base == sigRTMin && offset[0] != '+' || base == sigRTMax && offset[0] != '-' {
			return 0, false
		}
		var err error
		if n, err = strconv.Atoi(offset); err != nil {
			return 0, false
		}
	}
	n += base
	if n < 1 || n > sigRTMax || base != 0 && n < sigRTMin {
		return 0, false
	}
	return n, true
}
