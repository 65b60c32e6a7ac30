package hostcheck

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/procfleet/procfleet/agent/proc"
)

// agentUnit is the name of the agent's unit in deploy/.
const agentUnit = "procfleet-agent.service"

// unitRule is a requirement on a property of the agent's unit. Every process that the agent
// starts belongs to this unit.
type unitRule struct {
	property string
	safe     []string
	check    string

	consequence string
}

var unitRules = []unitRule{
	{
		"KillMode",
		[]string{"process", "none"},
		KillMode,
		"stopping, restarting or upgrading the agent kills every process that it has started",
	},
	{
		"OOMPolicy",
		[]string{"continue"},
		UnitLimits,
		"when the kernel kills one of its processes for lack of memory, the agent is stopped, and with other settings all of them",
	},
	{"TasksMax", []string{"infinity"}, UnitLimits, "the limit applies to the threads of all its processes together; further ones fail"},
	{"MemoryMax", []string{"infinity"}, UnitLimits, "the limit applies to the memory of all its processes together; the kernel kills one of them"},
	{"NoNewPrivileges", []string{"no"}, UnitSandbox, "its processes cannot use sudo or setuid programs"},
	{"PrivateTmp", []string{"no"}, UnitSandbox, "its processes have a /tmp of their own, which is removed when the agent stops"},
	{"ProtectSystem", []string{"no"}, UnitSandbox, "its processes cannot write to system folders"},
	{"ProtectHome", []string{"no"}, UnitSandbox, "its processes do not see the home folders"},
}

// Unit returns only the findings about the agent's systemd unit. pid is the agent's, or 0 to
// find the unit by name. It runs systemctl if the agent is in a unit.
func Unit(ctx context.Context, pid int) []Finding {
	unit, args := agentUnit, []string{"show", "--property=LoadState"}
	if pid != 0 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			return nil
		}
		var ofUser bool
		if unit, ofUser = unitOf(string(text)); unit == "" {
			return nil
		}
		if ofUser {
			args = append([]string{"--user"}, args...)
		}
	}
	for _, rule := range unitRules {
		args = append(args, "--property="+rule.property)
	}
	text, err := proc.QueryHost(ctx, "systemctl", append(args, "--", unit)...)
	if err != nil {
		return nil // systemd is missing or does not reply
	}
	return findingsOf(unit, text)
}

// unitOf returns the systemd service in cgroups, the text of /proc/PID/cgroup, and whether
// it is a service of a user. It returns "" in a container, where paths begin at the
// container's own group.
func unitOf(cgroups string) (unit string, ofUser bool) {
	for line := range strings.Lines(cgroups) {
		number, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		if number != "0" && controllers != "name=systemd" {
			continue
		}
		for part := range strings.SplitSeq(path, "/") {
			if strings.HasSuffix(part, ".service") {
				ofUser = ofUser || strings.HasPrefix(unit, "user@")
				unit = part
			}
		}
		if unit != "" {
			return unit, ofUser
		}
	}
	return "", false
}

// findingsOf returns the findings in shown, the output of systemctl show.
func findingsOf(unit, shown string) (findings []Finding) {
	values := map[string]string{}
	for line := range strings.Lines(shown) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[name] = value
		}
	}
	if values["LoadState"] != "loaded" {
		return nil
	}
	for _, rule := range unitRules {
		value, known := values[rule.property] // older systemd versions lack some properties
		if !known || slices.Contains(rule.safe, value) {
			continue
		}
		findings = append(findings, Finding{
			Check: rule.check, Consequence: rule.consequence,
			Problem: fmt.Sprintf("%s has %s=%s", unit, rule.property, value),
			Remedy:  fmt.Sprintf("%s=%s in the unit's [Service] section (systemctl edit %s), then restart it", rule.property, rule.safe[0], unit),
		})
	}
	return findings
}
