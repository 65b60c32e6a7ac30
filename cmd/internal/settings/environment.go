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

// notSettings are variables that others read or set: tests, the compose file,
// agents for what they start, and Kubernetes for services that are named like
// us.
var notSettings = regexp.MustCompile(`^PROCFLEET_(CRASH_AT|AGENT_TIMING|REQUIRE|TEST_.*|PROC_HELPER|IMAGE|AGENT_IMAGE|NET|HTTP_PORT_.*|KEY|OP)$` +
	`|_(PORT|PORT_\d+_(TCP|UDP|SCTP)(_.*)?|SERVICE_HOST|SERVICE_PORT(_.*)?)$`)

// Misnamed says of each variable of the environment that is named like a
// setting and is none of any command, which one was probably meant. A program
// that is one role alone does not know what the others have, and tells only
// what resembles a setting of its own.
func (s *Settings) Misnamed() []string {
	var said []string
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		key, ours := strings.CutPrefix(name, variablePrefix)
		flag := strings.ToLower(strings.ReplaceAll(key, "_", "-"))
		switch {
		case !ours || value == "" || notSettings.MatchString(name):
		case slices.Contains(onlyTyped, flag):
			said = append(said, name+" has no effect: --"+flag+" belongs on the command line")
		case known(s.root, flag):
		default:
			if meant := nearest(s.root, flag); meant != "" || !s.alone {
				said = append(said, misnamed(name, meant))
			}
		}
	}
	slices.Sort(said)
	return said
}

func misnamed(name, meant string) string {
	if meant == "" {
		return name + " has no effect: there is no such setting"
	}
	return fmt.Sprintf("%s has no effect: there is no such setting; did you mean %s?", name, Variable(meant))
}
