package files

import (
	"context"

	"github.com/hpcexec/hpcexec"
)

// between copies between two agents: this process passes their frames on, and
// listens.
func (n *nearPeer) between(ctx context.Context, src, dst End, from, to job) (result, error) {
	from1, err := openAgent(ctx, src, from)
	if err != nil {
		return result{}, err
	}
	to1, err := openAgent(ctx, dst, to)
	if err != nil {
		from1.failure(err)
		return result{}, err
	}
	ctx, quit := context.WithCancelCause(ctx)
	defer quit(nil)
	stop := context.AfterFunc(ctx, func() {
		from1.close()
		to1.close()
	})
	defer stop()
	forth := make(chan error, 1)
	go func() { forth <- n.pass(from1, to1, nil) }()
	var res result
	backErr := n.pass(to1, from1, &res)
	if backErr == nil { // the result has been passed on: the sender ends
		<-forth
		from1.close()
		to1.close()
		from1.rw.Close()
		to1.rw.Close()
		return res, nil
	}
	quit(backErr)
	forthErr := <-forth
	if context.Cause(ctx) != backErr {
		return res, context.Cause(ctx)
	}
	if fe, ok := forthErr.(*farError); ok {
		to1.failure(nil)
		from1.failure(nil)
		return res, fe.p.error(src.Name)
	}
	err = to1.finish(context.WithoutCancel(ctx), dst, dst, backErr)
	if own := from1.failure(nil); own != nil {
		return res, hpcexec.Errorf(hpcexec.ErrUnavailable, "%w", own)
	}
	return res, err
}

// pass passes frames on, up to the result. What is told to people is told by
// this process, and goes no further.
func (n *nearPeer) pass(from, to *agent, res *result) error {
	var pool buffers
	for {
		f, err := from.recv(&pool)
		if err != nil {
			return lost(context.Background(), err)
		}
		forUs, err := n.overhear(f)
		if err == nil && !forUs {
			err = to.send(f.typ, f.body)
		}
		if f.typ == frameFail {
			to.send(f.typ, f.body)
		}
		if f.typ == frameFail || f.typ == frameResult {
			to.flush()
		}
		if err == nil && f.typ == frameResult {
			if res == nil {
				return errProtocol
			}
			*res, err = parseResult(f.body)
			return err
		}
		f.release(&pool)
		if err != nil {
			return err
		}
	}
}

// overhear takes what matters to people from a frame.
func (n *nearPeer) overhear(f frame) (forUs bool, err error) {
	switch f.typ {
	case frameWant:
		w, err := parseWant(f.body)
		n.wanted(w.size - w.offset)
		return false, err
	case frameData, frameSmall:
		n.moved("", int64(len(f.body)))
	case frameClose, frameSame:
		n.fileDone()
	case frameFail:
		p, err := parseProblem(f.body)
		if err == nil {
			err = &farError{p}
		}
		return false, err
	case frameProblem:
		p, err := parseProblem(f.body)
		if err == nil {
			n.problem(p)
		}
		return true, err
	case framePartial:
		n.partial(string(f.body))
		return true, nil
	case frameAction:
		a, err := parseAction(f.body)
		if err == nil {
			n.act(a)
		}
		return true, err
	}
	return false, nil
}
