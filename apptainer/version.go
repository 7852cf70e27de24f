package apptainer

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// A Flavor says which program a runtime is. It is decided by what the program
// says of itself: "singularity" is Apptainer on many systems.
type Flavor string

const (
	Apptainer      Flavor = "apptainer"
	SingularityCE  Flavor = "singularity-ce"
	SingularityPro Flavor = "singularity-pro"
	// Singularity is one from before the projects parted (3.x).
	Singularity Flavor = "singularity"
)

// envPrefix is the prefix of the variables that the flavour itself reads.
func (f Flavor) envPrefix() string {
	if f == Apptainer {
		return "APPTAINER"
	}
	return "SINGULARITY"
}

// A Version is the number of a release: 1.4.5.
type Version struct{ Major, Minor, Patch int }

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// AtLeast says whether v is not older than the given release.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// MarshalText writes the number, so that it reads well in JSON.
func (v Version) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (v *Version) UnmarshalText(b []byte) error {
	m := versionNumber().FindStringSubmatch(string(b))
	if m == nil {
		return fmt.Errorf("version %q is not of the form 1.2.3", b)
	}
	*v = versionOf(m[1:])
	return nil
}

var (
	// "apptainer version 1.4.5-1.el9", "singularity-ce version 4.5.0+12-gabc".
	versionLine = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?m)^([a-z][a-z-]*) version v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?`)
	})
	versionNumber = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?`) })
)

// ParseVersion parses what `apptainer --version` prints. Suffixes of
// distributions are ignored, as are lines of noise before.
func ParseVersion(text string) (Flavor, Version, error) {
	m := versionLine().FindStringSubmatch(text)
	if m == nil {
		return "", Version{}, fmt.Errorf("no version in %q", clip(text, 80))
	}
	switch f := Flavor(m[1]); f {
	case Apptainer, SingularityCE, SingularityPro, Singularity:
		return f, versionOf(m[2:]), nil
	}
	return "", Version{}, fmt.Errorf("%q is neither apptainer nor singularity", m[1])
}

func versionOf(s []string) Version {
	n := func(i int) int { v, _ := strconv.Atoi(s[i]); return v }
	return Version{n(0), n(1), n(2)}
}

// buildConfig is what we use of `apptainer buildcfg`.
type buildConfig struct {
	setUID   bool   // installed with a setuid starter
	confFile string // the site's apptainer.conf
}

// parseBuildConfig parses the KEY=VALUE lines of `apptainer buildcfg`.
func parseBuildConfig(text string) buildConfig {
	var c buildConfig
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "APPTAINER_SUID_INSTALL", "SINGULARITY_SUID_INSTALL":
			c.setUID = value == "1"
		case "APPTAINER_CONF_FILE", "SINGULARITY_CONF_FILE":
			c.confFile = value
		}
	}
	return c
}

// setUIDAllowed reads "allow setuid" of an apptainer.conf; yes by default.
func setUIDAllowed(conf string) bool {
	allowed := true
	for line := range strings.Lines(conf) {
		key, value, ok := strings.Cut(line, "=")
		if ok && strings.TrimSpace(key) == "allow setuid" {
			allowed = strings.TrimSpace(value) != "no"
		}
	}
	return allowed
}

// clip shortens text of others for an error.
func clip(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "") + "…"
	}
	return s
}
