package sshmux

import "golang.org/x/sys/unix"

// signalNumber is the number of a signal named without SIG, or 0.
func signalNumber(name string) int { return int(unix.SignalNum("SIG" + name)) }
