// Package rundir finds the directory for the sockets of one user on one node.
//
//	$HPCEXEC_HOME/run/HOST-HASH.N.json   pointer, 0600, on the shared home
//	        │                            (HASH: boot, container, view of /tmp)
//	        ▼
//	/tmp/hpcexec-RANDOM/                 0700, ours, no symbolic link,
//	    owner.json  NAME  NAME.lock …    on a local file system
//
// A predictable name in a directory that all may write to could be taken by
// somebody else; the user's runtime directory of XDG differs between ssh, cron
// and batch jobs and vanishes at logout; a socket on NFS serves one node and
// confuses the others. So the name is random and the pointer, which only the
// user can write, says what it is.
//
// Of several pointers the one with the highest N that holds counts. A new one is taken
// with link(2), so of any number of processes that find the directory gone one
// makes the new one and the others use it.
package rundir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	hpcexec "github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/atomicfile"
	"github.com/hpcexec/hpcexec/internal/hostid"
)

const (
	format = 1

	// prefix and the random part are 16 characters together; with the
	// longest base directory, /dev/shm and /var/tmp, a path has 25. See
	// maxDir.
	prefix    = "hpcexec-"
	randomLen = 8

	// ownerFile in the directory says which boot it is of.
	ownerFile = "owner.json"

	// stale is the age at which a pointer of another boot of a host of this
	// name is removed. Two nodes may have the same name, so it isn't at
	// once; the pointer of one that is used is renewed after half of it.
	stale = 7 * 24 * time.Hour

	// touch is how often the directory is marked as used, for the sake of
	// programs that clean /tmp by age.
	touch = time.Hour
)

// pointer is the content of $HPCEXEC_HOME/run/HOST-HASH.N.json, and of
// owner.json in the directory that it names.
type pointer struct {
	Format int       `json:"format"`
	Dir    string    `json:"dir"`
	Home   string    `json:"home"` // whose run directory has the pointer
	ID     hostid.ID `json:"id"`
	Made   time.Time `json:"made"`
}

// Get is the runtime directory of the calling user on this node, for the state
// in home ($HPCEXEC_HOME, which is made if it isn't there). It is found, or
// made, anew at each call, so a caller keeps it for a short time only.
//
// Everybody who calls it with one home on one node gets the same directory, as
// long as they see the same /tmp: a batch job with a private one has its own.
// The directory's path is so short that [SocketPath] never has to give up.
//
// The error is of kind hpcexec.ErrUnavailable.
func Get(home string) (string, error) {
	id, err := hostid.Self()
	if err != nil {
		return "", hpcexec.Errorf(hpcexec.ErrUnavailable, "runtime directory: %w", err)
	}
	f := finder{
		home:  home,
		id:    id,
		bases: []string{"/tmp", "/var/tmp", "/dev/shm"},
		local: localFS,
		now:   time.Now(),
	}
	return f.get()
}

// A finder is one call of Get.
type finder struct {
	home  string
	id    hostid.ID
	bases []string // tried in this order
	local func(dir string) error
	now   time.Time
	step  func(name string) error // see atomicfile; for tests
}

func (f *finder) at(name string) error {
	if f.step == nil {
		return nil
	}
	return f.step(name)
}

func (f *finder) get() (string, error) {
	run := filepath.Join(f.home, "run")
	if err := os.MkdirAll(run, 0o700); err != nil {
		return "", hpcexec.Errorf(hpcexec.ErrUnavailable, "runtime directory: %w", err).
			WithHint("HPCEXEC_HOME must be a directory that you can write to")
	}
	var reasons []error
	for _, base := range f.bases {
		dir, err := f.inBase(run, base)
		if err == nil {
			return dir, nil
		}
		reasons = append(reasons, fmt.Errorf("%s: %w", base, err))
	}
	return "", hpcexec.Errorf(hpcexec.ErrUnavailable, "no place for a runtime directory on this node: %w", errors.Join(reasons...)).
		WithHint("one of %s must be writable and on a local file system", strings.Join(f.bases, ", "))
}

