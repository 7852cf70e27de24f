package overlay

import (
	"context"
	"time"
)

// judge says what stands between us and the lease after cur: nothing (0, nil);
// time, after which to look again; or a holder who may be alive.
func (a *acquisition) judge(ctx context.Context, cur leaseFile) (wait time.Duration, err error) {
	if cur.Released {
		return 0, nil
	}
	h := cur.Holder
	refuse := func(why string, orphans bool) (time.Duration, error) {
		return 0, inUse(&InUseError{Dir: a.o.dir, Holder: h, Why: why, Orphans: orphans})
	}
	if h.Host.Same(a.opts.self) {
		if h.Proc.Alive() {
			return refuse("it runs on this node", false)
		}
		for _, p := range h.Helpers {
			if p.Alive() {
				return refuse("it has ended, what it started has not", true)
			}
		}
		return 0, nil
	}

	if a.watched.Token == cur.Token && a.watched.Beat != cur.Beat {
		return refuse("it is alive, its beats are seen", false)
	}
	if a.watched.Token != cur.Token {
		a.watched, a.since, a.gone = cur, time.Now(), false
	}
	silent := time.Since(a.since)
	if h.Host.Host == a.opts.self.Host {
		// An earlier boot of this host, or container on it. Its clock was
		// this one, so what passed before we looked counts as well. If it
		// is another host of the same name, its beats show, as long as
		// its clock is less than the time of silence behind ours.
		silent = max(silent, time.Since(cur.At))
	} else if !a.gone { // asked once, those asked may be slow
		if why := a.maybeAlive(ctx, h); why != "" {
			return refuse(why, false)
		}
		a.gone = true
	}
	need := a.silence(cur)
	if silent >= need {
		return 0, nil
	}
	return min(need-silent, max(need/30, 10*time.Millisecond)), nil
}

// maybeAlive asks whether a holder on another host is gone. The answer is empty
// if it is, else it says why it isn't known.
func (a *acquisition) maybeAlive(ctx context.Context, h Holder) (why string) {
	why = "it can't be told from here whether it has ended"
	if h.Job != "" && a.opts.JobGone != nil {
		gone, known := a.opts.JobGone(ctx, h.Job, h.Submit)
		switch {
		case gone && known:
			return ""
		case known:
			why = "its job has not ended"
		default:
			why = "it can't be told whether its job has ended with all that it started"
		}
	}
	if a.opts.NodeGone != nil {
		gone, known := a.opts.NodeGone(ctx, h)
		switch {
		case gone && known:
			return ""
		case known:
			why = "its node says that it runs"
		}
	}
	return why
}

func (a *acquisition) silence(cur leaseFile) time.Duration {
	if a.opts.Silence > 0 {
		return a.opts.Silence
	}
	return max(3*time.Duration(cur.Interval)*time.Millisecond, minSilence)
}
