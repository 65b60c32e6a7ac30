package dispatcher

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/dispatcher/natsintake"
	"github.com/procfleet/procfleet/taskstore"
)

// intake creates tasks from published submissions, with the dialects and the
// submitter that serve HTTP.
//
// A dispatcher that crashes between acceptance and acknowledgement must not
// create a second task when the message is redelivered. So each acceptance has
// an idempotency key: the producer's, or one of the message's place in the stream.
type intake struct {
	*natsintake.Intake
	api       *api
	entrances map[string]entrance // by the name of the call
	names     string              // of the calls, for error messages
	// again is the redelivery delay of a message that was put off once; it
	// doubles with each delivery.
	again time.Duration
}

// entrance is a call that accepts operations.
type entrance struct {
	family dialect.Family
	call   string
	accept dialect.Accept
}

// nativeCall is the call of a message that names none.
const nativeCall = "native"

func newIntake(a *api, clock taskstore.Clock, dialects []dialect.Dialect) (*intake, error) {
	from, err := natsintake.New(&natsintake.Config{
		Bus: a.cfg.Submissions, Clock: clock, Slots: a.cfg.Limits.Submissions,
		Accept: a.cfg.Timeouts.Accept, Drain: a.cfg.Timeouts.Drain, Log: a.log, Meter: a.cfg.Meter,
	})
	if err != nil {
		return nil, err
	}
	in := &intake{Intake: from, api: a, entrances: map[string]entrance{}, again: time.Second}
	for i := range dialects {
		for _, family := range slices.Backward(dialects[i].Reached()) { // a call's first family counts
			for _, call := range family.Calls {
				if accept, ok := call.Endpoint.(dialect.Accept); ok {
					in.entrances[call.Name] = entrance{family, call.Name, accept}
				}
			}
		}
	}
	in.names = strings.Join(slices.Sorted(maps.Keys(in.entrances)), ", ")
	return in, nil
}
