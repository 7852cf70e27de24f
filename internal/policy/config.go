package policy

import (
	"path/filepath"

	"github.com/hpcexec/hpcexec"
)

// A Config is the user's config.toml.
type Config struct {
	// Defaults are for sessions that are new: one that is there remembers
	// its own options, and what is given on the command line comes first.
	Defaults Defaults `toml:"defaults"`
}

// Defaults are options of exec and session start, named as there.
type Defaults struct {
	Place    string   `toml:"on"`
	Image    string   `toml:"image"`
	Overlay  string   `toml:"overlay"`
	Binds    []string `toml:"bind"` // SRC[:DST][:ro]
	Fakeroot bool     `toml:"fakeroot"`
	Net      string   `toml:"net"`
	Idle     Duration `toml:"idle"`

	// Of an allocation: they count where the place is one.
	GPUs        string   `toml:"gpus"`
	CPUs        int      `toml:"cpus"`
	Mem         string   `toml:"mem"`
	Nodes       int      `toml:"nodes"`
	Partition   string   `toml:"partition"`
	Time        Duration `toml:"time"`
	Account     string   `toml:"account"`
	QOS         string   `toml:"qos"`
	Constraint  string   `toml:"constraint"`
	Reservation string   `toml:"reservation"`
	SlurmOpts   []string `toml:"slurm-opt"`
}

// configKeys is what the error for an unknown key offers.
const configKeys = "the table [defaults] may have on, image, overlay, bind, fakeroot, net, idle, gpus, cpus, mem, " +
	"nodes, partition, time, account, qos, constraint, reservation and slurm-opt"

// ConfigPath is where the config of a user is, from an environment; empty
// without a home.
func ConfigPath(getenv func(string) string) string {
	if dir := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "hpcexec", "config.toml")
	}
	if home := getenv("HOME"); home != "" {
		return filepath.Join(home, ".config", "hpcexec", "config.toml")
	}
	return ""
}

// LoadConfig reads a config. A file that isn't there is an empty one, unless
// required. The error is of kind hpcexec.ErrInvalid and names file and line.
func LoadConfig(path string, required bool) (Config, error) {
	var c Config
	if path == "" {
		return c, nil
	}
	err := decode(path, &c)
	switch {
	case err == nil:
	case missing(err) && !required:
		return Config{}, nil
	case missing(err):
		return Config{}, hpcexec.Errorf(hpcexec.ErrInvalid, "config: %w", err).WithHint("write the path of a file that is there; without --config none is needed")
	default:
		return Config{}, withHint(err, configKeys)
	}
	if c.Defaults.CPUs < 0 || c.Defaults.Nodes < 0 || c.Defaults.Time < 0 {
		return Config{}, hpcexec.Errorf(hpcexec.ErrInvalid, "%s: cpus, nodes and time can't be negative or \"never\"", path)
	}
	return c, nil
}

func withHint(err error, hint string) error {
	if e, ok := err.(*hpcexec.Error); ok {
		return e.WithHint("%s", hint)
	}
	return err
}
