package snapshots

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/atomicfile"
	"github.com/hpcexec/hpcexec/internal/hostid"
)

// CreateOptions say what a snapshot is made of, and what is recorded of it.
type CreateOptions struct {
	// Upper is the upper directory of the overlay, an absolute path.
	Upper string

	// Layers are the ids of the snapshots beneath the overlay, low to high;
	// see [Snapshot.Chain].
	Layers []string

	Session string
	Message string

	// Origin says how a session like this one is made. It is the caller's:
	// any JSON, kept as it is.
	Origin json.RawMessage
	Image  Image

	// Progress, when set, is called now and then, and at last, from the
	// goroutine of Create and one other, never at once.
	Progress func(Progress)
}

// Progress is how far Create has come.
type Progress struct {
	Phase string // "pack", "verify"
	Bytes int64  // of the snapshot's file, written or read
}

// Create makes a snapshot of an upper directory.
//
// While nobody writes to the directory the snapshot is what it holds. With a
// live session it is not one moment's state: mksquashfs lists the directory
// first and then reads the files, so each file is as it was at some time
// between, a file that is being written may be torn, and one that vanishes
// meanwhile makes it begin anew, three times at most. Who wants one moment's
// state pauses the session's processes (not the FUSE programs that serve
// them) and syncs the file system inside first.
//
// A file that can't be read fails the snapshot; it is never left out. Files and
// directories of this user that their own permissions close (mode 000) are read
// all the same where user namespaces are allowed.
//
// Errors of the store's disk match ErrFull, and ErrNotFound a layer that isn't
// there.
func (s *Store) Create(ctx context.Context, opts CreateOptions) (Snapshot, error) {
	if !filepath.IsAbs(opts.Upper) {
		return Snapshot{}, hpcexec.Errorf(hpcexec.ErrInvalid, "snapshot of %q: the path is not absolute", opts.Upper)
	}
	if info, err := os.Lstat(opts.Upper); err != nil || !info.IsDir() {
		return Snapshot{}, hpcexec.Errorf(hpcexec.ErrInvalid, "snapshot of %s: not a directory", opts.Upper)
	}
	if len(opts.Layers) >= MaxLayers {
		return Snapshot{}, hpcexec.Errorf(hpcexec.ErrInvalid, "the snapshot would be the %dth on top of each other, %d is the most", len(opts.Layers)+1, MaxLayers).
			WithHint("start a new session and copy what is needed")
	}
	if err := s.present(opts.Layers); err != nil {
		return Snapshot{}, err
	}
	c := creator{s: s, opts: opts, id: newID()}
	snap, err := c.create(ctx)
	if err != nil {
		return Snapshot{}, storeError(s.root, err)
	}
	return snap, nil
}

// present is an error unless all the snapshots are there.
func (s *Store) present(ids []string) error {
	for _, id := range ids {
		if !validID(id) {
			return notFound(id)
		}
		if _, err := s.Get(id); err != nil {
			return err
		}
	}
	return nil
}

// A creator is one call of Create.
type creator struct {
	s    *Store
	opts CreateOptions
	id   string
}

func newID() string { return strings.ToLower(rand.Text()[:idLen]) }

func (c *creator) create(ctx context.Context) (_ Snapshot, err error) {
	step := c.s.opts.step
	tmp, err := c.tempName()
	if err != nil {
		return Snapshot{}, err
	}
	defer func() {
		if err != nil {
			os.Remove(tmp)
		}
	}()
	if err := step.at("pack"); err != nil {
		return Snapshot{}, err
	}
	snap, err := c.pack(ctx, tmp)
	if err != nil {
		return Snapshot{}, err
	}
	if err := step.at("sync"); err != nil {
		return Snapshot{}, err
	}
	if err := c.seal(ctx, tmp, &snap); err != nil {
		return Snapshot{}, err
	}
	if err := step.at("rename"); err != nil {
		return Snapshot{}, err
	}
	data := c.s.data(c.id)
	if err := os.Rename(tmp, data); err != nil {
		return Snapshot{}, err
	}
	defer func() {
		if err != nil {
			os.Remove(c.s.manifest(c.id))
			os.Remove(data)
		}
	}()
	if err := atomicfile.SyncDir(c.s.root); err != nil {
		return Snapshot{}, err
	}
	if err := step.at("manifest"); err != nil {
		return Snapshot{}, err
	}
	if err := atomicfile.CreateJSON(c.s.manifest(c.id), manifest{format, snap}, 0o600); err != nil {
		return Snapshot{}, err
	}
	if err := step.at("look again"); err != nil {
		return Snapshot{}, err
	}
	// From here on Remove sees that the layers are needed. It may have begun
	// before: then one of them isn't there any more.
	if err := c.s.present(c.opts.Layers); err != nil {
		return Snapshot{}, fmt.Errorf("removed meanwhile: %w", err)
	}
	return snap, nil
}

// tempName is .new.ID.HOST.PID-START.sqfs: by it Sweep knows whether the one
// who makes it is alive.
func (c *creator) tempName() (string, error) {
	host, err := hostid.Self()
	if err != nil {
		return "", err
	}
	proc, err := hostid.SelfProc()
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("%s%s.%s.%d-%d%s", newPrefix, c.id, host.Hash(), proc.PID, proc.Start, dataSuffix)
	return filepath.Join(c.s.root, name), nil
}

