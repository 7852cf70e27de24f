package exectest

import (
	"strconv"

	"github.com/hpcexec/hpcexec"
)

func itoa(n int) string { return strconv.Itoa(n) }

func endClauses() []Clause {
	return []Clause{
		{"ExitCode", "A non-zero exit is a Response with a nil error; every code from 0 to 255 is the command's own.", exitCode},
		{"SignalDeath", "Death by signal n is exit code 128+n, with the name of the signal exactly where Properties say ReportsSignal; an exit with such a code is none.", signalDeath},
		{"SignalsDefault", "A command begins with no signal ignored or blocked.", signalsDefault},
		{"Times", "Started and Ended are set, in this order.", times},
		{"NoTerminal", "Without a TTY a command has no terminal on its streams and none to open as /dev/tty.", noTerminal},
		{"BackgroundLives", "What a command leaves running in the background lives on after its normal end.", backgroundLives},
	}
}

func exitCode(t *T) {
	for _, code := range []int{0, 1, 2, 42, 124, 125, 126, 127, 128, 129, 143, 254, 255} {
		r := t.run(t.ctx, t.sh(`exit "$1"`, itoa(code)))
		if r.err != nil || r.ExitCode != code || r.Signal != "" || r.TimedOut {
			t.Errorf("exit %d: got exit code %d, signal %q, timed out %v, error %v", code, r.ExitCode, r.Signal, r.TimedOut, r.err)
		}
	}
}

// deadly are signals that end a process which does nothing about them. (QUIT
// does as well, but the shell of busybox ignores it.)
var deadly = map[string]int{"HUP": 1, "INT": 2, "KILL": 9, "USR1": 10, "PIPE": 13, "TERM": 15}

func signalDeath(t *T) {
	for name, n := range deadly {
		r := t.run(t.ctx, t.sh(`ulimit -c 0; kill -"$1" $$; sleep 600`, name))
		want := ""
		if t.facts.ReportsSignal {
			want = name
		}
		if r.err != nil || r.ExitCode != 128+n || r.Signal != want || r.TimedOut {
			t.Errorf("%s: got exit code %d, signal %q, timed out %v, error %v, want %d, %q, false, nil",
				name, r.ExitCode, r.Signal, r.TimedOut, r.err, 128+n, want)
		}
	}
}

func signalsDefault(t *T) {
	// Masks as the kernel tells them; a shell can't reset what it inherits.
	r := t.ok(hpcexec.Request{Args: []string{"cat", "/proc/self/status"}})
	for _, field := range []string{"SigIgn", "SigBlk"} {
		mask, ok := statusField(r.stdout, field)
		if !ok {
			t.Fatalf("no %s in /proc/self/status", field)
		}
		// Without the real-time signals: 32 and 33 are the C library's.
		if v, err := strconv.ParseUint(mask, 16, 64); err != nil || v&(1<<31-1) != 0 {
			t.Errorf("%s: got %s, want none of signals 1 to 31", field, mask)
		}
	}
}

func times(t *T) {
	r := t.ok(t.sh(`:`))
	if r.Started.IsZero() || r.Ended.Before(r.Started) {
		t.Errorf("got started %v, ended %v, want one after the other", r.Started, r.Ended)
	}
	r = t.run(t.ctx, hpcexec.Request{Args: []string{"exectest-no-such-program"}})
	if r.Started.IsZero() || r.Ended.Before(r.Started) {
		t.Errorf("not found: got started %v, ended %v, want one after the other", r.Started, r.Ended)
	}
}

func noTerminal(t *T) {
	r := t.ok(t.sh(`for fd in 0 1 2; do test -t $fd && echo "terminal $fd"; done; (: </dev/tty) 2>/dev/null && echo "/dev/tty"; :`))
	t.wantOutput(r.stdout, "")
}

func backgroundLives(t *T) {
	for _, script := range []string{
		`sleep 600 & echo up`,
		`sleep 600 </dev/null >/dev/null 2>&1 & echo up`,
	} {
		t.ok(t.sh(script))
	}
	if t.s.EndsBackground {
		t.wantMarked(0, t.s.Grace)
		return
	}
	t.wantMarked(2, 0)
}
