package exectest

import (
	"time"

	"github.com/hpcexec/hpcexec"
)

func lossClauses() []Clause {
	return []Clause{
		{"LostPlace", "Where the place is lost in mid-run, Run returns ErrUnknownEnd promptly, with the output so far, and nobody writes any more.", lostPlace},
		{"LostBefore", "A run in a place that is lost is ErrUnavailable or ErrAllocationGone, promptly, unless the place is reached again.", lostBefore},
		{"OutlivesClient", "Where Properties say OutlivesClient, Timeout holds although the place was lost to the client.", outlivesClient},
	}
}

// canBreak says whether the place of the Executor can be lost.
func (t *T) canBreak() bool {
	if t.s.Break == nil {
		t.Log("this place can't be lost")
	}
	return t.s.Break != nil
}

func lostPlace(t *T) {
	if !t.canBreak() {
		return
	}
	req := t.sh(`echo up; while :; do echo more; sleep 0.1 || sleep 1; done 2>/dev/null`)
	req.Stdin = t.stuck("")
	rn := t.launch(req, "up\n")
	t.s.Break(t.T, t.ex)
	r := rn.wait()
	t.wantErr(r.err, hpcexec.ErrUnknownEnd)
	n := rn.out.count()
	time.Sleep(50 * time.Millisecond)
	if n2 := rn.out.count(); n2 != n {
		t.Errorf("%d Writes after the return", n2-n)
	}
}

func lostBefore(t *T) {
	if !t.canBreak() {
		return
	}
	t.ok(t.sh(`:`))
	t.s.Break(t.T, t.ex)
	r := t.run(t.ctx, t.sh(`exit 3`))
	switch kind := hpcexec.KindName(r.err); {
	case r.err == nil && r.ExitCode == 3:
	case kind == "unavailable" || kind == "allocation_gone":
	default:
		t.Errorf("got exit code %d, error %v, want ErrUnavailable or ErrAllocationGone", r.ExitCode, r.err)
	}
}

func outlivesClient(t *T) {
	if !t.facts.OutlivesClient {
		t.Log("not declared: nothing is promised")
		return
	}
	if !t.canBreak() {
		t.Error("OutlivesClient is declared, but there is no Break to test it with")
		return
	}
	req := t.sh(`trap '' TERM HUP; echo up; while :; do sleep 600; done`)
	req.Timeout = 2 * time.Second
	rn := t.launch(req, "up\n")
	t.s.Break(t.T, t.ex)
	t.wantErr(rn.wait().err, hpcexec.ErrUnknownEnd)
	t.wantMarked(0, req.Timeout+2*t.s.Grace)
}
