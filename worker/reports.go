package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// reports stores what agents report of their processes, in batches. A report
// that is lost is followed by the next one of its agent, which says all.
type reports struct {
	conn     *nats.Conn
	store    Store
	believer *believer
	clock    *clock
	timing   *Timing
	metrics  *metrics
	log      logrus.FieldLogger

	failing bool // the last batch was not stored
}

// inbox is where reports come in, of some 400 bytes for each process.
func (r *reports) inbox() *inbox {
	return &inbox{
		conn: r.conn, subject: agentproto.ProcessesAll, name: "process_reports", log: r.log,
		room: 32 << 10, roomBytes: 64 << 20, batch: 1000, batchBytes: 8 << 20, linger: r.timing.ReportLinger,
		take: r.take, overflow: func(*nats.Msg) { r.metrics.reports(1, reportsOverflowed) }, metrics: r.metrics,
	}
}

// reportAhead is how far the number of a report may be ahead of the store's
// time. More would have it stand for as long as it is ahead.
const reportAhead = time.Minute

// take stores what the messages report.
func (r *reports) take(ctx context.Context, msgs []*nats.Msg) {
	var batch []catalog.Report
	for _, msg := range msgs {
		batch = r.add(batch, msg)
	}
	r.keep(ctx, batch)
}

func (r *reports) add(batch []catalog.Report, msg *nats.Msg) []catalog.Report {
	report, err := decodeReport(msg.Data, msg.Subject, r.clock.now())
	if err != nil {
		r.log.WithError(err).WithField("subject", msg.Subject).Warn("report dropped")
		r.metrics.reports(1, reportsBad)
		return batch
	}
	if r.believer.believe(msg.Header, report.Host, &fleetkey.Message{Purpose: agentproto.TypeProcesses, Body: msg.Data}) != nil {
		r.metrics.reports(1, reportsBad)
		return batch
	}
	report.AgentID = r.believer.heldAgentID(msg.Header, report.Host, report.AgentID)
	for i := range report.Processes {
		if s := &report.Processes[i].Status; s.AgentID != report.AgentID {
			s.AgentID = ""
		}
	}
	return append(batch, report)
}

// decodeReport reads a report. Processes without a proper identity are left
// out, for they cannot be asked for.
func decodeReport(data []byte, subject string, now time.Time) (catalog.Report, error) {
	var message agentproto.Processes
	if err := agentproto.Decode(data, agentproto.TypeProcesses, &message); err != nil {
		return catalog.Report{}, err
	}
	host, err := hostFromWire(message.Host, subject)
	if err != nil {
		return catalog.Report{}, err
	}
	if message.Instance == "" || len(message.Instance) > maxWord || len(message.AgentID) > maxWord || message.Number <= 0 {
		return catalog.Report{}, fmt.Errorf("report of host %s: instance and agent id must be at most %d bytes, and there must be an instance and a number", host, maxWord)
	}
	number := min(message.Number, now.Add(reportAhead).UnixMicro())
	report := catalog.Report{
		Host: host, AgentID: message.AgentID, Instance: message.Instance,
		Number: number, At: time.UnixMicro(number).UTC(),
		Processes: make([]catalog.ReportedProcess, 0, len(message.Processes)),
	}
	for i := range message.Processes {
		if p := &message.Processes[i]; identified(p) {
			report.Processes = append(report.Processes, reportedProcess(p))
		}
	}
	return report, nil
}

func identified(p *agentproto.ManagedProcess) bool {
	return p.Key != "" && len(p.Key) <= procfleet.MaxKey && (p.Namespace == "") == (p.Name == "") &&
		len(p.Namespace) <= procfleet.MaxKey && len(p.Name) <= procfleet.MaxKey
}

// reportedProcess is what an agent says of a process as the model has it.
func reportedProcess(p *agentproto.ManagedProcess) catalog.ReportedProcess {
	r := catalog.ReportedProcess{
		Key: p.Key, Namespace: p.Namespace, Name: p.Name, ProcName: cut(p.ProcName, procfleet.MaxKey),
		Desired: catalog.DesiredNone, Status: *processStatus(&p.Status),
	}
	switch p.Desired {
	case agentproto.DesiredUp:
		r.Desired = catalog.DesiredUp
	case agentproto.DesiredDown:
		r.Desired = catalog.DesiredDown
	}
	s := &r.Status
	s.Command, s.Evidence = "", ""
	for _, word := range []*string{&s.Phase, &s.AgentID, &s.Stat, &s.Version, &s.Health} {
		if len(*word) > maxWord {
			*word = cut(*word, maxWord)
		}
	}
	return r
}

// keep gives a batch to the store.
func (r *reports) keep(ctx context.Context, batch []catalog.Report) {
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.timing.StoreCall, errStoreSlow)
	defer cancel()
	err := r.store.Report(ctx, batch)
	if err != nil && !r.failing { // once in a row
		r.log.WithError(err).WithField("reports", len(batch)).Warn("reports not stored, agents will send new ones")
	}
	if r.failing = err != nil; r.failing {
		r.metrics.reports(len(batch), reportsLost)
		return
	}
	r.metrics.reports(len(batch), reportsStored)
}
