package openapi

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// goTypes are the types that a schema of native.yaml may name as "go". The Go type
// determines the properties, their types and whether they are required; the schema in
// the file adds descriptions and constraints.
var goTypes = typesByName(
	v1.TaskRequest{}, v1.Operation{}, v1.TaskCreated{}, v1.TaskResume{}, v1.TaskApproval{}, v1.TaskPage{}, v1.Task{}, v1.ResultPage{}, v1.Result{}, v1.Plan{}, v1.Failure{},
	v1.Targets{}, v1.RegisterRequest{}, v1.ProcessRequest{}, v1.Identity{}, v1.Outcomes{},
	v1.Process{}, v1.ProcessPage{}, v1.ProcessList{}, v1.Reported{}, v1.GroupsRequest{}, v1.GroupsQuery{}, v1.Group{}, v1.HostGroupsList{},
	v1.HostPage{}, v1.FleetProcessPage{}, v1.AuditPage{}, v1.OutputPage{}, v1.Agent{}, v1.AgentList{}, v1.BindRequest{}, v1.BindingList{},
	v1.TaskControl{}, v1.LabelsRequest{}, v1.TaskCancel{}, v1.TaskRetry{}, v1.TaskUndo{}, v1.Cancel{}, v1.FreezeRequest{}, v1.Frozen{}, v1.LiftRequest{}, v1.Lifted{}, v1.FreezePage{}, v1.EventPage{}, v1.Health{},
	v1.CatalogRequest{}, v1.CatalogPage{}, v1.CatalogSaved{}, v1.CatalogDeleted{}, v1.Drift{},
	v1.RolloutPolicies{}, v1.ScheduleRequest{}, v1.Schedules{}, v1.Schedule{}, v1.ScheduleRemoved{},
	v1.WebhookRequest{}, v1.Webhooks{}, v1.Webhook{}, v1.WebhookRemoved{}, v1.DeadDeliveries{}, v1.RedeliverRequest{}, v1.Redelivered{}, v1.TopologyRequest{}, v1.TopologyEdit{}, v1.Topology{}, v1.TopologyVersion{},
	procfleet.HostEvent{}, procfleet.ProcessStatus{}, procfleet.LastExit{},
)

func typesByName(values ...any) map[string]reflect.Type {
	all := make(map[string]reflect.Type, len(values))
	for _, v := range values {
		t := reflect.TypeOf(v)
		all[t.Name()] = t
	}
	return all
}

// deriver derives schemas from Go types, for requests or for answers.
type deriver struct {
	// components has the names of types with their own named schema.
	components map[reflect.Type]string
	closed     bool // other members than the properties are forbidden
}

var requestSchemas = deriver{closed: true, components: map[reflect.Type]string{
	reflect.TypeFor[procfleet.Host]():        "Host",
	reflect.TypeFor[procfleet.Duration]():    "Duration",
	reflect.TypeFor[procfleet.Amount]():      "Amount",
	reflect.TypeFor[procfleet.ProcessSpec](): "ProcessRequest",
	reflect.TypeFor[v1.Identity]():           "Identity",
	reflect.TypeFor[v1.Operation]():          "OperationRequest",
	reflect.TypeFor[v1.Group]():              "GroupRequest",
	reflect.TypeFor[v1.CatalogProcess]():     "CatalogueRequest",
}}

var answerSchemas = deriver{closed: true, components: map[reflect.Type]string{
	reflect.TypeFor[procfleet.Host]():          "KnownHost",
	reflect.TypeFor[procfleet.Duration]():      "Duration",
	reflect.TypeFor[procfleet.TaskID]():        "TaskID",
	reflect.TypeFor[procfleet.State]():         "State",
	reflect.TypeFor[procfleet.Code]():          "Code",
	reflect.TypeFor[procfleet.ProcessSpec]():   "RegisteredProcess",
	reflect.TypeFor[procfleet.ProcessStatus](): "ProcessStatus",
	reflect.TypeFor[procfleet.LastExit]():      "LastExit",
	reflect.TypeFor[procfleet.HostEvent]():     "HostEvent",
	reflect.TypeFor[v1.Task]():                 "Task",
	reflect.TypeFor[v1.Result]():               "Result",
	reflect.TypeFor[v1.Agent]():                "Agent",
	reflect.TypeFor[v1.Process]():              "Process",
	reflect.TypeFor[v1.Reported]():             "Reported",
	reflect.TypeFor[v1.Group]():                "Group",
	reflect.TypeFor[v1.CatalogProcess]():       "CatalogueProcess",
}}

