package dialect

import (
	"cmp"

	"github.com/procfleet/procfleet"
)

// gseRegistration is a request of the calls that change registrations. To unregister,
// only meta and the hosts are read.
type gseRegistration struct {
	Meta *gseMeta `json:"meta"`
	gseWhere
	Process *gseSpec `json:"spec"`
}

// decodeRegister decodes register_proc_info. It requires the objects of a spec but not
// their members: bk-cmdb sends all objects, and omits members that it does not know,
// even the name of the program.
func decodeRegister(params *gseRegistration) (Registering, error) {
	return decodeSpec(params, RegisterNew, func(s *gseSpec) string {
		policy, _ := s.policy()
		return cmp.Or(
			absent(s.Control == nil, "spec.control"), absent(s.Resource == nil, "spec.resource"),
			absent(policy == nil, "spec.monitor_policy"),
		)
	})
}

// decodeUpdate decodes update_proc_info. The call also creates registrations, because
// bk-nodeman and bk-bscp use it to register.
func decodeUpdate(params *gseRegistration) (Registering, error) {
	return decodeSpec(params, RegisterAny, func(*gseSpec) string { return "" })
}

// decodeSpec decodes a call with a spec; missing returns a further member that the call
// requires and the spec lacks.
func decodeSpec(params *gseRegistration, mode RegisterMode, missing func(*gseSpec) string) (Registering, error) {
	spec := params.Process
	field := cmp.Or(params.Meta.missing(), absent(spec == nil, "spec"))
	if field == "" {
		field = cmp.Or(absent(spec.Identity == nil, "spec.identity"), missing(spec))
	}
	if field != "" {
		return Registering{}, required(field)
	}
	process, _, err := spec.read(params.Meta, "")
	if err != nil {
		return Registering{}, err
	}
	process.ProcName = cmp.Or(process.ProcName, params.Meta.Name)
	targets, err := params.where(gseAddressAndSupplier)
	return Registering{Mode: mode, Process: process, Targets: targets}, err
}

func decodeUnregister(params *gseRegistration) (Registering, error) {
	process, err := params.Meta.process()
	if err != nil {
		return Registering{}, err
	}
	targets, err := params.where(gseAddressAndSupplier)
	return Registering{Mode: Unregister, Process: process, Targets: targets}, err
}

// gseExists is the published message of [procfleet.CodeRegistered].
const gseExists = "Fail to register, for the process info already exists."

func gseRegistered(q *Registering, outcomes []TargetOutcome, requestID string) Reply {
	return gseAnswer(gseTargetOutcomes(q.Targets, outcomes, q.Process.Key()), requestID)
}

// gseTargetOutcomes returns the result map of a call that creates no task; name is the
// second part of every key.
func gseTargetOutcomes(asked []procfleet.Target, outcomes []TargetOutcome, name string) rendered {
	return keyed(asked, func(t procfleet.Target) string { return t.Key() + ":" + name }, func(b rendered, i int) rendered {
		message := outcomes[i].Message
		if outcomes[i].Code == procfleet.CodeRegistered {
			message = gseExists
		}
		b = append(b, '{').number("error_code", int64(outcomes[i].Code)).text("error_msg", message)
		return append(b.text("content", ""), '}')
	})
}

// keyed renders an object with one member for each key, in the order in which the keys
// first occur. If several targets have the same key, the member is that of the last
// target.
func keyed(asked []procfleet.Target, key func(procfleet.Target) string, value func(b rendered, i int) rendered) rendered {
	last := make(map[string]int, len(asked))
	keys := make([]string, 0, len(asked))
	for i := range asked {
		k := key(asked[i])
		if _, again := last[k]; !again {
			keys = append(keys, k)
		}
		last[k] = i
	}
	b := rendered{'{'}
	for _, k := range keys {
		b = value(append(b.comma().quote(k), ':'), last[k])
	}
	return append(b, '}')
}
