package session

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hpcexec/hpcexec"
)

// Options say what a session is made of. They are remembered: a later use of
// the session needs none of them, and one that differs is refused.
type Options struct {
	Place string `json:"place"`           // "local", "ssh:[USER@]HOST[:PORT]" or "slurm"
	Image string `json:"image,omitempty"` // absolute path of a SIF or a sandbox; empty: bare

	Binds    []Bind `json:"binds,omitempty"`
	Fakeroot bool   `json:"fakeroot,omitempty"`
	GPUMode  string `json:"gpu_mode,omitempty"` // "nv", "rocm", "none"; empty: found out
	Net      string `json:"net,omitempty"`      // "none"; empty: the host's
	Overlay  string `json:"overlay,omitempty"`  // "dir"; empty: "dir" with an image

	Idle Duration `json:"idle,omitempty"` // 0: DefaultIdle; negative: never

	// Of an allocation; empty stands for the site's default.
	GPUs        string   `json:"gpus,omitempty"` // "[TYPE:]N"
	CPUs        int      `json:"cpus,omitempty"`
	Mem         string   `json:"mem,omitempty"` // as sbatch --mem takes it
	Nodes       int      `json:"nodes,omitempty"`
	Partition   string   `json:"partition,omitempty"`
	Time        Duration `json:"time,omitempty"`
	Account     string   `json:"account,omitempty"`
	QOS         string   `json:"qos,omitempty"`
	Constraint  string   `json:"constraint,omitempty"`
	Reservation string   `json:"reservation,omitempty"`
	SlurmOpts   []string `json:"slurm_opts,omitempty"` // verbatim options of sbatch
}

// DefaultIdle is how long a session without a command is kept.
const DefaultIdle = 30 * time.Minute

// A Bind is a host path that is seen in the container.
type Bind struct {
	Src string `json:"src"`
	Dst string `json:"dst"`
	RO  bool   `json:"ro,omitempty"`
}

// ParseBind reads SRC[:DST][:ro]. SRC must be absolute; DST is SRC if left out.
func ParseBind(s string) (Bind, error) {
	bad := func(why string) (Bind, error) {
		return Bind{}, hpcexec.Errorf(hpcexec.ErrInvalid, "bind %q: %s", s, why).
			WithHint("write SRC[:DST][:ro] with absolute paths")
	}
	parts := strings.Split(s, ":")
	b := Bind{}
	if n := len(parts); n > 1 && (parts[n-1] == "ro" || parts[n-1] == "rw") {
		b.RO = parts[n-1] == "ro"
		parts = parts[:n-1]
	}
	switch len(parts) {
	case 1:
		b.Src, b.Dst = parts[0], parts[0]
	case 2:
		b.Src, b.Dst = parts[0], parts[1]
	default:
		return bad("too many colons")
	}
	if !strings.HasPrefix(b.Src, "/") || !strings.HasPrefix(b.Dst, "/") {
		return bad("a path is not absolute")
	}
	return b, nil
}

// Duration is a time.Duration that is text such as "30m0s" in JSON.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON writes the duration as Go writes it.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads what MarshalJSON wrote.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	v, err := time.ParseDuration(s)
	*d = Duration(v)
	return err
}

// isName: [a-z0-9][a-z0-9._-]{0,62}, written out since it is on the path of
// every command.
func isName(s string) bool {
	if s == "" || len(s) > 63 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// CheckName says whether a session may have a name.
func CheckName(name string) error {
	if !isName(name) {
		return hpcexec.Errorf(hpcexec.ErrInvalid, "session name %q is not allowed", name).
			WithHint("use 1 to 63 small letters, digits, '.', '_' and '-', starting with a letter or digit")
	}
	return nil
}

// Merge lays the options given now over those of the session. An option that
// was given and differs is an error that names each: it is never ignored.
func (r *Record) Merge(given Options) (Options, error) {
	var differ []string
	have, want := reflect.ValueOf(r.Options), reflect.ValueOf(given)
	for i := range have.NumField() {
		h, w := have.Field(i), want.Field(i)
		if w.IsZero() || w.Kind() == reflect.Slice && w.Len() == 0 {
			continue
		}
		if !reflect.DeepEqual(h.Interface(), w.Interface()) {
			name, _, _ := strings.Cut(have.Type().Field(i).Tag.Get("json"), ",")
			differ = append(differ, fmt.Sprintf("%s is %v, not %v", name, show(h), show(w)))
		}
	}
	if differ != nil {
		slices.Sort(differ)
		return r.Options, hpcexec.Errorf(hpcexec.ErrInvalid, "session %s has other options: %s", r.Name, strings.Join(differ, "; ")).
			WithHint("leave the option out, change it with `hpcexec session set %s`, or use another session name", r.Name)
	}
	return r.Options, nil
}

func show(v reflect.Value) any {
	if v.IsZero() {
		return "not set"
	}
	return v.Interface()
}

// overlaid is o with those options of next that aren't empty.
func (o Options) overlaid(next Options) Options {
	have, want := reflect.ValueOf(&o).Elem(), reflect.ValueOf(next)
	for i := range have.NumField() {
		if w := want.Field(i); !w.IsZero() {
			have.Field(i).Set(w)
		}
	}
	return o
}
