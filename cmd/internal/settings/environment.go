package settings

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

const variablePrefix = "PROCFLEET_"

// Variable returns the environment variable of a flag: nats-listen is
// PROCFLEET_NATS_LISTEN.
func Variable(flag string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// notSettings matches variables of other users: tests, the compose file, agents for
// their commands, and Kubernetes for services whose names begin with procfleet.
var notSettings = regexp.MustCompile(`^PROCFLEET_(CRASH_AT|AGENT_TIMING|REQUIRE|TEST_.*|PROC_HELPER|IMAGE|AGENT_IMAGE|NET|HTTP_PORT_.*|KEY|OP)$` +
	`|_(PORT|PORT_\d+_(TCP|UDP|SCTP)(_.*)?|SERVICE_HOST|SERVICE_PORT(_.*)?)$`)

// Misnamed returns a warning for each variable with the prefix of settings that is
// the setting of no command, with the nearest name. A program with one role does
// not know the settings of others: it warns only about names like its own.
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
