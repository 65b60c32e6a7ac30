package specimport

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/unit"

	"github.com/procfleet/procfleet"
)

// unitDirs are the directories in which systemd searches units, by precedence.
var unitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// Systemd converts a service unit, given by its file or by its name.
func Systemd(nameOrFile, namespace string) (*Spec, error) {
	file, name, err := findUnit(nameOrFile)
	if err != nil {
		return nil, err
	}
	in, err := os.Open(file) //nolint:gosec // a unit that the user names
	if err != nil {
		return nil, err
	}
	defer in.Close()
	options, err := unit.DeserializeOptions(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	s := &service{name: name, values: map[string][]string{}}
	for _, o := range options {
		if o.Section == "Service" {
			if o.Value == "" { // an empty assignment resets the list
				s.values[o.Name] = nil
				continue
			}
			s.values[o.Name] = append(s.values[o.Name], o.Value)
		}
	}
	spec, err := s.spec(namespace)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return spec, nil
}

// findUnit returns the file of a unit, and its name with the instance.
func findUnit(nameOrFile string) (file, name string, err error) {
	if strings.Contains(nameOrFile, "/") {
		return nameOrFile, filepath.Base(nameOrFile), nil
	}
	name = nameOrFile
	if !strings.Contains(name, ".") {
		name += ".service"
	}
	candidates := []string{name}
	if prefix, rest, found := strings.Cut(name, "@"); found {
		_, suffix, _ := strings.Cut(rest, ".")
		candidates = append(candidates, prefix+"@."+suffix)
	}
	for _, candidate := range candidates {
		for _, dir := range unitDirs {
			file := filepath.Join(dir, candidate)
			if _, err := os.Stat(file); err == nil {
				return file, name, nil
			} else if !errors.Is(err, fs.ErrNotExist) {
				return "", "", err
			}
		}
	}
	return "", "", fmt.Errorf("no unit %s in %s", name, strings.Join(unitDirs, ", "))
}

// service is the section Service of a unit.
type service struct {
	name   string
	values map[string][]string
	err    error
}

// text returns the last value of a setting, with its specifiers expanded.
func (u *service) text(key string) string {
	all := u.values[key]
	if len(all) == 0 {
		return ""
	}
	return u.expand(key, all[len(all)-1])
}

var specifier = regexp.MustCompile(`%.`)

func (u *service) expand(key, text string) string {
	base := strings.TrimSuffix(u.name, filepath.Ext(u.name))
	prefix, instance, _ := strings.Cut(base, "@")
	values := map[string]string{"%%": "%", "%n": u.name, "%N": base, "%p": prefix, "%i": instance, "%I": strings.ReplaceAll(instance, "-", "/"), "%t": "/run", "%S": "/var/lib", "%L": "/var/log"}
	return specifier.ReplaceAllStringFunc(text, func(match string) string {
		value, known := values[match]
		if !known {
			u.err = errors.Join(u.err, fmt.Errorf("%s: specifier %s has no value here", key, match))
		}
		return value
	})
}

// execPrefixes are the prefixes of commands, which change how systemd runs them.
const execPrefixes = "-@:+!|"

func (u *service) spec(namespace string) (*Spec, error) {
	s := newSpec(namespace, strings.TrimSuffix(u.name, filepath.Ext(u.name)))
	commands := u.values["ExecStart"]
	if len(commands) != 1 {
		return nil, fmt.Errorf("ExecStart has %d commands, a process needs one", len(commands))
	}
	command := strings.TrimLeft(u.expand("ExecStart", commands[0]), execPrefixes)
	kind := u.text("Type")
	switch kind {
	case "forking":
		s.ProcName, s.Control.Start, s.PidPath = path.Base(firstWord(command)), command, u.text("PIDFile")
		if s.PidPath == "" {
			s.warn("Type forking without PIDFile: the agent recognizes the process by its environment")
		}
	case "oneshot":
		return nil, errors.New("type oneshot is no process that runs")
	default:
		s.background(command, strings.TrimPrefix(u.text("WorkingDirectory"), "-"), "")
		s.warn("output is discarded; systemd writes it to the journal")
	}
	s.Account = u.text("User")
	s.Alive.Type = procfleet.Manual
	if restart := u.text("Restart"); restart != "" && restart != "no" {
		s.Alive.Type = procfleet.Resident
	}
	u.duration("RestartSec", func(d time.Duration) { s.Alive.StartInterval = procfleet.Duration(max(d, time.Second)) })
	u.duration("TimeoutStopSec", func(d time.Duration) { s.Alive.StopGrace = procfleet.Duration(min(d, time.Hour)) })
	u.duration("TimeoutStartSec", func(d time.Duration) {
		if d > 0 {
			s.Alive.OpTimeout = procfleet.Duration(min(d, 24*time.Hour))
		}
	})
	u.environment(s)
	u.commands(s)
	u.unsupported(s)
	return s, u.err
}

// commands converts ExecStop and ExecReload. Their variable MAINPID has a counterpart only if
// there is a pid file.
func (u *service) commands(s *Spec) {
	for key, to := range map[string]*string{"ExecStop": &s.Control.Stop, "ExecReload": &s.Control.Reload} {
		var lines []string
		for _, command := range u.values[key] {
			lines = append(lines, strings.TrimLeft(u.expand(key, command), execPrefixes))
		}
		line := strings.Join(lines, " && ")
		if strings.Contains(line, "MAINPID") {
			if s.PidPath == "" {
				s.warn("%s uses $MAINPID, and there is no pid file: left out", key)
				continue
			}
			line = "MAINPID=$(cat " + quoted(s.PidPath) + "); " + line
		}
		*to = line
	}
}

var environmentWord = regexp.MustCompile(`"([^"]*)"|'([^']*)'|(\S+)`)

func (u *service) environment(s *Spec) {
	for _, line := range u.values["Environment"] {
		for _, word := range environmentWord.FindAllStringSubmatch(u.expand("Environment", line), -1) {
			key, value, found := strings.Cut(word[1]+word[2]+word[3], "=")
			if !found {
				continue
			}
			if s.Control.Environment == nil {
				s.Control.Environment = map[string]string{}
			}
			s.Control.Environment[key] = strings.Trim(value, `"'`)
		}
	}
	for _, file := range u.values["EnvironmentFile"] {
		// The shell reads the file as systemd does, but for rare quotes.
		path := strings.TrimPrefix(u.expand("EnvironmentFile", file), "-")
		s.Control.Start = "set -a; [ ! -r " + quoted(path) + " ] || . " + quoted(path) + "; set +a; " + s.Control.Start
	}
}

// duration reads a time span: a number of seconds, or numbers with units.
func (u *service) duration(key string, set func(time.Duration)) {
	text := u.text(key)
	if text == "" || text == "infinity" {
		return
	}
	if d, err := time.ParseDuration(text + "s"); err == nil {
		set(d)
		return
	}
	replaced := strings.NewReplacer("min", "m", "sec", "s", "hr", "h", " ", "").Replace(text)
	d, err := time.ParseDuration(replaced)
	if err != nil {
		u.err = errors.Join(u.err, fmt.Errorf("%s: %q is not a time span", key, text))
		return
	}
	set(d)
}

// unsupported warns about settings that change how the process runs and have no counterpart.
func (u *service) unsupported(s *Spec) {
	for _, key := range []string{"ExecStartPre", "ExecStartPost", "ExecStopPost", "RuntimeDirectory", "StateDirectory", "LimitNOFILE", "UMask", "KillSignal", "KillMode", "WatchdogSec", "Sockets", "DynamicUser", "ProtectSystem", "AmbientCapabilities"} {
		if len(u.values[key]) > 0 {
			s.warn("%s=%s has no counterpart", key, u.text(key))
		}
	}
	if u.text("Type") == "notify" {
		s.warn("Type=notify: the agent verifies that the process runs; it does not wait for its notification")
	}
}
