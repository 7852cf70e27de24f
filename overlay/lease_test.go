package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/atomicfile"
	"github.com/hpcexec/hpcexec/internal/hostid"
)

var (
	nodeA = hostid.ID{Host: "a", BootID: "boot-a", InitStart: 1}
	nodeB = hostid.ID{Host: "b", BootID: "boot-b", InitStart: 1}
)

// quick are options for a process on a node, with short times.
func quick(node hostid.ID) AcquireOptions {
	return AcquireOptions{Session: "s-" + node.Host, Beat: 10 * time.Millisecond, Silence: 200 * time.Millisecond, self: node}
}

func gone(context.Context, Holder) (bool, bool) { return true, true }

func acquire(t *testing.T, o *Overlay, opts AcquireOptions) *Lease {
	t.Helper()
	l, err := o.Acquire(t.Context(), opts)
	if err != nil {
		t.Fatalf("got %v, want the lease", err)
	}
	t.Cleanup(func() { l.Release() })
	return l
}

func wantLost(t *testing.T, l *Lease, want bool) {
	t.Helper()
	wait := 10 * time.Second
	if !want {
		wait = 100 * time.Millisecond
	}
	select {
	case <-l.Lost():
		if !want {
			t.Error("the lease is lost")
		}
	case <-time.After(wait):
		if want {
			t.Error("the loss of the lease isn't noticed")
		}
	}
}

func TestAcquireRelease(t *testing.T) {
	o := create(t)
	if st, err := o.Status(); st.Held || st.Holder.Proc.PID != 0 || err != nil {
		t.Errorf("got %+v %v, want a lease that nobody ever held", st, err)
	}
	submit := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := acquire(t, o, AcquireOptions{Session: "train", Job: "17", Submit: submit})
	st, err := o.Status()
	self, _ := hostid.SelfProc()
	if err != nil || !st.Held || st.Dead || st.Holder.Proc != self || st.Holder.Session != "train" || st.Holder.Job != "17" || !st.Holder.Submit.Equal(submit) {
		t.Errorf("got %+v %v, want this process", st, err)
	}

	_, err = o.Acquire(t.Context(), AcquireOptions{})
	var use *InUseError
	if !errors.Is(err, ErrInUse) || !errors.Is(err, hpcexec.ErrUnavailable) || !errors.As(err, &use) {
		t.Fatalf("got %v, want ErrInUse of kind ErrUnavailable", err)
	}
	host, _ := os.Hostname()
	for _, want := range []string{"session train", "on " + host, "job 17", fmt.Sprint("pid ", os.Getpid()), "since 20"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %q, want %q in it", err, want)
		}
	}
	if hint := hpcexec.Hint(err); !strings.Contains(hint, "session stop train") {
		t.Errorf("got hint %q, want what to type", hint)
	}

	for range 2 {
		if err := l.Release(); err != nil {
			t.Errorf("release: %v", err)
		}
	}
	if st, _ := o.Status(); st.Held {
		t.Error("held after Release")
	}
	wantLost(t, l, false)
	acquire(t, o, AcquireOptions{})
	if got := leases(t, o); len(got) != 1 || got[0] != "lease.2" {
		t.Errorf("got %v, want lease.2 alone", got)
	}
}

func leases(t *testing.T, o *Overlay) []string {
	t.Helper()
	var list []string
	for _, n := range names(t, o.Dir()) {
		if strings.HasPrefix(n, leasePrefix) {
			list = append(list, n)
		}
	}
	return list
}

