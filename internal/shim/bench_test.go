package shim

import (
	"io"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hpcexec/hpcexec/internal/wire"
)

// BenchmarkForkExec is what a command costs at least.
func BenchmarkForkExec(b *testing.B) {
	for range b.N {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkShimTrue is the same through a shim in a process of its own. Like
// sshmux it has the next channel opened while a command runs.
func BenchmarkShimTrue(b *testing.B) {
	c := dial(b, spawn(b).socket)
	channels := make(chan benchChannel)
	go func() {
		defer close(channels)
		for range b.N {
			channels <- c.benchChannel(b)
		}
	}()
	for ch := range channels {
		ch.run(b)
	}
}

type benchChannel struct {
	ssh.Channel
	reqs <-chan *ssh.Request
}

func (c *client) benchChannel(b *testing.B) benchChannel {
	ch, reqs, err := c.OpenChannel("session", nil)
	if err != nil {
		b.Error(err)
	}
	return benchChannel{ch, reqs}
}

// run runs `true` as a client does that wants to be quick.
func (ch benchChannel) run(b *testing.B) {
	if err := wire.SendExec(ch, &wire.Exec{Args: []string{"/bin/true"}, DropStdout: true, DropStderr: true}); err != nil {
		b.Error(err)
	}
	var req *ssh.Request
	for req = range ch.reqs {
		if x, err := wire.ParseExit(req.Payload); err != nil || x.Code != 0 || x.ErrKind != "" {
			b.Errorf("got %+v, %v, want exit 0", x, err)
		}
	}
}

// BenchmarkThousandForkExec is a thousand commands at once.
func BenchmarkThousandForkExec(b *testing.B) {
	for range b.N {
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if err := exec.Command("/bin/true").Run(); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

// BenchmarkThousandShim is a thousand at once over one connection.
func BenchmarkThousandShim(b *testing.B) {
	c := dial(b, spawn(b).socket)
	for range b.N {
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() { c.benchChannel(b).run(b) })
		}
		wg.Wait()
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// BenchmarkShimStdout is the output of one command through a shim.
func BenchmarkShimStdout(b *testing.B) {
	const piece = 1 << 20
	c := dial(b, spawn(b).socket)
	ch := c.benchChannel(b)
	go ssh.DiscardRequests(ch.reqs)
	b.SetBytes(piece)
	if err := wire.SendExec(ch, &wire.Exec{Args: sh("head -c $1 /dev/zero", strconv.Itoa(b.N*piece))}); err != nil {
		b.Fatal(err)
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, ch, make([]byte, 256<<10))
	if err != nil || n != int64(b.N)*piece {
		b.Errorf("got %d bytes, %v, want %d", n, err, b.N*piece)
	}
}
