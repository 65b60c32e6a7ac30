package simulate

import (
	"context"
	"strconv"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// report sends a process report of every agent once per ReportEvery until ctx ends. The
// reports are evenly distributed over the interval.
func (f *Fleet) report(ctx context.Context) {
	if f.cfg.Processes == 0 {
		return
	}
	template := f.processTemplate()
	subject := agentproto.ProcessesSubject(f.cfg.Cloud)
	interval, n := f.even(f.cfg.ReportEvery)
	for f.inTurns(ctx, interval, n, func(a *agent) {
		h := agentproto.Header{Type: agentproto.TypeProcesses, ID: a.instance, Sent: time.Now().UTC()}
		data := appendProcesses(nil, h, a, template)
		_ = a.conn.PublishMsg(a.signed(subject, agentproto.TypeProcesses, "", data)) // the next report has all processes
	}) {
	}
}

// processText is the encoded report of one process, split at the time of its status:
// before precedes the time, after follows it.
type processText struct{ before, after string }

func (f *Fleet) processTemplate() []processText {
	template := make([]processText, f.cfg.Processes)
	for i := range template {
		template[i] = newProcessText(i, f.started.UTC().Truncate(time.Second))
	}
	return template
}

func newProcessText(i int, started time.Time) processText {
	name, since := "process_"+strconv.Itoa(i), started.Format(time.RFC3339)
	return processText{
		before: `{"key":"simulated:` + name + `","namespace":"simulated","name":"` + name + `","proc_name":"process","desired":"up","status":{"at":"`,
		after: `","utc_offset_s":28800,"running":true,"supervised":true,"phase":"running","pid":` + simulatedPID +
			`,"stat":"S","threads":12,"started_at":"` + since + `","elapsed_ms":86400000,"user_ms":123450,"system_ms":6780,"cpu":1.25,"cpu_average":0.75` +
			`,"memory_bytes":134217728,"memory_percent":1.56,"host_free_kb":4194304,"registered_at":"` + since + `","last_started_at":"` + since + `"}}`,
	}
}

// appendProcesses appends to b [agentproto.Processes], with the local time as the sequence
// number.
func appendProcesses(b []byte, h agentproto.Header, a *agent, template []processText) []byte {
	b = appendTexts(appendHeader(b, h), `,"host":"`, a.host, `","instance":"`, a.instance, `","number":`)
	b = strconv.AppendInt(b, h.Sent.UnixMicro(), 10)
	b = append(b, `,"processes":[`...)
	for i := range template {
		b = appendTexts(b, comma(i), template[i].before)
		b = h.Sent.AppendFormat(b, time.RFC3339Nano)
		b = append(b, template[i].after...)
	}
	return append(b, "]}"...)
}
