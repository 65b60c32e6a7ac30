package dialect

import (
	"cmp"
	"strconv"

	"github.com/procfleet/procfleet"
)

// gseOperate is one operation in a request of the operate calls.
type gseOperate struct {
	Meta *gseMeta `json:"meta"`
	gseWhere
	OpType  *int     `json:"op_type"`
	Process *gseSpec `json:"spec"`
}

type gseOperations struct {
	Requests []gseOperate `json:"proc_operate_req"`
}

func decodeOperateMulti(params *gseOperations) (procfleet.Submission, error) {
	if len(params.Requests) == 0 {
		return procfleet.Submission{}, required("proc_operate_req")
	}
	s := procfleet.Submission{Operations: make([]procfleet.Operation, 0, len(params.Requests))}
	for i := range params.Requests {
		o, err := params.Requests[i].operation("proc_operate_req[" + strconv.Itoa(i) + "].")
		if err != nil {
			return procfleet.Submission{}, err
		}
		s.Operations = append(s.Operations, o)
	}
	return s, nil
}

func decodeOperateV2(params *gseOperate) (procfleet.Submission, error) {
	o, err := params.operation("")
	if err != nil {
		return procfleet.Submission{}, err
	}
	return procfleet.Submission{Operations: []procfleet.Operation{o}}, nil
}

// operation validates a request and converts it to an operation; prefix is the path of
// the request in the body. A spec may omit members that are registered: the dispatcher
// rejects a missing member only if the process is not registered.
func (p *gseOperate) operation(prefix string) (procfleet.Operation, error) {
	missing := cmp.Or(p.Meta.missing(), absent(p.OpType == nil, "op_type"), p.nowhere())
	if missing != "" {
		return procfleet.Operation{}, required(prefix + missing)
	}
	spec, given, err := p.Process.read(p.Meta, prefix)
	if err != nil {
		return procfleet.Operation{}, err
	}
	targets, err := p.targets(prefix, gseAddress)
	if err != nil {
		return procfleet.Operation{}, err
	}
	o := procfleet.Operation{Action: opAction(*p.OpType), Process: spec, Targets: targets}
	if given != procfleet.AllSpecFields {
		o.Over = &procfleet.Overlay{Given: given}
		if missing := p.Process.missing(); missing != "" {
			o.Over.Missing = prefix + missing
		}
	}
	return o, nil
}

// decodeOperate decodes operate_proc, which uses the registered spec. A request without
// op_type means start, because some callers omit zeros. A request without hosts means
// every host on which the process is registered.
func decodeOperate(params *gseOperate) (procfleet.Submission, error) {
	process, err := params.Meta.process()
	if err != nil {
		return procfleet.Submission{}, err
	}
	o := procfleet.Operation{Process: process, Registered: true}
	if params.OpType != nil {
		o.Action = opAction(*params.OpType)
	} else {
		o.Action = procfleet.ActionStart
	}
	switch {
	case params.Hosts == nil && params.Agents == nil:
	case params.nowhere() != "": // an empty list must not select every host
		return procfleet.Submission{}, invalid(params.nowhere(), "is empty; leave it out to mean every host where the process is registered")
	default:
		if o.Targets, err = params.targets("", gseAddressAndSupplier); err != nil {
			return procfleet.Submission{}, err
		}
	}
	return procfleet.Submission{Operations: []procfleet.Operation{o}}, nil
}

// gseRegisteredHost returns the key of a host that the dispatcher found for
// operate_proc. It has the form of the keys of named hosts.
func gseRegisteredHost(h procfleet.Host) string {
	cloud := int64(h.Cloud)
	return gseAddressAndSupplier(&gseHost{CloudID: &cloud, IP: h.Addr.String()})
}
