package dialect

import (
	"cmp"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
)

// describer renders the part of a published result that describes a process. Its members
// are declared in render_test.go.
type describer struct{ utc, local, started stamp }

// content appends the content of a finished item; message is the message of its entry.
// Members for the process state are present if the agent reported it. The member value is
// present for every action but status, and for a status action without a reported state.
func (d *describer) content(b rendered, it *procfleet.ItemResult, message string) rendered {
	b = append(b, '{')
	status, agentID := it.Result.Status, it.Item.Target.AgentID
	if status != nil {
		agentID = cmp.Or(agentID, status.AgentID)
		if host := it.Item.Target.Host; !host.IsZero() {
			b = b.text("ip", host.Addr.String())
		}
		b = b.given("bk_agent_id", agentID)
		// utctime is the host's local time, in spite of its name; utctime2 is UTC.
		b = b.text("utctime", d.local.of(status.At, status.UTCOffset)).text("utctime2", d.utc.of(status.At, 0))
		b = b.number("timezone", int64(status.UTCOffset/3600)) // hours east of UTC
	}
	if it.Item.Action != procfleet.ActionStatus || status == nil {
		b = append(b.name("value"), '[', '{')
		b = b.text("funcID", it.Spec.FuncID).text("instanceID", it.Spec.InstanceID).text("procName", it.Spec.ProcName)
		b = b.text("setupPath", it.Spec.SetupPath).text("result", message)
		if status != nil {
			b = b.truth("isAuto", status.Supervised)
		}
		b = append(b.given("bk_agent_id", agentID), '}', ']')
	}
	if status != nil {
		// Callers search the result for the name under which they manage the process.
		name := cmp.Or(it.Spec.Name, it.Spec.ProcName)
		b = append(b.name("process"), '[', '{')
		b = append(b.text("procname", name).name("instance"), '[')
		b = append(d.instance(b, name, status), ']', '}', ']')
	}
	return append(extension(b, &it.Result), '}')
}

// instance appends the state of a process.
func (d *describer) instance(b rendered, name string, status *procfleet.ProcessStatus) rendered {
	running := &procfleet.ProcessStatus{} // a process that does not run has no usage
	if status.Running {
		running = status
	}
	pid := -1 // callers interpret 0 as a running process
	if running.PID > 0 {
		pid = running.PID
	}
	started := ""
	if !running.StartedAt.IsZero() {
		started = d.started.of(running.StartedAt, status.UTCOffset)
	}
	b = append(b, '{')
	b = b.text("cmdline", running.Command).text("processName", name).text("version", status.Version).text("health", status.Health)
	b = b.truth("isAuto", status.Supervised)
	b = b.float("cpuUsage", running.CPU).float("cpuUsageAve", running.CPUAverage).float("phyMemUsage", running.MemoryPercent)
	b = b.number("usePhyMem", running.MemoryBytes).number("diskSize", -1).number("pid", int64(pid))
	b = b.text("startTime", started).text("stat", running.Stat)
	b = b.text("utime", strconv.FormatInt(running.UserMS/1000, 10)).text("stime", strconv.FormatInt(running.SystemMS/1000, 10))
	b = b.text("freeVMem", strconv.FormatInt(running.HostFreeKB, 10))
	b = b.number("threadCount", int64(running.Threads)).number("elapsedTime", running.ElapsedMS/1000)
	b = b.number("register_time", unix(status.RegisteredAt)).number("last_start_time", unix(status.LastStartedAt))
	return append(b.number("report_time", unix(status.At)), '}')
}

// extension appends the member ext, which has the data for which the published shape has
// no member, if there is any.
func extension(b rendered, r *procfleet.Result) rendered {
	s := r.Status
	if s == nil {
		s = &procfleet.ProcessStatus{}
	}
	without := len(b)
	b = append(b.name("ext"), '{')
	empty := len(b)
	b = b.texts("warnings", r.Warnings).given("state", s.Phase).nonzero("failures", int64(s.Failures))
	b = b.time("nextRetryAt", s.NextRetryAt).given("evidence", s.Evidence)
	b = b.numbers("pids", s.PIDs).nonzero("instances", int64(s.Instances))
	b = b.floatNonzero("treeCpu", s.TreeCPU).nonzero("treeMem", s.TreeMemoryBytes)
	b = b.time("nextRunAt", s.NextRunAt).time("frozenUntil", s.FrozenUntil).nonzero("restarts", int64(s.Restarts))
	if s.LastExit != nil {
		b = renderLastExit(b.name("lastExit"), s.LastExit)
	}
	if len(b) == empty {
		return b[:without]
	}
	return append(b, '}')
}

// stamp formats times in the local time of a host, offset seconds ahead of UTC. It
// caches the last text, because many hosts report within the same second.
type stamp struct {
	second int64
	offset int
	text   string
}

func (s *stamp) of(t time.Time, offset int) string {
	if second := t.Unix(); s.text == "" || second != s.second || offset != s.offset {
		s.second, s.offset = second, offset
		s.text = time.Unix(second+int64(offset), 0).UTC().Format("2006-01-02 15:04:05")
	}
	return s.text
}

// unix returns t in whole Unix seconds, 0 for the zero time.
func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}
