package settings

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

const variablePrefix = "PROCFLEET_"

// Variable returns the environment variable of a flag: PROCFLEET_NATS_LISTEN for
// nats-listen.
func Variable(flag string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// notSettings matches variables that are not settings: those of tests, of the compose
// file, of the commands that agents run, and of Kubernetes for services whose names
// begin with procfleet.
var notSettings = regexp.MustCompile(`^PROCFLEET_(CRASH_AT|AGENT_TIMING|CONTEXTS|REQUIRE|TEST_.*|PROC_HELPER|IMAGE|AGENT_IMAGE|NET|HTTP_PORT_.*|KEY|OP)$` +
	`|_(PORT|PORT_\d+_(TCP|UDP|SCTP)(_.*)?|SERVICE_HOST|SERVICE_PORT(_.*)?)$`)

// Misnamed returns a warning for each environment variable that has the prefix of
// settings but is unknown. The warning suggests the most similar setting. A program
// with a single role warns only if there is one, since it does not know all settings.
func (s *Settings) Misnamed() []string {
	var warnings []string
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		key, ours := strings.CutPrefix(name, variablePrefix)
		flag := strings.ToLower(strings.ReplaceAll(key, "_", "-"))
		switch {
		case !ours || value == "" || notSettings.MatchString(name):
		case slices.Contains(onlyTyped, flag):
			warnings = append(warnings, name+" has no effect: --"+flag+" belongs on the command line")
		case known(s.root, flag):
		default:
			if meant := nearest(s.root, flag); meant != "" || !s.alone {
				warnings = append(warnings, misnamed(name, meant))
			}
		}
	}
	slices.Sort(warnings)
	return warnings
}

func misnamed(name, meant string) string {
	if meant == "" {
		return name + " has no effect: there is no such setting"
	}
	return fmt.Sprintf("%s has no effect: there is no such setting; did you mean %s?", name, Variable(meant))
}
