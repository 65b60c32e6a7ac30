package agent

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
)

// gatherChanges is how long at most a change waits for others, so that a burst
// of them makes one report.
const gatherChanges = time.Second

// headroom is what a message of reports leaves free of the largest that the
// server takes, in bytes; headers count.
const headroom = 1 << 10

// processReporter publishes how all processes of this host stand: when
// something changed, on every connection, and at intervals. A report that is
// lost is followed by the next, which says all; none waits for an answer.
type processReporter struct {
	conn    *nats.Conn
	engine  engine
	clock   *clock
	self    identity
	agentID string
	every   time.Duration
	log     logrus.FieldLogger

	changed chan struct{} // holds a token when a report is due
	number  int64         // of the last report
	cut     bool          // the last report left processes out
}

func newProcessReporter(cfg *Config, self identity, c *clock) *processReporter {
	return &processReporter{
		conn: cfg.Conn, clock: c, self: self, agentID: cfg.AgentID, every: cfg.ReportInterval, log: cfg.Log,
		changed: make(chan struct{}, 1),
	}
}

// change has a report follow soon. It does not block.
func (p *processReporter) change() { signal(p.changed) }

// run reports until ctx ends. It begins when the server's time is known, by
// which reports are ordered.
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

// gather waits for further changes, not equally long on every host: those of a
// fleet come together. It reports whether ctx still goes on.
func (p *processReporter) gather(ctx context.Context) bool {
	timer := time.NewTimer(gatherChanges/2 + rand.N(gatherChanges/2))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	}
	select { // what changed until here is in the report
	case <-p.changed:
	default:
	}
	return true
}

// report publishes once, if the connection is there; a new connection makes a
// report anyway.
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

// encode writes a report of as many processes, from the first on, as one
// message holds.
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
			p.tellOmitted(r.Omitted)
			return data, err
		}
		fit := min(len(r.Processes)-1, len(r.Processes)*limit/len(data))
		r.Processes, r.Omitted = all[:fit], len(all)-fit
	}
}

// tellOmitted logs once that not all processes are reported, and once that
// they are again.
func (p *processReporter) tellOmitted(n int) {
	if cut := n > 0; cut != p.cut {
		p.cut = cut
		if cut {
			p.log.WithField("omitted", n).Warn("process report truncated")
		} else {
			p.log.Info("process report complete again")
		}
	}
}
