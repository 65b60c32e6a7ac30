package dialect

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// nativeTopology is a topology as callers write it. It goes by what a topology
// is shown as, so that what was read can be changed and put back: then version
// is what was read.
type nativeTopology struct {
	Version      *int64      `json:"version"` // null: whatever there is
	AutoRegister *bool       `json:"auto_register"`
	Sets         []nativeSet `json:"sets"`
}

type nativeSet struct {
	Name    string         `json:"name"`
	Modules []nativeModule `json:"modules"`
}

type nativeModule struct {
	Name    string   `json:"name"`
	Default int64    `json:"default"`
	Hosts   []string `json:"hosts"`
}

// decodeTopology reads a topology as JSON, or, if that is the content type,
// as YAML or CSV.
func decodeTopology(r *Request) (TopologyChange, error) {
	b, err := nativeBusiness(r)
	if err != nil {
		return TopologyChange{}, err
	}
	q := TopologyChange{Business: b, Version: -1}
	if err := q.ifMatch(r.IfMatch); err != nil {
		return TopologyChange{}, err
	}
	if q.AutoRegister, err = truth(r, "auto_register"); err != nil {
		return TopologyChange{}, err
	}
	if mediaType(r) == "text/csv" {
		err = q.readCSV(r)
	} else {
		err = q.readObject(r)
	}
	if err != nil {
		return TopologyChange{}, err
	}
	if err := (&catalog.Topology{Sets: q.Sets}).Validate(); err != nil {
		return TopologyChange{}, refused(err, same)
	}
	return q, nil
}

// mediaType is the type of a body, without its parameters.
func mediaType(r *Request) string {
	kind, _, err := mime.ParseMediaType(r.ContentType)
	if err != nil {
		return "" // JSON, as where nothing is said
	}
	return kind
}

// ifMatch reads the header If-Match: a version, with or without quotes, also as
// servers in front that compress answers write it. "*" is whatever there is, as
// without the header.
func (q *TopologyChange) ifMatch(header string) error {
	if header == "" || header == "*" {
		return nil
	}
	version, err := strconv.ParseInt(strings.Trim(strings.TrimPrefix(header, "W/"), `"`), 10, 64)
	if err != nil || version < 0 {
		return invalid("If-Match", `is not the version of a topology, for example "3"`)
	}
	q.Version = version
	return nil
}

func (q *TopologyChange) readObject(r *Request) error {
	body := r.Body
	switch mediaType(r) {
	case "application/yaml", "text/yaml", "application/x-yaml":
		var err error
		if body, err = yamlToJSON(r.Body); err != nil {
			return err
		}
	}
	if !isObject(body) {
		return &Error{Kind: Malformed, Field: "body", Problem: "is no object with sets"}
	}
	var params nativeTopology
	if err := decodeObject(body, &params, catalog.MaxPlacements); err != nil {
		return err
	}
	if params.Sets == nil {
		return invalid("sets", "This field is required; an empty list takes every set away.")
	}
	if err := onlyKnownMembers(body); err != nil {
		return err
	}
	if v := params.Version; v != nil {
		switch {
		case *v < 0:
			return invalid("version", "is negative; leave it out to replace whatever there is")
		case q.Version >= 0 && q.Version != *v:
			return invalid("version", "is %d, and If-Match says %d", *v, q.Version)
		}
		q.Version = *v
	}
	if said := params.AutoRegister; said != nil {
		if q.AutoRegister != nil && *q.AutoRegister != *said {
			return invalid("auto_register", "is %t, and the parameter says %t", *said, *q.AutoRegister)
		}
		q.AutoRegister = said
	}
	return q.read(params.Sets)
}

// onlyKnownMembers refuses what no set and no module has, in a topology that
// could be decoded: of a misspelt "hosts" a module without hosts would come.
func onlyKnownMembers(body []byte) error {
	var given struct{ Sets json.RawMessage }
	if err := json.Unmarshal(body, &given); err != nil {
		return decodeError(err, "")
	}
	decoder := json.NewDecoder(bytes.NewReader(given.Sets))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&[]nativeSet{}); err != nil {
		return invalid("sets", "have a member that is not known: %s; a set has name and modules, a module name, default and hosts", err)
	}
	return nil
}

// maxYAMLMarks is how many marks a text in YAML may have that each begin
// something: a parser makes hundreds of bytes of one. A host in a line of its
// own has two.
const maxYAMLMarks = 4 * catalog.MaxPlacements

func yamlToJSON(text []byte) ([]byte, error) {
	marks := 0
	for _, mark := range []string{"\n", ",", "[", "{", "- ", ": ", "? "} {
		marks += bytes.Count(text, []byte(mark))
	}
	if marks > maxYAMLMarks {
		return nil, &Error{Kind: TooLarge, Field: "body", Problem: "has more in it than a topology can have"}
	}
	if severalDocuments(text) {
		return nil, &Error{Kind: Malformed, Field: "body", Problem: "has several YAML documents; a topology is one"}
	}
	body, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, &Error{Kind: Malformed, Field: "body", Problem: "is not YAML: " + strings.ReplaceAll(err.Error(), "\n", "")}
	}
	return body, nil
}

// severalDocuments reports whether a text in YAML goes on behind its first
// document, which is all that is read of it.
func severalDocuments(text []byte) bool {
	begun, ended := false, false
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) {
		line = bytes.TrimRight(line, " \t\r\n")
		if rest, marks := bytes.CutPrefix(line, []byte("---")); marks && (len(rest) == 0 || rest[0] == ' ' || rest[0] == '\t') {
			ended = ended || begun
			line = rest
		}
		line = bytes.TrimLeft(line, " \t")
		switch {
		case len(line) == 0, line[0] == '#', line[0] == '%' && !begun:
		case string(line) == "...":
			ended = ended || begun
		case ended:
			return true
		default:
			begun = true
		}
	}
	return false
}