// attempts is how often a directory is packed that changes meanwhile.
const attempts = 3

// pack makes the squashfs file.
func (c *creator) pack(ctx context.Context, tmp string) (Snapshot, error) {
	tool, err := c.s.find("mksquashfs")
	if err != nil {
		return Snapshot{}, err
	}
	stop := c.watch(tmp)
	defer stop()
	comp, asOwner := "zstd", false
	for try := 1; ; {
		r := runner{path: tool, args: packArgs(c.opts.Upper, tmp, comp), asOwner: asOwner}
		out, err := r.run(ctx)
		if err == nil {
			st := parseStats(out)
			return Snapshot{
				ID: c.id, Created: time.Now().UTC().Round(time.Millisecond), Layers: c.opts.Layers,
				Session: c.opts.Session, Message: c.opts.Message, Image: c.opts.Image, Origin: c.opts.Origin,
				User: userName(), Host: hostName(),
				Unpacked: st.unpacked, Inodes: st.inodes,
				Tool: c.s.version(ctx, tool), Compression: comp,
			}, nil
		}
		os.Remove(tmp)
		if ctx.Err() != nil {
			return Snapshot{}, context.Cause(ctx)
		}
		failed := &toolError{tool: "mksquashfs", output: out, err: err}
		closed, vanished := c.examine()
		switch {
		case asOwner && noNamespace(err):
			return Snapshot{}, unreadable(closed, "user namespaces, by which they could be read, are not allowed on this node")
		case failed.unsupported(comp) && comp == "zstd":
			comp = "gzip"
		case len(closed) > 0 && !asOwner:
			asOwner = true
		case len(closed) > 0 && !vanished && try >= attempts:
			return Snapshot{}, unreadable(closed, lastLines(out, 1))
		case errors.Is(failed, fs.ErrNotExist), strings.Contains(out, "FATAL"), try >= attempts:
			return Snapshot{}, failed
		default:
			try++ // a file vanished, most likely
		}
	}
}

// packArgs are the arguments of mksquashfs.
func packArgs(upper, dst, comp string) []string {
	level := []string{"-Xcompression-level", "1"}
	return append([]string{
		upper, dst, "-noappend", "-no-progress", "-no-recovery",
		"-exit-on-error", // an unreadable file would be left out or empty else
		"-xattrs",
		// The defaults are all processors and a quarter of the node's
		// memory: too much for a job that has a part of the node.
		"-processors", strconv.Itoa(min(runtime.GOMAXPROCS(0), 16)), "-mem", "512M",
		"-comp", comp,
	}, level...)
}

// watch reports the size of the growing file until stop is called.
func (c *creator) watch(tmp string) (stop func()) {
	if c.opts.Progress == nil {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-quit:
				return
			case <-t.C:
				if info, err := os.Lstat(tmp); err == nil {
					c.opts.Progress(Progress{Phase: "pack", Bytes: info.Size()})
				}
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// seal makes the file durable and immutable, and takes its hash.
func (c *creator) seal(ctx context.Context, tmp string, snap *Snapshot) error {
	f, err := os.Open(tmp)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Chmod(0o400); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	snap.SHA256, snap.Size, err = hash(ctx, f, c.opts.Progress)
	if err != nil {
		return err
	}
	// Without a manifest its age counts, see Sweep: it begins now.
	now := time.Now()
	return os.Chtimes(tmp, now, now)
}

// hash is the SHA-256 of what is left to read of f.
func hash(ctx context.Context, f io.Reader, progress func(Progress)) (string, int64, error) {
	h := sha256.New()
	buf := make([]byte, 1<<20)
	var n int64
	for {
		if ctx.Err() != nil {
			return "", 0, context.Cause(ctx)
		}
		m, err := f.Read(buf)
		h.Write(buf[:m])
		n += int64(m)
		if err != nil && !errors.Is(err, io.EOF) {
			return "", 0, err
		}
		done := err != nil
		if progress != nil && (done || n%(64<<20) < int64(m)) {
			progress(Progress{Phase: "verify", Bytes: n})
		}
		if done {
			return hex.EncodeToString(h.Sum(nil)), n, nil
		}
	}
}

// examine looks for what mksquashfs may have stumbled over: files and
// directories that can't be read, and ones that come and go.
func (c *creator) examine() (closed []string, vanished bool) {
	filepath.WalkDir(c.opts.Upper, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			vanished = true
			return nil
		case errors.Is(err, fs.ErrPermission):
			closed = append(closed, path)
			return fs.SkipDir
		case err != nil:
			return nil
		}
		if d.Type().IsRegular() && !readable(path) {
			closed = append(closed, path)
		}
		if len(closed) >= 1000 {
			return fs.SkipAll
		}
		return nil
	})
	return closed, vanished
}

func unreadable(paths []string, why string) error {
	return hpcexec.Errorf(hpcexec.ErrInvalid, "%d files or directories can't be read, the first is %q: %s", len(paths), paths[0], why).
		WithHint("a snapshot leaves nothing out: change their permissions inside the session, or remove them")
}

// userName is the user's name, or his number where it isn't known without the
// site's directory service.
func userName() string {
	if u, err := user.LookupId(strconv.Itoa(os.Geteuid())); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Geteuid())
}

func hostName() string {
	name, _ := os.Hostname()
	return name
}