// inBase finds or makes the directory in one base directory.
func (f *finder) inBase(run, base string) (string, error) {
	key, err := f.key(base)
	if err != nil {
		return "", err
	}
	// Each round that doesn't end here saw another process make progress.
	for range 100 {
		list, err := pointers(run, key)
		if err != nil {
			return "", err
		}
		for _, n := range list {
			if dir, ok := f.use(pointerPath(run, key, n), base); ok {
				return dir, nil
			}
		}
		next := 1
		if len(list) > 0 {
			next = list[0] + 1
		}
		dir, err := f.make(run, base, key, next)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		f.sweep(run, base, key, next, dir)
		return dir, nil
	}
	return "", errors.New("other processes keep changing it")
}

// key is HOST-HASH. The hash has the boot, and the identity of the base
// directory: where jobs have a private /tmp, the directory of a login on the
// same node isn't there.
func (f *finder) key(base string) (string, error) {
	info, err := os.Stat(base)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", errors.New("not a directory")
	}
	st := info.Sys().(*syscall.Stat_t)
	if st.Mode&0o002 != 0 && st.Mode&syscall.S_ISVTX == 0 {
		return "", errors.New("all may write to it and it has no sticky bit")
	}
	if st.Uid != 0 && st.Uid != uint32(os.Geteuid()) {
		return "", errors.New("owned by another user")
	}
	if err := f.local(base); err != nil {
		return "", err
	}
	view := hostid.ID{BootID: fmt.Sprintf("%s %s %d %d", f.id.Hash(), base, st.Dev, st.Ino)}
	return clean(f.id.Host) + "-" + view.Hash(), nil
}

// use is the directory that a pointer names, if it holds.
func (f *finder) use(path, base string) (string, bool) {
	info, err := os.Lstat(path)
	if err != nil || !ours(info, 0o600) || !info.Mode().IsRegular() {
		return "", false
	}
	var p pointer
	if err := atomicfile.ReadJSON(path, &p, format); err != nil {
		return "", false
	}
	if !p.ID.Same(f.id) || filepath.Dir(p.Dir) != base || f.check(p.Dir) != nil {
		return "", false
	}
	if f.now.Sub(info.ModTime()) > stale/2 {
		os.Chtimes(path, f.now, f.now)
	}
	if own, err := os.Lstat(filepath.Join(p.Dir, ownerFile)); err == nil && f.now.Sub(own.ModTime()) > touch {
		os.Chtimes(filepath.Join(p.Dir, ownerFile), f.now, f.now)
		os.Chtimes(p.Dir, f.now, f.now)
	}
	return p.Dir, true
}

// check says what is wrong with a directory that was ours.
func (f *finder) check(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || !ours(info, 0o700) {
		return errors.New("not a directory that only its owner can use")
	}
	return f.local(dir)
}

// make makes a directory and the pointer number n to it. The error matches
// fs.ErrExist if another process was faster.
func (f *finder) make(run, base, key string, n int) (_ string, err error) {
	if err := f.at("make dir"); err != nil {
		return "", err
	}
	dir := filepath.Join(base, prefix+strings.ToLower(rand.Text()[:randomLen]))
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return "", errors.New("a random name is taken")
		}
		return "", err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	if err := f.check(dir); err != nil { // a strange umask, a file system with its own mind
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	p := pointer{Format: format, Dir: dir, Home: f.home, ID: f.id, Made: f.now.UTC()}
	if err := f.at("write owner"); err != nil {
		return "", err
	}
	if err := atomicfile.WriteJSON(filepath.Join(dir, ownerFile), p, 0o600); err != nil {
		return "", err
	}
	if err := f.at("write pointer"); err != nil {
		return "", err
	}
	path := pointerPath(run, key, n)
	if err := atomicfile.CreateJSON(path, p, 0o600); err != nil {
		return "", err
	}
	// A process that looked before others took n+1 and removed n may have
	// taken n again: the higher number counts.
	list, err := pointers(run, key)
	if err == nil && (len(list) == 0 || list[0] > n) {
		os.Remove(path)
		err = fs.ErrExist
	}
	return dir, err
}

