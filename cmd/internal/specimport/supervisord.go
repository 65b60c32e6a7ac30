package specimport

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/ini.v1"

	"github.com/procfleet/procfleet"
)

// Supervisord converts the programs of a configuration file of supervisord, and of the files
// that it includes.
func Supervisord(file, namespace string) ([]*Spec, error) {
	files, err := withIncludes(file)
	if err != nil {
		return nil, err
	}
	var specs []*Spec
	for _, path := range files {
		config, err := loadINI(path)
		if err != nil {
			return nil, err
		}
		for _, section := range config.Sections() {
			name, is := strings.CutPrefix(section.Name(), "program:")
			if !is {
				continue
			}
			found, err := programs(section, name, namespace, filepath.Dir(path))
			if err != nil {
				return nil, fmt.Errorf("%s: [program:%s]: %w", path, name, err)
			}
			specs = append(specs, found...)
		}
	}
	if len(specs) == 0 {
		return nil, fmt.Errorf("%s has no section [program:NAME]", file)
	}
	return specs, nil
}

func loadINI(path string) (*ini.File, error) {
	config, err := ini.LoadSources(ini.LoadOptions{
		AllowPythonMultilineValues: true, SpaceBeforeInlineComment: true, PreserveSurroundedQuote: true, KeyValueDelimiters: "=", IgnoreContinuation: true,
	}, path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

// withIncludes returns the file and those that its section include names, which may be
// patterns.
func withIncludes(file string) ([]string, error) {
	config, err := loadINI(file)
	if err != nil {
		return nil, err
	}
	files := []string{file}
	for pattern := range strings.FieldsSeq(config.Section("include").Key("files").String()) {
		pattern = strings.ReplaceAll(pattern, "%(here)s", filepath.Dir(file))
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(file), pattern)
		}
		more, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: [include]: %w", file, err)
		}
		files = append(files, more...)
	}
	return files, nil
}

// programs converts a section, which describes numprocs processes.
func programs(section *ini.Section, name, namespace, here string) ([]*Spec, error) {
	count, err := strconv.Atoi(section.Key("numprocs").MustString("1"))
	if err != nil || count < 1 {
		return nil, fmt.Errorf("numprocs %q is not a positive number", section.Key("numprocs"))
	}
	first := section.Key("numprocs_start").MustInt(0)
	var specs []*Spec
	for n := first; n < first+count; n++ {
		p := program{section: section, values: map[string]string{"program_name": name, "process_num": strconv.Itoa(n), "here": here, "group_name": name, "host_node_name": hostName()}}
		spec, err := p.spec(name, namespace)
		if err != nil {
			return nil, err
		}
		specs = append(specs, spec)
	}
	return specs, nil
}

func hostName() string {
	name, _ := os.Hostname() // "" as in supervisord without a name
	return name
}

// program is one process of a section, with the values of its expressions %(name)s.
type program struct {
	section *ini.Section
	values  map[string]string
	err     error
}

var expression = regexp.MustCompile(`%(?:%|\(([a-zA-Z0-9_]+)\)([0-9]*)([sd]))`)

// text returns the value of a key with its expressions expanded.
func (p *program) text(key string) string {
	return expression.ReplaceAllStringFunc(p.section.Key(key).String(), func(match string) string {
		if match == "%%" {
			return "%"
		}
		part := expression.FindStringSubmatch(match)
		value, known := p.values[part[1]]
		if variable, is := strings.CutPrefix(part[1], "ENV_"); is {
			value, known = os.LookupEnv(variable)
		}
		if !known {
			p.err = errors.Join(p.err, fmt.Errorf("%s: %s has no value here", key, match))
		}
		if width, _ := strconv.Atoi(part[2]); part[3] == "d" && len(value) < width {
			value = strings.Repeat("0", width-len(value)) + value
		}
		return value
	})
}