// forge writes a lease of some holder who doesn't beat.
func forge(t *testing.T, o *Overlay, n int, h Holder, at time.Time, released bool) {
	t.Helper()
	l := leaseFile{Format: format, N: n, Token: fmt.Sprint("t", n), Holder: h, Interval: 10, Beat: 1, At: at, Released: released}
	data, err := l.encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(leasePath(o.Dir(), n), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTakenOver: a holder that was stopped for long and whose node was believed
// gone finds out that the lease is another's, and does no harm to it.
func TestTakenOver(t *testing.T) {
	o := create(t)
	var stopped atomic.Bool
	opts := quick(nodeB)
	opts.step = func(name string) error {
		if name == "beat" && stopped.Load() {
			return syscall.EIO
		}
		return nil
	}
	old := acquire(t, o, opts)
	stopped.Store(true)
	taker := quick(nodeA)
	taker.NodeGone = gone
	l := acquire(t, o, taker)
	wantLost(t, old, true)
	if err := old.Release(); err != nil {
		t.Errorf("release of a lost lease: %v", err)
	}
	if err := old.SetHelpers(nil); !errors.Is(err, hpcexec.ErrUnavailable) {
		t.Errorf("SetHelpers on a lost lease: got %v, want ErrUnavailable", err)
	}
	st, err := o.Status()
	if err != nil || !st.Held || st.Holder.Host != nodeA {
		t.Errorf("got %+v %v, want node a", st, err)
	}
	wantLost(t, l, false)
}

// TestLateBeat: a beat that was under way when the lease was broken, and lands
// after the next holder released his, frees or takes nothing.
func TestLateBeat(t *testing.T) {
	o := create(t)
	forge(t, o, 3, Holder{Host: nodeB, Proc: hostid.Proc{PID: 1}}, time.Now(), false)
	opts := quick(nodeA)
	opts.NodeGone = gone
	l := acquire(t, o, opts)
	forge(t, o, 3, Holder{Host: nodeB, Proc: hostid.Proc{PID: 1}}, time.Now(), false)
	wantLost(t, l, false)
	l.Release()
	forge(t, o, 3, Holder{Host: nodeB, Proc: hostid.Proc{PID: 1}}, time.Now(), false)
	acquire(t, o, quick(nodeA)) // lease.4 says free
	if got := fmt.Sprint(leases(t, o)); got != "[lease.5]" {
		t.Errorf("got %s, want lease.5 alone", got)
	}
}

// TestSlowRacer: somebody who found lease.1 free, and was slow, steps back
// though the number that he takes is free again.
func TestSlowRacer(t *testing.T) {
	o := create(t)
	forge(t, o, 1, Holder{Host: nodeB, Proc: hostid.Proc{PID: 1}}, time.Now(), true)
	opts := quick(nodeA)
	var others *Lease
	opts.step = func(name string) error {
		if name == "take" && others == nil {
			acquire(t, o, quick(nodeB)).Release()   // lease.2
			others = acquire(t, o, quick(nodeB))    // lease.3
			if got := leases(t, o); len(got) != 1 { // lease.2 is free to take
				t.Errorf("got %v, want lease.3 alone", got)
			}
		}
		return nil
	}
	if _, err := o.Acquire(t.Context(), opts); !errors.Is(err, ErrInUse) {
		t.Errorf("got %v, want ErrInUse", err)
	}
	wantLost(t, others, false)
	if got := fmt.Sprint(leases(t, o)); got != "[lease.3]" {
		t.Errorf("got %s, want lease.3 alone", got)
	}
}

// TestVanished: the file or the whole overlay is gone.
func TestVanished(t *testing.T) {
	for name, harm := range map[string]func(o *Overlay){
		"file":    func(o *Overlay) { os.Remove(leasePath(o.Dir(), 1)) },
		"overlay": func(o *Overlay) { os.Rename(o.Dir(), o.Dir()+"x") },
	} {
		t.Run(name, func(t *testing.T) {
			o := create(t)
			l := acquire(t, o, quick(nodeA))
			harm(o)
			wantLost(t, l, true)
			if err := l.Release(); err != nil {
				t.Errorf("release: %v", err)
			}
		})
	}
}

// TestBeatFails: an error of the disk isn't the loss of the lease.
func TestBeatFails(t *testing.T) {
	o := create(t)
	var broken atomic.Bool
	opts := quick(nodeA)
	opts.step = func(name string) error {
		if broken.Load() {
			return syscall.EIO
		}
		return nil
	}
	l := acquire(t, o, opts)
	if l.Err() != nil {
		t.Errorf("got %v, want no error", l.Err())
	}
	broken.Store(true)
	for start := time.Now(); l.Err() == nil; time.Sleep(time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatal("no error of a beat")
		}
	}
	wantLost(t, l, false)
	broken.Store(false)
	for start := time.Now(); l.Err() != nil; time.Sleep(time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatal("the error stays")
		}
	}
}

// TestInPlace: what is done where no new file can be made.
func TestInPlace(t *testing.T) {
	o := create(t)
	opts := quick(nodeA)
	opts.Beat = time.Hour
	l := acquire(t, o, opts)
	path := leasePath(o.Dir(), 1)
	cur := l.cur
	cur.Beat, cur.Released = 77, true
	data, err := cur.encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := inPlace(path, data); err != nil {
		t.Fatal(err)
	}
	if got, err := readLease(o.Dir(), 1); err != nil || got.Beat != 77 || !got.Released {
		t.Errorf("got %+v %v, want what was written", got, err)
	}
	if err := inPlace(path, data[:100]); err == nil {
		t.Error("another length: got nil, want an error")
	}
}

func TestCorruptLease(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "half": `{"format":1,"n"`, "no holder": `{"format":1,"n":1,"token":"x"}`} {
		t.Run(name, func(t *testing.T) {
			o := create(t)
			os.WriteFile(leasePath(o.Dir(), 1), []byte(content), 0o600)
			_, err := o.Acquire(t.Context(), quick(nodeA))
			if !errors.Is(err, hpcexec.ErrUnavailable) || !strings.Contains(hpcexec.Hint(err), "lease.1") {
				t.Errorf("got %v, want ErrUnavailable that names the file", err)
			}
		})
	}
}

func TestParseLeaseName(t *testing.T) {
	for name, want := range map[string]int{
		"lease.1": 1, "lease.42": 42, "lease.0": 0, "lease.-1": 0, "lease.01": 0, "lease.+1": 0, "lease.1x": 0, "lease.": 0, "x.1": 0,
		".tmp.abc.lease.1": 0, "lease.99999999999999999999": 0,
	} {
		n, ok := parseLeaseName(name)
		if ok != (want > 0) || ok && n != want {
			t.Errorf("%q: got %d %v, want %d", name, n, ok, want)
		}
	}
}
