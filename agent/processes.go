package agent

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

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
	conn    *nats.Conn
	engine  engine
	clock   *clock
	self    identity
	agentID string
	every   time.Duration
	log     logrus.FieldLogger

	changed chan struct{} // holds a token when a report is due
	number  int64         // number of the last report
	cut     bool          // true if the last report omitted processes
}

func newProcessReporter(cfg *Config, self identity, c *clock) *processReporter {
	return &processReporter{
		conn: cfg.Conn, clock: c, self: self, agentID: cfg.AgentID, every: cfg.ReportInterval, log: cfg.Log,
		changed: make(chan struct{}, 1),
	}
}

// change schedules a report. It does not block.
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
		timer := time.NewTimer(jittered(p.every))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-p.changed:
			timer.Stop()
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
		err = p.conn.PublishMsg(p.self.signed(agentproto.ProcessesSubject(p.self.cloud), agentproto.TypeProcesses, "", data))
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
		Host:   p.self.host, AgentID: p.agentID, Instance: p.self.instance, Number: p.number, Processes: all,
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
	if cut := n > 0; cut != p.cut {
		p.cut = cut
		if cut {
			p.log.WithField("omitted", n).Warn("process report truncated")
		} else {
			p.log.Info("process report no longer truncated")
		}
	}
}
