package dialect

import (
	"cmp"

	"github.com/procfleet/procfleet"
)

// gseRegistration is what the calls that keep specs say. To unregister, only
// meta and the hosts are looked at.
type gseRegistration struct {
	Meta *gseMeta `json:"meta"`
	gseWhere
	Process *gseSpec `json:"spec"`
}

// gseRegister is the endpoint of the calls that change registrations.
func gseRegister(decode func(*Request) (Registering, error)) Endpoint {
	return Register{Decode: decode, Encode: gseRegistered}
}

// decodeRegister reads register_proc_info. bk-cmdb sends all objects of a spec
// but leaves out what it knows nothing of, down to the name of the program.
func decodeRegister(r *Request) (Registering, error) {
	return decodeSpec(r, RegisterNew, func(s *gseSpec) string {
		policy, _ := s.policy()
		return cmp.Or(
			absent(s.Control == nil, "spec.control"), absent(s.Resource == nil, "spec.resource"),
			absent(policy == nil, "spec.monitor_policy"),
		)
	})
}

// decodeUpdate reads update_proc_info, with which bk-nodeman and bk-bscp
// register as well.
func decodeUpdate(r *Request) (Registering, error) {
	return decodeSpec(r, RegisterAny, func(*gseSpec) string { return "" })
}

// decodeSpec reads a call with a spec; missing returns what else the spec
// needs and does not have.
func decodeSpec(r *Request, mode RegisterMode, missing func(*gseSpec) string) (Registering, error) {
	var params gseRegistration
	if err := decodeESB(r, &params); err != nil {
		return Registering{}, err
	}
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

func decodeUnregister(r *Request) (Registering, error) {
	var params gseRegistration
	if err := decodeESB(r, &params); err != nil {
		return Registering{}, err
	}
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

// gseTargetOutcomes is the result map of a call that makes no task; name is
// the second part of every key.
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

// keyed renders one member for each target, in the order of the keys' first
// targets. Where one request named a key more than once, the last is shown.
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
