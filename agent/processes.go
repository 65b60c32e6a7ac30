package agent

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
)

// gatherChanges is the maximum delay of a report after a change, so that a burst of changes
// makes one report.
const gatherChanges = time.Second

// headroom is the part of the server's message limit that is reserved for the headers of a
// report, in bytes.
const headroom = 1 << 10

// processReporter publishes the states of all processes of this host: after changes, on
// every connection, and at intervals. Reports are not acknowledged: each report is complete
// and replaces a lost one.
type processReporter struct {
	*requester

	conn     *nats.Conn
	engine   Engine
	interval time.Duration

	changed   chan struct{} // holds a token when a report is due
	number    int64         // number of the last report
	truncated bool          // true if the last report omitted processes
}

func (p *processReporter) change() { signal(p.changed) }

// run publishes reports until ctx ends. It begins once the servers' time is known, which
// orders the reports.
func (p *processReporter) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-p.clock.known:
	}
	p.change()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(jittered(p.interval)):
		case <-p.changed:
			if !p.gather(ctx) {
				return
			}
		}
		p.report()
	}
}

// gather waits for further changes. The wait is random because the hosts of a fleet change
// at the same time. It returns false if ctx has ended.
func (p *processReporter) gather(ctx context.Context) bool {
	proceed := sleep(ctx, gatherChanges/2+rand.N(gatherChanges/2))
	select { // the next report includes these changes
	case <-p.changed:
	default:
	}
	return proceed
}

// report publishes a report if the agent is connected. If not, the next connection
// schedules a report.
func (p *processReporter) report() {
	if !p.conn.IsConnected() {
		return
	}
	data, err := p.encode(p.engine.Processes())
	if err == nil {
		err = p.conn.PublishMsg(p.signed(agentproto.ProcessesSubject(p.cloud), agentproto.TypeProcesses, "", data))
	}
	if err != nil {
		p.log.WithError(err).Warn("process report failed, next report follows")
	}
}

// encode returns an encoded report of as many processes as one message can have, beginning
// with the first.
func (p *processReporter) encode(all []agentproto.ManagedProcess) ([]byte, error) {
	p.number = max(p.number+1, p.clock.now().UnixMicro())
	r := agentproto.Processes{
		Header: newHeader(agentproto.TypeProcesses),
		Host:   p.host, AgentID: p.agentID, Instance: p.instance, Number: p.number, Processes: all,
	}
	limit := agentproto.MaxMessageBytes
	if server := int(p.conn.MaxPayload()); server > 0 {
		limit = min(limit, server)
	}
	limit -= headroom
	for {
		data, err := agentproto.Encode(&r)
		if err != nil || len(data) <= limit || len(r.Processes) == 0 {
			p.logOmitted(r.Omitted)
			return data, err
		}
		fit := min(len(r.Processes)-1, len(r.Processes)*limit/len(data))
		r.Processes, r.Omitted = all[:fit], len(all)-fit
	}
}

// logOmitted logs a change between complete and truncated reports.
func (p *processReporter) logOmitted(n int) {
	if truncated := n > 0; truncated != p.truncated {
		p.truncated = truncated
		if truncated {
			p.log.WithField("omitted", n).Warn("process report truncated")
		} else {
			p.log.Info("process report no longer truncated")
		}
	}
}
