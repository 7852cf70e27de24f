package overlay

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/atomicfile"
	"github.com/hpcexec/hpcexec/internal/hostid"
)

// A lease is a chain of files, of which the one with the highest number counts:
//
//		lease.7  {holder A, released}        lease.8  {holder B, beat 1204}
//
//	  - lease.N+1 is taken with link(2) by whoever found that the holder of
//	    lease.N has released it or is dead. Both stay true for ever, so it
//	    doesn't matter how long ago that was found; among those who found it,
//	    link(2) lets one in.
//	  - The highest file is never removed, so numbers never come back. Only the
//	    one who took N+1 removes what is below. Somebody slow who takes a
//	    number that was removed finds a higher one when he looks again, and
//	    steps back.
//	  - The holder alone writes to its file, by rename(2): beats, and at last
//	    the release. If it was broken meanwhile it writes to a file that doesn't
//	    count.
const leasePrefix = "lease."

const (
	defaultBeat = 5 * time.Second

	// minSilence is the shortest time without a beat that says anything
	// where the caller doesn't choose one.
	minSilence = 15 * time.Second
)

// A Holder says who holds a lease.
type Holder struct {
	Host hostid.ID   `json:"host"`
	Proc hostid.Proc `json:"proc"`

	// Helpers are processes on the same host that write to the overlay and
	// may outlive Proc: the container, its FUSE programs.
	Helpers []hostid.Proc `json:"helpers,omitempty"`

	// Job is the id of the Slurm job that Proc runs in, with its submit
	// time, since ids are used again.
	Job    string    `json:"job,omitempty"`
	Submit time.Time `json:"submit,omitzero"`

	Session string    `json:"session,omitempty"`
	Since   time.Time `json:"since"`
}

// leaseFile is the content of lease.N.
type leaseFile struct {
	Format   int       `json:"format"`
	N        int       `json:"n"`
	Token    string    `json:"token"` // of this holding, random
	Holder   Holder    `json:"holder"`
	Interval int64     `json:"interval_ms"` // between two beats
	Beat     uint64    `json:"beat"`
	At       time.Time `json:"at"` // of the last beat, by the holder's clock
	Released bool      `json:"released"`
}

// encode is the content of the file, filled up with spaces: as long as its
// length doesn't change it can be written in place.
func (l leaseFile) encode() ([]byte, error) {
	const block = 2048
	data, err := atomicfile.Marshal(l)
	if err != nil {
		return nil, err
	}
	pad := (block - len(data)%block) % block
	return append(data, bytes.Repeat([]byte{' '}, pad)...), nil
}

// AcquireOptions say who wants the lease, and how the end of a holder on
// another node is found out.
type AcquireOptions struct {
	// Job, Submit and Session go into the [Holder]; the host and the process
	// are the caller's own.
	Job     string
	Submit  time.Time
	Session string

	// Beat is the interval of the heartbeat; 0 is 5 s.
	Beat time.Duration

	// Silence is how long a holder on another node must not have shown a
	// beat, by the clock of this one, before it can count as dead. 0 is
	// three times the interval of its beats, at least 15 s.
	Silence time.Duration

	// JobGone says whether a job has ended and nothing that it started is
	// left. Where the site doesn't track processes by cgroup the end of a
	// job is no proof, and the answer is not known. nil: never known.
	JobGone func(ctx context.Context, job string, submit time.Time) (gone, known bool)

	// NodeGone says whether a holder's node was rebooted since, or was
	// asked and no longer has the holder's processes. nil: never known.
	NodeGone func(ctx context.Context, h Holder) (gone, known bool)

	self hostid.ID // for tests; zero: found out
	step stepFunc
}

// Acquire takes the lease of the overlay: the right to write to it, for this
// process. It returns at once if the lease is free or its holder is provably
// dead, and with an error (see [InUseError]) if the holder is alive or may be:
//
//   - A holder on this host and boot is dead if its process is gone, and so
//     are its helpers.
//   - A holder on an earlier boot of a host of this name is dead once its
//     beats are missing for the time of Silence.
//   - A holder on another host is dead if JobGone or NodeGone says so, and no
//     beat was seen during Silence; Acquire waits for that long.
//
// ctx bounds the waiting. The caller must call Release.
func (o *Overlay) Acquire(ctx context.Context, opts AcquireOptions) (*Lease, error) {
	a := acquisition{o: o, opts: opts}
	if a.opts.Beat <= 0 {
		a.opts.Beat = defaultBeat
	}
	if a.opts.self == (hostid.ID{}) {
		id, err := hostid.Self()
		if err != nil {
			return nil, err
		}
		a.opts.self = id
	}
	proc, err := hostid.SelfProc()
	if err != nil {
		return nil, err
	}
	a.mine = leaseFile{
		Format:   format,
		Token:    strings.ToLower(rand.Text()),
		Interval: a.opts.Beat.Milliseconds(),
		Holder: Holder{
			Host: a.opts.self, Proc: proc,
			Job: opts.Job, Submit: opts.Submit.UTC(), Session: opts.Session,
		},
	}
	l, err := a.run(ctx)
	if err != nil {
		return nil, diskError(o.dir, err)
	}
	return l, nil
}

// An acquisition is one call of Acquire.
type acquisition struct {
	o    *Overlay
	opts AcquireOptions
	mine leaseFile

	// What is watched for beats, since when by our clock, and whether
	// somebody said that its holder is gone.
	watched leaseFile
	since   time.Time
	gone    bool
}

