package dialect

import (
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// nativeTopology is a [v1.TopologyRequest] or a [v1.Topology], whose additional members
// have no effect.
type nativeTopology struct {
	v1.TopologyRequest
	Sets          []nativeSet     `json:"sets"`
	WithoutAgent  json.RawMessage `json:"without_agent"`
	WithoutModule json.RawMessage `json:"without_module"`
	Labeled       json.RawMessage `json:"labeled"`
}

var topologyMembers = membersOf(reflect.TypeFor[nativeTopology]())

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
	if planned := from.truth("plan"); planned != nil {
		q.Planned = *planned
	}
	var err error
	if mediaType(r) == "text/csv" {
		err = q.readCSV(r)
	} else {
		err = q.readObject(r)
	}
	if err == nil {
		err = (&catalog.Topology{Sets: q.Sets}).Validate()
	}
	return q, errors.Join(from.err, err)
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
	var params nativeTopology
	if err := decodeObject(body, &params, catalog.MaxPlacements); err != nil {
		return err
	}
	errs := unknownMembers(body, topologyMembers)
	if params.Sets == nil {
		errs = append(errs, invalid("sets", "This field is required; an empty list removes every set."))
	}
	if v := params.Version; v != nil {
		switch {
		case *v < 0:
			errs = append(errs, invalid("version", "is negative; leave it out to replace whatever there is"))
		case q.Version >= 0 && q.Version != *v:
			errs = append(errs, invalid("version", "is %d, and If-Match says %d", *v, q.Version))
		}
		q.Version = *v
	}
	if said := params.AutoRegister; said != nil {
		if q.AutoRegister != nil && *q.AutoRegister != *said {
			errs = append(errs, invalid("auto_register", "is %t, and the parameter says %t", *said, *q.AutoRegister))
		}
		q.AutoRegister = said
	}
	return errors.Join(append(errs, q.read(params.Sets))...)
}

func (q *TopologyChange) read(sets []nativeSet) error {
	var errs []error
	q.Sets = make([]catalog.Set, len(sets))
	for i, s := range sets {
		q.Sets[i] = catalog.Set{Name: s.Name, Modules: make([]catalog.Module, len(s.Modules))}
		for j, m := range s.Modules {
			hosts, err := parseHosts(m.Hosts, "sets["+strconv.Itoa(i)+"].modules["+strconv.Itoa(j)+"].hosts")
			if err != nil {
				errs = append(errs, err)
			}
			if len(errs) > maxProblems {
				return errors.Join(errs...)
			}
			q.Sets[i].Modules[j] = catalog.Module{Name: m.Name, Default: m.Default, Hosts: hosts, Labels: m.Labels}
		}
	}
	return errors.Join(errs...)
}

// parseHosts parses the hosts of the list at field, up to maxProblems and one more that
// are invalid.
func parseHosts(texts []string, field string) ([]procfleet.Host, error) {
	hosts := make([]procfleet.Host, len(texts))
	var errs []error
	for i, text := range texts {
		var err error
		if hosts[i], err = procfleet.ParseHost(text); err != nil {
			errs = append(errs, invalid(field+"["+strconv.Itoa(i)+"]", "%s", err.Error()))
		}
		if len(errs) > maxProblems {
			break
		}
	}
	return hosts, errors.Join(errs...)
}

// decodeTopologyEdit requires the member hosts: an empty list removes the hosts of the
// module, which an omitted member must not do.
func decodeTopologyEdit(r *Request) (TopologyEdit, error) {
	from := queryReader{Request: r}
	b := from.business()
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
	errs := []error{from.err}
	if q.AutoRegister != nil {
		if ofModule {
			errs = append(errs, invalid("auto_register", "stands beside the hosts of a module; send one after the other"))
		}
		return q, errors.Join(errs...)
	}
	if q.Set == "" {
		errs = append(errs, required("set"))
	}
	if q.Module == "" {
		errs = append(errs, required("module"))
	}
	if params.Hosts == nil {
		errs = append(errs, invalid("hosts", "This field is required; an empty list removes the hosts of the module."))
	}
	var err error
	q.Hosts, err = parseHosts(params.Hosts, "hosts")
	return q, errors.Join(append(errs, err)...)
}

func decodeTopologyQuery(r *Request) (TopologyQuery, error) {
	from := queryReader{Request: r}
	q := TopologyQuery{Business: from.business()}
	agents := from.truth("agents")
	q.WithoutAgents = agents != nil && !*agents
	return q, from.err
}

func nativeTopologySet(q *TopologyChange, set TopologyShown, id string) Reply {
	if q.Planned {
		return nativeShowTopology(nil, set, id)
	}
	return nativeTopologyVersion(q, set.Topology.Version, id)
}

func nativeTopologyVersion[Q any](_ *Q, version int64, _ string) Reply {
	return Reply{Status: http.StatusOK, ETag: versionTag(version), Body: v1.TopologyVersion{Version: version}}
}

func versionTag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

func nativeShowTopology(_ *TopologyQuery, found TopologyShown, _ string) Reply {
	t := found.Topology
	shown := v1.Topology{
		Version: t.Version, AutoRegister: t.AutoRegister, Sets: make([]v1.TopologySet, len(t.Sets)),
		WithoutAgent: found.WithoutAgent, WithoutModule: found.WithoutModule, Labeled: found.Labeled,
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
