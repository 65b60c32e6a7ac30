package agent

import (
	"context"
	"math/rand/v2"
	"sync"
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

// receiptTimeout bounds the wait of results for the receipt of a report.
const receiptTimeout = time.Second

// processReporter publishes the states of all processes of this host: after changes, on
// every connection, and at intervals. Each report is complete and replaces a lost one.
// Results of operations wait until a report with the states that follow from them is
// stored, so that a caller who has a result never reads an older state.
type processReporter struct {
	*requester

	conn     *nats.Conn
	engine   Engine
	interval time.Duration

	changed   chan struct{} // holds a token when a report is due
	awaited   chan struct{} // holds a token when results wait for a report
	number    int64         // number of the last report
	processes int           // number of processes in the last report
	truncated bool          // true if the last report omitted processes

	mu      sync.Mutex
	results []func() // deliveries of results that wait for a report
	running bool     // run will deliver results
}

func (p *processReporter) change() { signal(p.changed) }

// beforeResult calls deliver once a report with the present states is stored, at the latest
// after receiptTimeout; at once without a connection. It does not block.
func (p *processReporter) beforeResult(deliver func()) {
	p.mu.Lock()
	wait := p.running && p.conn.IsConnected()
	if wait {
		p.results = append(p.results, deliver)
	}
	p.mu.Unlock()
	if !wait {
		deliver()
		return
	}
	signal(p.awaited)
}

// run publishes reports until ctx ends. It begins once the servers' time is known, which
// orders the reports.
func (p *processReporter) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-p.clock.known:
	}
	p.setRunning(true)
	defer p.deliver()
	defer p.setRunning(false)
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
		case <-p.awaited:
			if !sleep(ctx, p.gatherResults()) {
				return
			}
		}
		p.report(ctx)
	}
}

func (p *processReporter) setRunning(running bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = running
}

// gatherResults returns how long a report waits for further results: longer on hosts with
// many processes, whose reports are large.
func (p *processReporter) gatherResults() time.Duration {
	return min(2*time.Millisecond+time.Duration(p.processes)*time.Millisecond/2, gatherChanges)
}

// gather waits for further changes, or for a result. The wait is random because the hosts of
// a fleet change at the same time. It returns false if ctx has ended.
func (p *processReporter) gather(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-p.awaited:
		return sleep(ctx, p.gatherResults())
	case <-time.After(gatherChanges/2 + rand.N(gatherChanges/2)):
		return true
	}
}

// report publishes a report if the agent is connected, and then delivers the results that
// wait for it. Without a connection, the next connection schedules a report.
func (p *processReporter) report(ctx context.Context) {
	select { // this report includes these changes
	case <-p.changed:
	default:
	}
	results := p.takeResults()
	if p.conn.IsConnected() {
		if err := p.send(ctx, len(results) > 0); err != nil && ctx.Err() == nil {
			p.log.WithError(err).Warn("process report failed, next report follows")
		}
	}
	for _, deliver := range results {
		deliver()
	}
}

// send publishes a report, or requests its receipt.
func (p *processReporter) send(ctx context.Context, receipt bool) error {
	all := p.engine.Processes()
	p.processes = len(all)
	m, data, err := p.encode(all)
	if err != nil {
		return err
	}
	subject := agentproto.ProcessesSubject(p.cloud)
	if !receipt {
		return p.conn.PublishMsg(p.signed(subject, agentproto.TypeProcesses, "", data))
	}
	ctx, cancel := context.WithTimeout(ctx, receiptTimeout)
	defer cancel()
	var reply agentproto.Receipt
	_, err = p.request(ctx, subject, m, agentproto.TypeReceipt, &reply)
	return err
}

func (p *processReporter) takeResults() []func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	results := p.results
	p.results = nil
	return results
}

func (p *processReporter) deliver() {
	for _, deliver := range p.takeResults() {
		deliver()
	}
}

// encode returns an encoded report of as many processes as one message can have, beginning
// with the first.
func (p *processReporter) encode(all []agentproto.ManagedProcess) (*agentproto.Processes, []byte, error) {
	p.number = max(p.number+1, p.clock.now().UnixMicro())
	r := &agentproto.Processes{
		Header: newHeader(agentproto.TypeProcesses),
		Host:   p.host, AgentID: p.agentID, Instance: p.instance, Number: p.number, Processes: all,
	}
	limit := agentproto.MaxMessageBytes
	if server := int(p.conn.MaxPayload()); server > 0 {
		limit = min(limit, server)
	}
	limit -= headroom
	for {
		data, err := agentproto.Encode(r)
		if err != nil || len(data) <= limit || len(r.Processes) == 0 {
			p.logOmitted(r.Omitted)
			return r, data, err
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