func (p *program) spec(name, namespace string) (*Spec, error) {
	processName := name
	if p.section.HasKey("process_name") {
		processName = p.text("process_name")
	}
	s := newSpec(namespace, processName)
	command := p.text("command")
	if command == "" {
		return nil, errors.New("command is missing")
	}
	output := p.text("stdout_logfile")
	switch {
	case output == "" || strings.EqualFold(output, "AUTO") || strings.EqualFold(output, "NONE"):
		output = ""
	case !filepath.IsAbs(output):
		output = filepath.Join(p.values["here"], output)
	}
	s.background(command, p.text("directory"), output)
	s.Account = p.text("user")
	s.Alive.Type = procfleet.Resident
	if p.text("autorestart") == "false" {
		s.Alive.Type = procfleet.Manual
	}
	p.number("startretries", func(n int) { s.Alive.StartRetries = n })
	p.number("stopwaitsecs", func(n int) { s.Alive.StopGrace = seconds(n) })
	p.number("startsecs", func(n int) { s.Alive.StartCheckBegin, s.Alive.StartCheckEnd = seconds(n), seconds(n) })
	s.Alive.StopGrace = max(s.Alive.StopGrace, seconds(1))
	p.environment(s)
	p.unsupported(s)
	return s, p.err
}

func seconds(n int) procfleet.Duration { return procfleet.Duration(time.Duration(n) * time.Second) }

func (p *program) number(key string, set func(int)) {
	defaults := map[string]string{"startretries": "3", "stopwaitsecs": "10", "startsecs": "1"}
	text := p.text(key)
	if text == "" {
		text = defaults[key]
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		p.err = errors.Join(p.err, fmt.Errorf("%s: %q is not a number", key, text))
		return
	}
	set(n)
}

var assignment = regexp.MustCompile(`([A-Za-z_][A-Za-z0-9_]*)\s*=\s*("[^"]*"|'[^']*'|[^,]*)`)

// environment reads KEY="value",KEY2="value".
func (p *program) environment(s *Spec) {
	for _, part := range assignment.FindAllStringSubmatch(p.text("environment"), -1) {
		if s.Control.Environment == nil {
			s.Control.Environment = map[string]string{}
		}
		s.Control.Environment[part[1]] = strings.Trim(strings.TrimSpace(part[2]), `"'`)
	}
}

// unsupported warns about settings that have no counterpart.
func (p *program) unsupported(s *Spec) {
	if signal := strings.TrimPrefix(strings.ToUpper(p.text("stopsignal")), "SIG"); signal != "" && signal != "TERM" {
		s.warn("stopsignal %s: a stop sends SIGTERM; set control.stop for another signal", signal)
	}
	if file := p.text("stderr_logfile"); file != "" && !strings.EqualFold(file, "AUTO") && !strings.EqualFold(file, "NONE") && p.text("redirect_stderr") != "true" {
		s.warn("stderr_logfile %s: standard error is written to the file of standard output", file)
	}
	if p.text("autostart") == "false" {
		s.warn("autostart false: the agent starts the process only after an operation has started or supervised it")
	}
	for _, key := range []string{"umask", "priority", "exitcodes", "serverurl", "stopasgroup", "killasgroup", "stdout_logfile_maxbytes"} {
		if p.section.HasKey(key) {
			s.warn("%s %s: has no counterpart", key, p.text(key))
		}
	}
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// scalar returns text as a YAML scalar. JSON strings are YAML scalars.
func scalar(text string) string {
	if plain.MatchString(text) {
		return text
	}
	var quoted strings.Builder
	encoder := json.NewEncoder(&quoted)
	encoder.SetEscapeHTML(false) // people read the file
	if err := encoder.Encode(text); err != nil {
		return strconv.Quote(text) // cannot happen: every string can be encoded
	}
	return strings.TrimSpace(quoted.String())
}

// plain matches text that YAML reads as this text.
var plain = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9/._-]*$`)