func (a *acquisition) run(ctx context.Context) (*Lease, error) {
	atomicfile.Sweep(a.o.dir, time.Hour) // beats that a crash cut off
	for {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		top, err := highest(a.o.dir)
		if err != nil {
			return nil, err
		}
		wait := time.Duration(0)
		if top > 0 {
			cur, err := readLease(a.o.dir, top)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESTALE) {
				// Somebody has taken the next number. On a file system
				// that caches names it may take a moment to show.
				if err := sleep(ctx, 10*time.Millisecond); err != nil {
					return nil, err
				}
				continue
			}
			if err != nil {
				return nil, err
			}
			if wait, err = a.judge(ctx, cur); err != nil {
				return nil, err
			}
		}
		if wait > 0 {
			if err := sleep(ctx, wait); err != nil {
				return nil, err
			}
			continue
		}
		l, err := a.take(top + 1)
		if errors.Is(err, fs.ErrExist) {
			continue // another racer was faster: see who it is
		}
		return l, err
	}
}

// take makes lease.n. The error matches fs.ErrExist if another process has it,
// or a higher one.
func (a *acquisition) take(n int) (_ *Lease, err error) {
	a.mine.N = n
	a.mine.Beat = 1
	a.mine.At = time.Now().UTC()
	a.mine.Holder.Since = a.mine.At.Round(time.Second)
	data, err := a.mine.encode()
	if err != nil {
		return nil, err
	}
	if err := a.opts.step.at("take"); err != nil {
		return nil, err
	}
	path := leasePath(a.o.dir, n)
	if err := atomicfile.Create(path, data, 0o600); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && !errors.Is(err, fs.ErrExist) {
			// Ours, and nobody will release it.
			a.mine.Released = true
			if data, err := a.mine.encode(); err == nil {
				inPlace(path, data)
			}
		}
	}()
	if err := a.opts.step.at("verify"); err != nil {
		return nil, err
	}
	list, err := numbers(a.o.dir)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || list[0] < n {
		return nil, errors.New("the lease that was just taken can't be seen")
	}
	if list[0] > n {
		os.Remove(path)
		return nil, fs.ErrExist
	}
	for _, m := range list[1:] {
		if err := a.opts.step.at("remove old"); err != nil {
			return nil, err
		}
		os.Remove(leasePath(a.o.dir, m)) // else the next one does
	}
	return startLease(a.o.dir, a.mine, a.opts), nil
}

// Status is what can be told of an overlay's lease by reading it.
type Status struct {
	Held   bool   // nobody released it
	Holder Holder // of this lease, or of the last one; zero if there was none
	Beat   uint64
	At     time.Time // of the last beat, by the holder's clock

	// Dead: Held, and the holder and its helpers were on this host and boot
	// and are gone. Of other hosts nothing is known here.
	Dead bool
}

// Status reads who holds the lease.
func (o *Overlay) Status() (Status, error) {
	for range 10 {
		top, err := highest(o.dir)
		if err != nil {
			return Status{}, diskError(o.dir, err)
		}
		if top == 0 {
			return Status{}, nil
		}
		cur, err := readLease(o.dir, top)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESTALE) {
			continue
		}
		if err != nil {
			return Status{}, diskError(o.dir, err)
		}
		st := Status{Held: !cur.Released, Holder: cur.Holder, Beat: cur.Beat, At: cur.At}
		if self, err := hostid.Self(); err == nil && st.Held && cur.Holder.Host.Same(self) {
			st.Dead = !cur.Holder.Proc.Alive()
			for _, p := range cur.Holder.Helpers {
				st.Dead = st.Dead && !p.Alive()
			}
		}
		return st, nil
	}
	return Status{}, diskError(o.dir, errors.New("the lease changes faster than it can be read"))
}

func leasePath(dir string, n int) string {
	return filepath.Join(dir, leasePrefix+strconv.Itoa(n))
}

// readLease reads lease.n. It reads again what isn't whole: a holder whose disk
// is full writes in place.
func readLease(dir string, n int) (l leaseFile, err error) {
	for i := range 5 {
		time.Sleep(time.Duration(i) * 10 * time.Millisecond)
		l = leaseFile{}
		err = atomicfile.ReadJSON(leasePath(dir, n), &l, format)
		if err == nil && (l.N != n || l.Token == "" || l.Holder.Host.BootID == "" || l.Holder.Proc.PID <= 0) {
			err = fmt.Errorf("%s: %w: a member is missing", leasePath(dir, n), atomicfile.ErrCorrupt)
		}
		if !errors.Is(err, atomicfile.ErrCorrupt) {
			return l, err
		}
	}
	return l, hpcexec.Errorf(hpcexec.ErrUnavailable, "%w", err).
		WithHint("if nothing uses this overlay, remove %s", leasePath(dir, n))
}

// numbers are the N of the lease files, highest first.
func numbers(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []int
	for _, e := range entries {
		if n, ok := parseLeaseName(e.Name()); ok {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b int) int { return b - a })
	return list, nil
}

// parseLeaseName takes lease.N. Only the form that leasePath makes counts: two
// names for one number would be two leases.
func parseLeaseName(name string) (int, bool) {
	s, ok := strings.CutPrefix(name, leasePrefix)
	n, err := strconv.Atoi(s)
	return n, ok && err == nil && n > 0 && strconv.Itoa(n) == s
}

func highest(dir string) (int, error) {
	list, err := numbers(dir)
	if err != nil || len(list) == 0 {
		return 0, err
	}
	return list[0], nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