// sweep removes what earlier boots and lost races left, as far as it is
// certain that nobody uses it.
func (f *finder) sweep(run, base, key string, n int, current string) {
	atomicfile.Sweep(run, time.Hour)
	entries, _ := os.ReadDir(run)
	for _, e := range entries {
		path := filepath.Join(run, e.Name())
		k, m, ok := parsePointer(e.Name())
		switch {
		case !ok:
		case k == key && m < n:
			os.Remove(path)
		case strings.HasPrefix(k, clean(f.id.Host)+"-") && f.old(path):
			os.Remove(path)
		}
	}
	entries, _ = os.ReadDir(base)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			f.sweepDir(filepath.Join(base, e.Name()), current)
		}
	}
}

// sweepDir removes one directory in a base directory if it is left over.
// current is the one that counts.
func (f *finder) sweepDir(dir, current string) {
	if dir == current || f.check(dir) != nil {
		return
	}
	owner := filepath.Join(dir, ownerFile)
	var p pointer
	err := atomicfile.ReadJSON(owner, &p, format)
	switch {
	case err == nil && p.Dir == dir && p.ID.BootID != f.id.BootID:
		// It is on a local file system: its boot was one of this machine.
		os.RemoveAll(dir)
	case err == nil && p.Dir == dir && p.ID.Same(f.id) && p.Home == f.home && f.now.Sub(p.Made) > stale,
		errors.Is(err, fs.ErrNotExist) && f.age(dir) > stale:
		// Made and never pointed to. Sockets in it may be in use by whoever
		// remembers their paths, so it goes only if it has none.
		if entries, err := os.ReadDir(dir); err == nil && (len(entries) == 0 || len(entries) == 1 && entries[0].Name() == ownerFile) {
			os.Remove(owner)
			os.Remove(dir)
		}
	}
}

func (f *finder) age(path string) time.Duration {
	info, err := os.Lstat(path)
	if err != nil {
		return 0
	}
	return f.now.Sub(info.ModTime())
}

// old says whether a pointer is one of another boot that wasn't used for long.
func (f *finder) old(path string) bool {
	if f.age(path) < stale {
		return false
	}
	var p pointer
	err := atomicfile.ReadJSON(path, &p, format)
	return err == nil && !p.ID.Same(f.id)
}

// ours says whether a file is owned by this user and has no permissions but
// those of perm.
func ours(info fs.FileInfo, perm fs.FileMode) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == uint32(os.Geteuid()) && info.Mode().Perm() == perm
}

func pointerPath(run, key string, n int) string {
	return filepath.Join(run, key+"."+strconv.Itoa(n)+".json")
}

// parsePointer takes the name of a pointer apart.
func parsePointer(name string) (key string, n int, ok bool) {
	name, ok = strings.CutSuffix(name, ".json")
	i := strings.LastIndexByte(name, '.')
	if !ok || i < 0 || atomicfile.IsTemp(name) {
		return "", 0, false
	}
	n, err := strconv.Atoi(name[i+1:])
	return name[:i], n, err == nil && n > 0
}

// pointers are the numbers of the pointers of one key, highest first.
func pointers(run, key string) ([]int, error) {
	entries, err := os.ReadDir(run)
	if err != nil {
		return nil, err
	}
	var list []int
	for _, e := range entries {
		if k, n, ok := parsePointer(e.Name()); ok && k == key {
			list = append(list, n)
		}
	}
	sort.Sort(sort.Reverse(sort.IntSlice(list)))
	return list, nil
}

// clean makes a host name fit for a file name.
func clean(host string) string {
	host = strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, host)
	return host[:min(len(host), 64)]
}
