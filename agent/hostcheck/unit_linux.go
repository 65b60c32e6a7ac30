package hostcheck

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/procfleet/procfleet/agent/proc"
)

// agentUnit is the name that deploy/ gives the agent's unit.
const agentUnit = "procfleet-agent.service"

// unitRule is what a property of the agent's unit should be, because every
// process that the agent starts is part of the unit.
type unitRule struct {
	property string
	safe     []string
	check    string
	why      string
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
		"when the kernel ends one of its processes for want of memory, the agent is stopped, and with other settings all of them",
	},
	{"TasksMax", []string{"infinity"}, UnitLimits, "all its processes together may have no more threads than that; further ones fail"},
	{"MemoryMax", []string{"infinity"}, UnitLimits, "all its processes together may have no more memory than that; the kernel ends one of them"},
	{"NoNewPrivileges", []string{"no"}, UnitSandbox, "its processes can never use sudo or setuid programs"},
	{"PrivateTmp", []string{"no"}, UnitSandbox, "its processes see another /tmp than everybody else, and lose it when the agent stops"},
	{"ProtectSystem", []string{"no"}, UnitSandbox, "its processes cannot write where others can"},
	{"ProtectHome", []string{"no"}, UnitSandbox, "its processes do not see the home folders"},
}

// checkUnit looks at the systemd unit that the agent runs in, or would.
func checkUnit(ctx context.Context, pid int) []Finding {
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
	text, err := proc.AskHost(ctx, "systemctl", append(args, "--", unit)...)
	if err != nil {
		return nil // no systemd here, or none that answers
	}
	return judgeUnit(unit, text)
}

// unitOf reads the systemd service, and whether it is one of a user, from
// /proc/PID/cgroup. A container has none: its paths begin at itself.
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

// judgeUnit reads what systemctl show says.
func judgeUnit(unit, shown string) (findings []Finding) {
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
		value, known := values[rule.property] // older versions do not know all
		if !known || slices.Contains(rule.safe, value) {
			continue
		}
		findings = append(findings, Finding{
			Check: rule.check,
			What:  fmt.Sprintf("%s has %s=%s", unit, rule.property, value),
			Why:   rule.why,
			Do:    fmt.Sprintf("%s=%s in the unit's [Service] section (systemctl edit %s), then restart it", rule.property, rule.safe[0], unit),
		})
	}
	return findings
}
