package hosts

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/worker/agentlink"
)

// reports stores process reports of agents in batches. Reports are complete, so the
// agent's next report makes up for a lost one.
type reports struct {
	receiver
	catalog Catalog
}

// inbox returns the inbox of reports. A report has about 400 bytes per process.
func (r *reports) inbox(linger time.Duration) *agentlink.Inbox {
	return &agentlink.Inbox{
		Link: r.link, Subject: agentproto.ProcessesAll, Name: "process_reports", Log: r.log,
		Limit: 32 << 10, LimitBytes: 64 << 20, Batch: 1000, BatchBytes: 8 << 20, Linger: linger,
		Take: inBatch(r.add, r.record), Overflow: r.overflowed,
	}
}

// reportAhead limits how far the number of a report may be ahead of the store's time.
// Reports with lower numbers are ignored, so a number too far ahead would block them.
const reportAhead = time.Minute

func (r *reports) add(batch []catalog.Report, msg *nats.Msg) []catalog.Report {
	report, err := decodeReport(msg.Data, msg.Subject, r.link.Clock.Now())
	if !r.verified(msg, report.Host, err) {
		return batch
	}
	report.AgentID = r.link.Auth.VerifiedAgentID(msg.Header, report.Host, report.AgentID)
	for i := range report.Processes {
		if s := &report.Processes[i].Status; s.AgentID != report.AgentID {
			s.AgentID = ""
		}
	}
	return append(batch, report)
}

// decodeReport decodes a report and omits processes without a valid identity.
func decodeReport(data []byte, subject string, now time.Time) (catalog.Report, error) {
	var message agentproto.Processes
	if err := agentproto.Decode(data, agentproto.TypeProcesses, &message); err != nil {
		return catalog.Report{}, err
	}
	host, err := agentlink.ParseHost(message.Host, subject)
	if err != nil {
		return catalog.Report{}, err
	}
	if message.Instance == "" || len(message.Instance) > agentlink.MaxName || len(message.AgentID) > agentlink.MaxName || message.Number <= 0 {
		return catalog.Report{}, fmt.Errorf("report of host %s: instance and agent id must be at most %d bytes, and there must be an instance and a number", host, agentlink.MaxName)
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

func (r *reports) record(ctx context.Context, batch []catalog.Report) {
	r.write(ctx, len(batch), func(ctx context.Context) error { return r.catalog.Report(ctx, batch) })
}