func (q *TopologyChange) read(sets []nativeSet) error {
	q.Sets = make([]catalog.Set, len(sets))
	for i, s := range sets {
		q.Sets[i] = catalog.Set{Name: s.Name, Modules: make([]catalog.Module, len(s.Modules))}
		for j, m := range s.Modules {
			hosts, err := parseHosts(m.Hosts, "sets["+strconv.Itoa(i)+"].modules["+strconv.Itoa(j)+"].hosts")
			if err != nil {
				return err
			}
			q.Sets[i].Modules[j] = catalog.Module{Name: m.Name, Default: m.Default, Hosts: hosts}
		}
	}
	return nil
}

// parseHosts reads the hosts of a list that stands at field.
func parseHosts(texts []string, field string) ([]procfleet.Host, error) {
	hosts := make([]procfleet.Host, len(texts))
	for i, text := range texts {
		var err error
		if hosts[i], err = procfleet.ParseHost(text); err != nil {
			return nil, invalid(field+"["+strconv.Itoa(i)+"]", "%s", err.Error())
		}
	}
	return hosts, nil
}

// decodeTopologyEdit wants hosts to be there: an empty list takes those of the
// module away, and nobody should do that by leaving something out.
func decodeTopologyEdit(r *Request) (TopologyEdit, error) {
	b, err := nativeBusiness(r)
	if err != nil {
		return TopologyEdit{}, err
	}
	var params struct {
		Set          string   `json:"set"`
		Module       string   `json:"module"`
		Hosts        []string `json:"hosts"`
		AutoRegister *bool    `json:"auto_register"`
	}
	if !isObject(r.Body) {
		return TopologyEdit{}, &Error{Kind: Malformed, Field: "body", Problem: "is not a JSON object"}
	}
	if err := decodeObject(r.Body, &params, catalog.MaxPlacements); err != nil {
		return TopologyEdit{}, err
	}
	q := TopologyEdit{Business: b, Set: params.Set, Module: params.Module, AutoRegister: params.AutoRegister}
	ofModule := params.Set != "" || params.Module != "" || params.Hosts != nil
	switch {
	case q.AutoRegister != nil && ofModule:
		return TopologyEdit{}, invalid("auto_register", "stands beside the hosts of a module; send one after the other")
	case q.AutoRegister != nil:
		return q, nil
	case q.Set == "":
		return TopologyEdit{}, required("set")
	case q.Module == "":
		return TopologyEdit{}, required("module")
	case params.Hosts == nil:
		return TopologyEdit{}, invalid("hosts", "This field is required; an empty list takes the hosts of the module away.")
	}
	q.Hosts, err = parseHosts(params.Hosts, "hosts")
	return q, err
}

func decodeTopologyQuery(r *Request) (TopologyQuery, error) {
	b, err := nativeBusiness(r)
	if err != nil {
		return TopologyQuery{}, err
	}
	agents, err := truth(r, "agents")
	return TopologyQuery{Business: b, WithoutAgents: agents != nil && !*agents}, err
}

// truth reads a parameter that is true or false; nil without it.
func truth(r *Request, name string) (*bool, error) {
	switch text := r.Query.Get(name); text {
	case "":
		return nil, nil
	case "true", "false":
		is := text == "true"
		return &is, nil
	}
	return nil, invalid(name, "is neither true nor false")
}

func nativeTopologySet(_ *TopologyChange, version int64, _ string) Reply {
	return versionReply(version)
}

func nativeTopologyEdited(_ *TopologyEdit, version int64, _ string) Reply {
	return versionReply(version)
}

func versionReply(version int64) Reply {
	return Reply{Status: http.StatusOK, ETag: versionTag(version), Body: struct {
		Version int64 `json:"version"`
	}{version}}
}

func versionTag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// shownTopology is a topology as callers see it. What is not told of agents is
// null.
type shownTopology struct {
	Version       int64            `json:"version"` // 0: there is none
	AutoRegister  bool             `json:"auto_register"`
	Sets          []shownSet       `json:"sets"`
	WithoutAgent  []procfleet.Host `json:"without_agent"`
	WithoutModule []procfleet.Host `json:"without_module"`
}

type shownSet struct {
	Name    string        `json:"name"`
	Modules []shownModule `json:"modules"`
}

type shownModule struct {
	Name    string           `json:"name"`
	Default int64            `json:"default"`
	Hosts   []procfleet.Host `json:"hosts"`
}

func nativeShowTopology(_ *TopologyQuery, found TopologyShown, _ string) Reply {
	t := found.Topology
	shown := shownTopology{
		Version: t.Version, AutoRegister: t.AutoRegister, Sets: make([]shownSet, len(t.Sets)),
		WithoutAgent: found.WithoutAgent, WithoutModule: found.WithoutModule,
	}
	for i, s := range t.Sets {
		shown.Sets[i] = shownSet{s.Name, make([]shownModule, len(s.Modules))}
		for j, m := range s.Modules {
			if m.Hosts == nil {
				m.Hosts = []procfleet.Host{}
			}
			shown.Sets[i].Modules[j] = shownModule(m)
		}
	}
	return Reply{Status: http.StatusOK, ETag: versionTag(t.Version), Body: shown}
}
