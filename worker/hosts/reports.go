package hosts

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/worker/agentlink"
)

// reports stores process reports of agents in batches, and sends receipts. Reports are
// complete, so the agent's next report makes up for a lost one.
type reports struct {
	receiver
	catalog Catalog
}

// inbox returns the inbox of reports. A report has about 400 bytes per process.
func (r *reports) inbox(linger time.Duration) *agentlink.Inbox {
	return &agentlink.Inbox{
		Link: r.link, Subject: agentproto.ProcessesAll, Name: "process_reports", Log: r.log,
		Limit: 32 << 10, LimitBytes: 64 << 20, Batch: 1000, BatchBytes: 8 << 20, Linger: linger, AwaitedLinger: min(linger, awaitedLinger),
		Take: inBatch(r.add, r.record), Overflow: r.overflowed,
	}
}

// awaitedLinger is the wait for more reports after one whose receipt an agent awaits: the
// result of an operation waits for it.
const awaitedLinger = 5 * time.Millisecond

// reportAhead limits how far the number of a report may be ahead of the store's time.
// Reports with lower numbers are ignored, so a number too far ahead would block them.
const reportAhead = time.Minute

// receivedReport is a report, and the request of its receipt.
type receivedReport struct {
	catalog.Report
	id, reply string // reply is empty if the agent expects no receipt
}

func (r *reports) add(batch []receivedReport, msg *nats.Msg) []receivedReport {
	message, report, err := decodeReport(msg.Data, msg.Subject, r.link.Clock.Now())
	if !r.verified(msg, report.Host, err) {
		return batch
	}
	report.AgentID = r.link.Auth.VerifiedAgentID(msg.Header, report.Host, report.AgentID)
	for i := range report.Processes {
		if s := &report.Processes[i].Status; s.AgentID != report.AgentID {
			s.AgentID = ""
		}
	}
	return append(batch, receivedReport{Report: report, id: message.ID, reply: msg.Reply})
}

// decodeReport decodes a report and omits processes without a valid identity.
func decodeReport(data []byte, subject string, now time.Time) (message agentproto.Processes, report catalog.Report, err error) {
	if err := agentproto.Decode(data, agentproto.TypeProcesses, &message); err != nil {
		return message, catalog.Report{}, err
	}
	host, err := agentlink.ParseHost(message.Host, subject)
	if err != nil {
		return message, catalog.Report{}, err
	}
	if message.Instance == "" || len(message.Instance) > agentlink.MaxName || len(message.AgentID) > agentlink.MaxName || message.Number <= 0 {
		return message, catalog.Report{}, fmt.Errorf("report of host %s: instance and agent id must be at most %d bytes, and there must be an instance and a number", host, agentlink.MaxName)
	}
	number := min(message.Number, now.Add(reportAhead).UnixMicro())
	report = catalog.Report{
		Host: host, AgentID: message.AgentID, Instance: message.Instance,
		Number: number, At: time.UnixMicro(number).UTC(),
		Processes: make([]catalog.ReportedProcess, 0, len(message.Processes)),
	}
	for i := range message.Processes {
		if p := &message.Processes[i]; identified(p) {
			report.Processes = append(report.Processes, reportedProcess(p))
		}
	}
	return message, report, nil
}

func identified(p *agentproto.ManagedProcess) bool {
	return p.Key != "" && len(p.Key) <= procfleet.MaxKey && (p.Namespace == "") == (p.Name == "") &&
		len(p.Namespace) <= procfleet.MaxKey && len(p.Name) <= procfleet.MaxKey
}

// reportedProcess converts a process of a report to its stored form.
func reportedProcess(p *agentproto.ManagedProcess) catalog.ReportedProcess {
	r := catalog.ReportedProcess{
		Key: p.Key, Namespace: p.Namespace, Name: p.Name, ProcName: agentlink.Cut(p.ProcName, procfleet.MaxKey),
		Desired: catalog.DesiredNone, Status: *agentlink.StatusOf(&p.Status),
	}
	switch p.Desired {
	case agentproto.DesiredUp:
		r.Desired = catalog.DesiredUp
	case agentproto.DesiredDown:
		r.Desired = catalog.DesiredDown
	}
	s := &r.Status
	s.Command, s.Evidence = "", ""
	for _, text := range []*string{&s.Phase, &s.AgentID, &s.Stat, &s.Version, &s.Health} {
		if len(*text) > agentlink.MaxName {
			*text = agentlink.Cut(*text, agentlink.MaxName)
		}
	}
	return r
}

func (r *reports) record(ctx context.Context, batch []receivedReport) {
	all := make([]catalog.Report, len(batch))
	for i := range batch {
		all[i] = batch[i].Report
	}
	if !r.write(ctx, len(batch), func(ctx context.Context) error { return r.catalog.Report(ctx, all) }) {
		return // the agent waits only briefly for the receipt
	}
	for i := range batch {
		if agentproto.ToAgent(batch[i].reply) {
			r.confirm(&batch[i])
		}
	}
}

func (r *reports) confirm(report *receivedReport) {
	data, err := agentproto.Encode(&agentproto.Receipt{
		Header: agentproto.Header{Type: agentproto.TypeReceipt, ID: report.reply, Sent: r.link.Clock.Now().UTC()},
	})
	if err == nil {
		err = r.link.Reply(report.reply, report.Host, &fleetkey.Message{Purpose: agentproto.TypeReceipt, Answers: report.id, Body: data})
	}
	if err != nil {
		r.log.WithError(err).WithField("host", report.Host.String()).Warn("report receipt not sent")
	}
}
