package apptainer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hpcexec/hpcexec"
)

// TestClassify: testdata/fatal has what Apptainer 1.4.5 (ap-), SingularityCE
// 4.5.0 (ce-) and its setuid installation (cs-) print when they fail.
func TestClassify(t *testing.T) {
	inv, un := hpcexec.ErrInvalid, hpcexec.ErrUnavailable
	tests := map[string]struct {
		kind, cause error
		text        string
	}{
		"ap-missing-image":        {inv, nil, "image /data/none.sif: no such file"},
		"ap-junk-image":           {inv, nil, "not of a format"},
		"ap-truncated-image":      {inv, nil, "image is damaged"},
		"ap-unreadable-image":     {inv, nil, "/data/unread.sif is not readable"},
		"ap-empty-sandbox":        {inv, nil, "no usable root directory"},
		"ap-missing-overlay":      {inv, nil, "overlay /data/noov: no such file"},
		"ap-junk-overlay":         {inv, nil, "not of a format"},
		"ap-unwritable-upper":     {inv, nil, "upper directory isn't writable"},
		"ap-unreadable-overlay":   {inv, nil, "/data/xov is not readable"},
		"ap-two-writable":         {inv, nil, "more than one writable overlay"},
		"ap-bad-tmpfs":            {inv, nil, "exclude each other"},
		"ap-missing-bind":         {inv, nil, "bind mount: /none: no such file"},
		"ap-missing-workdir":      {inv, nil, "work directory /data/nowd is missing"},
		"ap-bad-name":             {inv, nil, "not a valid instance name"},
		"ap-bad-network":          {inv, nil, "network \"none\""},
		"ap-memory":               {un, nil, "no resource limits"},
		"ap-unknown-flag":         {un, nil, "option --nosuchflag"},
		"ap-ext3-in-use":          {un, ErrOverlayInUse, "overlay /data/e.img is in use"},
		"ap-truncated-ext3":       {inv, nil, "overlay image is damaged"},
		"ap-exists":               {inv, ErrExists, "hpcexec-x1 runs on this node"},
		"ap-exec-nosuch":          {un, nil, "nosuch not found in the container"},
		"ap-exec-_etc_passwd":     {un, nil, "permission denied"},
		"ap-exec-_tmp":            {un, nil, "is a directory"},
		"ap-exec-missing-pwd":     {un, nil, "chdir /nowhere"},
		"ap-exec-not-found":       {un, ErrNotFound, "no instance of this name"},
		"ap-exec-just-ended":      {un, ErrNotFound, "has just ended"},
		"ap-exec-helper-dead":     {un, nil, "not found in the container"},
		"ap-exec-helper-dead-abs": {un, nil, "serves the container's files has died"},
		"ap-few-files":            {un, errTransient, "short of processes, files"},
		"ap-too-big":              {inv, nil, "too large for the runtime"},
		"ap-no-userns":            {un, ErrNoUserNamespace, "user namespaces are not allowed"},
		"ap-max-userns":           {un, ErrNoUserNamespace, "user namespaces are not allowed"},
		"ap-no-fuse":              {un, nil, "/dev/fuse can't be opened"},
		"ap-dbus":                 {un, errTransient, "D-Bus refuses connections"},
		"ap-needs-bus":            {un, errNeedsBus, "insists on a D-Bus session"},
		"ap-log-files":            {un, nil, "quota exceeded"},
		"ce-exec-not-found":       {un, ErrNotFound, "no instance of this name"},
		"ce-missing-image":        {inv, nil, "image /data/none.sif: no such file"},
		"ce-other-arch":           {inv, nil, "built for arm64, this machine is amd64"},
		"ce-no-loop":              {un, nil, "no loop devices"},
		"ce-fakeroot":             {inv, nil, "no subuid range for user ada"},
		"ce-memory":               {un, nil, "no resource limits"},
		"cs-dir-overlay":          {un, nil, "takes no directory as an overlay"},
	}
	files, err := filepath.Glob("testdata/fatal/*.txt")
	if err != nil || len(files) != len(tests) {
		t.Errorf("%d files in testdata/fatal, %d tests: %v", len(files), len(tests), err)
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile("testdata/fatal/" + name + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			e := classify("start instance hpcexec-x", string(b))
			if !errors.Is(e, tc.kind) || tc.cause != nil && !errors.Is(e, tc.cause) {
				t.Errorf("got %v of kind %s, want %v and %v", e, hpcexec.KindName(e), tc.kind, tc.cause)
			}
			if tc.cause == nil && e.Err != nil {
				t.Errorf("got cause %v, want none", e.Err)
			}
			if !strings.Contains(e.Error(), tc.text) || !strings.HasPrefix(e.Error(), "start instance hpcexec-x: ") {
				t.Errorf("got %q, want %q in it", e.Error(), tc.text)
			}
			if hpcexec.Hint(e) == "" || strings.ContainsAny(tailOf(e), "123") {
				t.Errorf("hint %q or text %q: empty, or with a group that wasn't filled in", hpcexec.Hint(e), e.Error())
			}
		})
	}
}

// tailOf has what follows each '$'.
func tailOf(e *hpcexec.Error) string {
	var b strings.Builder
	for _, part := range strings.Split(e.Error()+hpcexec.Hint(e), "$")[1:] {
		b.WriteString((part + " ")[:1])
	}
	return b.String()
}

func TestClassifyUnknown(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"silent", "", "said nothing"},
		{"new message", "INFO: x\nFATAL:   the moon is full\nFATAL:   while executing starter: exit status 255\n", "the moon is full"},
		{"no level", "segmentation fault\n", "segmentation fault"},
		{"cleanup is an echo", "ERROR:   container cleanup failed: no instance found with name x\nFATAL:   the moon is full\n", "the moon is full"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := classify("x", tc.text)
			if !errors.Is(e, hpcexec.ErrUnavailable) || errors.Is(e, ErrNotFound) || !strings.Contains(e.Error(), tc.want) {
				t.Errorf("got %v, want ErrUnavailable with %q", e, tc.want)
			}
		})
	}
}

func FuzzClassify(f *testing.F) {
	files, _ := filepath.Glob("testdata/fatal/*.txt")
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	if len(files) == 0 {
		f.Fatal("the corpus is empty")
	}
	f.Fuzz(func(t *testing.T, text string) {
		e := classify("what", text)
		if hpcexec.KindName(e) == "internal" || !strings.HasPrefix(e.Error(), "what: ") || e.Hint == "" {
			t.Errorf("got %v, want a kind, what was tried, and a hint", e)
		}
	})
}
