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

// intake creates tasks from submissions that producers publish on NATS. It uses the
// same dialects and the same submitter as HTTP.
//
// A dispatcher that crashes between acceptance and acknowledgement must not create a
// second task when the message is redelivered. Therefore each acceptance has an
// idempotency key: the producer's, or else a key made from the message's position in
// the stream.
type intake struct {
	*natsintake.Intake
	api         *api
	acceptCalls map[string]acceptCall // by call name
	names       string                // of all calls, for error messages
	// redeliveryDelay is the delay before the first redelivery of a message; it doubles
	// with each delivery.
	redeliveryDelay time.Duration
}

// acceptCall is a dialect's call that accepts operations.
type acceptCall struct {
	family dialect.Family
	name   string
	accept dialect.Accept
}

// nativeCall is the call that is used if a message names none.
const nativeCall = "native"

func newIntake(a *api, clock taskstore.Clock, dialects []dialect.Dialect) (*intake, error) {
	from, err := natsintake.New(&natsintake.Config{
		Bus: a.cfg.Submissions, Clock: clock, Slots: a.cfg.Limits.Submissions,
		Accept: a.cfg.Timeouts.Accept, Drain: a.cfg.Timeouts.Drain, Log: a.log, Meter: a.cfg.Meter,
	})
	if err != nil {
		return nil, err
	}
	in := &intake{Intake: from, api: a, acceptCalls: map[string]acceptCall{}, redeliveryDelay: time.Second}
	for i := range dialects {
		for _, family := range slices.Backward(dialects[i].Reached()) { // reversed, so that the first family of a call replaces the others
			for _, call := range family.Calls {
				if accept, ok := call.Endpoint.(dialect.Accept); ok {
					in.acceptCalls[call.Name] = acceptCall{family, call.Name, accept}
				}
			}
		}
	}
	in.names = strings.Join(slices.Sorted(maps.Keys(in.acceptCalls)), ", ")
	return in, nil
}