// derive completes the schemas that name a Go type.
func (d *description) derive() error {
	var errs []error
	complete := func(by deriver, schema *object) *object {
		name := schema.text("go")
		if name == "" {
			return schema
		}
		t, is := goTypes[name]
		if !is {
			errs = append(errs, fmt.Errorf("no Go type %s is known: add it to goTypes", name))
			return schema
		}
		whole, err := overlaid(by.object(t), schema)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		return whole
	}
	for _, name := range d.Requests.keys() {
		d.Requests.set(name, complete(requestSchemas, d.Requests.at(name)))
	}
	for _, name := range d.Answers.keys() {
		d.Answers.set(name, complete(answerSchemas, d.Answers.at(name)))
	}
	for name, call := range d.Calls {
		call.Request, call.Answer = complete(requestSchemas, call.Request), complete(answerSchemas, call.Answer)
		d.Calls[name] = call
	}
	return errors.Join(errs...)
}

// overlaid adds the keywords of text to a schema, recursively in properties and items.
// If text has a type, text replaces the schema.
func overlaid(schema, text *object) (*object, error) {
	if slices.ContainsFunc([]string{"type", "$ref", "anyOf", "const"}, text.has) {
		return text, nil
	}
	for _, word := range text.keys() {
		switch word {
		case "go":
		case "items":
			if !schema.has(word) {
				return nil, errors.New("the Go type is no list, but items are described")
			}
			items, err := overlaid(schema.at(word), text.at(word))
			if err != nil {
				return nil, err
			}
			schema = schema.with(word, items)
		case "properties":
			properties := schema.at(word)
			for _, name := range text.at(word).keys() {
				if !properties.has(name) {
					return nil, fmt.Errorf("the Go type has no member %s, which is described", name)
				}
				member, err := overlaid(properties.at(name), text.at(word).at(name))
				if err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
				properties.set(name, member)
			}
		default:
			schema = schema.with(word, text.get(word))
		}
	}
	return schema, nil
}

// of returns the schema of a type's values in the encoding of encoding/json.
func (d deriver) of(t reflect.Type) *object {
	if name, is := d.components[t]; is {
		return ref(name)
	}
	if t == reflect.TypeFor[time.Time]() {
		return members("type", "string", "format", "date-time")
	}
	switch t.Kind() {
	case reflect.Pointer:
		return nullable(d.of(t.Elem()))
	case reflect.Struct:
		return d.object(t)
	case reflect.Slice:
		return members("type", "array", "items", d.of(t.Elem()))
	case reflect.Map:
		return members("type", "object", "additionalProperties", d.of(t.Elem()))
	case reflect.Bool:
		return members("type", "boolean")
	case reflect.Float64:
		return members("type", "number")
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return members("type", "integer")
	case reflect.String:
		return members("type", "string")
	default:
		return &object{} // any value
	}
}

// object returns the schema of a struct. Members without omitempty are required;
// optional members are never null.
func (d deriver) object(t reflect.Type) *object {
	required, properties := []any{}, &object{}
	for _, field := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		of := field.Type
		switch {
		case name == "": // embedded struct, whose fields are visited too
			continue
		case options == "":
			required = append(required, name)
		case of.Kind() == reflect.Pointer:
			of = of.Elem()
		}
		properties.set(name, d.of(of))
	}
	schema := members("type", "object", "properties", properties)
	if len(required) > 0 {
		schema.set("required", required)
	}
	if d.closed {
		schema.set("additionalProperties", false)
	}
	return schema
}
