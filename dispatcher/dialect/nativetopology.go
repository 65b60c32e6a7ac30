package dialect

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// nativeSet and nativeModule are a set and a module of a [v1.TopologyRequest], with
// hosts as text.
type nativeSet struct {
	v1.TopologySet
	Modules []nativeModule `json:"modules"`
}

type nativeModule struct {
	v1.TopologyModule
	Hosts []string `json:"hosts"`
}

// decodeTopology decodes a topology in JSON, or, depending on the content type, in YAML
// or CSV.
func decodeTopology(r *Request) (TopologyChange, error) {
	from := queryReader{Request: r}
	q := TopologyChange{Business: from.business(), Version: from.ifMatch(), AutoRegister: from.truth("auto_register")}
	err := from.err
	switch {
	case err != nil:
		return TopologyChange{}, err
	case mediaType(r) == "text/csv":
		err = q.readCSV(r)
	default:
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

func mediaType(r *Request) string {
	kind, _, err := mime.ParseMediaType(r.ContentType)
	if err != nil {
		return "" // treated as JSON, like a body without the header
	}
	return kind
}

// ifMatch reads the header If-Match: a version with or without quotes, also as a weak
// validator such as W/"3", which compressing proxies write. "*" and an absent header
// match any version, -1.
func (q *queryReader) ifMatch() int64 {
	if q.IfMatch == "" || q.IfMatch == "*" {
		return -1
	}
	version, err := strconv.ParseInt(strings.Trim(strings.TrimPrefix(q.IfMatch, "W/"), `"`), 10, 64)
	if err != nil || version < 0 {
		q.fail("If-Match", `is not the version of a topology, for example "3"`)
	}
	return version
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
	var params struct {
		v1.TopologyRequest
		Sets []nativeSet `json:"sets"`
	}
	if err := decodeObject(body, &params, catalog.MaxPlacements); err != nil {
		return err
	}
	if params.Sets == nil {
		return invalid("sets", "This field is required; an empty list removes every set.")
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

// onlyKnownMembers rejects unknown members of sets and modules: a misspelled "hosts"
// would create a module without hosts.
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

// parseHosts parses the hosts of the list at field.
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

// decodeTopologyEdit requires the member hosts: an empty list removes the hosts of the
// module, which an omitted member must not do.
func decodeTopologyEdit(r *Request) (TopologyEdit, error) {
	from := queryReader{Request: r}
	b := from.business()
	if from.err != nil {
		return TopologyEdit{}, from.err
	}
	var params struct {
		v1.TopologyEdit
		Hosts []string `json:"hosts"`
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
		return TopologyEdit{}, invalid("hosts", "This field is required; an empty list removes the hosts of the module.")
	}
	var err error
	q.Hosts, err = parseHosts(params.Hosts, "hosts")
	return q, err
}

func decodeTopologyQuery(r *Request) (TopologyQuery, error) {
	from := queryReader{Request: r}
	q := TopologyQuery{Business: from.business()}
	agents := from.truth("agents")
	q.WithoutAgents = agents != nil && !*agents
	return q, from.err
}

func nativeTopologyVersion[Q any](_ *Q, version int64, _ string) Reply {
	return Reply{Status: http.StatusOK, ETag: versionTag(version), Body: v1.TopologyVersion{Version: version}}
}

func versionTag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

func nativeShowTopology(_ *TopologyQuery, found TopologyShown, _ string) Reply {
	t := found.Topology
	shown := v1.Topology{
		Version: t.Version, AutoRegister: t.AutoRegister, Sets: make([]v1.TopologySet, len(t.Sets)),
		WithoutAgent: found.WithoutAgent, WithoutModule: found.WithoutModule,
	}
	for i, s := range t.Sets {
		shown.Sets[i] = v1.TopologySet{Name: s.Name, Modules: make([]v1.TopologyModule, len(s.Modules))}
		for j, m := range s.Modules {
			if m.Hosts == nil {
				m.Hosts = []procfleet.Host{}
			}
			shown.Sets[i].Modules[j] = v1.TopologyModule(m)
		}
	}
	return Reply{Status: http.StatusOK, ETag: versionTag(t.Version), Body: shown}
}
