package dialect

import (
	"cmp"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
)

// content is the part of a published result that describes a process. Process is present
// if the agent reported the state of the process. Value is present for every action but
// status, and for a status action without a reported state.
type content struct {
	IP      string `json:"ip,omitempty"`
	AgentID string `json:"bk_agent_id,omitempty"`
	// UTCTime is the host's local time, in spite of its name; UTCTime2 is UTC.
	UTCTime  string `json:"utctime,omitempty"`
	UTCTime2 string `json:"utctime2,omitempty"`
	Timezone *int   `json:"timezone,omitempty"` // hours east of UTC

	Value   []contentValue   `json:"value,omitempty"`
	Process []contentProcess `json:"process,omitempty"`
	Ext     *contentExt      `json:"ext,omitempty"`
}

type contentValue struct {
	FuncID     string `json:"funcID"`
	InstanceID string `json:"instanceID"`
	ProcName   string `json:"procName"`
	SetupPath  string `json:"setupPath"`
	Result     string `json:"result"`
	IsAuto     *bool  `json:"isAuto,omitempty"`
	AgentID    string `json:"bk_agent_id,omitempty"`
}

type contentProcess struct {
	ProcName string            `json:"procname"`
	Instance []contentInstance `json:"instance"`
}

type contentInstance struct {
	Cmdline       string  `json:"cmdline"`
	ProcessName   string  `json:"processName"`
	Version       string  `json:"version"`
	Health        string  `json:"health"`
	IsAuto        bool    `json:"isAuto"`
	CPUUsage      float64 `json:"cpuUsage"`
	CPUUsageAve   float64 `json:"cpuUsageAve"`
	PhyMemUsage   float64 `json:"phyMemUsage"`
	UsePhyMem     int64   `json:"usePhyMem"` // bytes
	DiskSize      int64   `json:"diskSize"`
	PID           int     `json:"pid"`
	StartTime     string  `json:"startTime"`
	Stat          string  `json:"stat"`
	UTime         string  `json:"utime"` // seconds
	STime         string  `json:"stime"` // seconds
	FreeVMem      string  `json:"freeVMem"`
	ThreadCount   int     `json:"threadCount"`
	ElapsedTime   int64   `json:"elapsedTime"` // seconds
	RegisterTime  int64   `json:"register_time"`
	LastStartTime int64   `json:"last_start_time"`
	ReportTime    int64   `json:"report_time"`
}

// contentExt has the data for which the published shape has no member.
type contentExt struct {
	Warnings    []string  `json:"warnings,omitempty"`
	State       string    `json:"state,omitempty"`
	Failures    int       `json:"failures,omitempty"`
	NextRetryAt time.Time `json:"nextRetryAt,omitzero"`
	Evidence    string    `json:"evidence,omitempty"`
	PIDs        []int     `json:"pids,omitempty"` // of all instances, if there are several
	Instances   int       `json:"instances,omitempty"`
	TreeCPU     float64   `json:"treeCpu,omitempty"` // percent of the host, with descendants
	TreeMem     int64     `json:"treeMem,omitempty"` // bytes, with descendants
	NextRunAt   time.Time `json:"nextRunAt,omitzero"`
	FrozenUntil time.Time `json:"frozenUntil,omitzero"`
	Restarts    int       `json:"restarts,omitempty"`

	LastExit *procfleet.LastExit `json:"lastExit,omitempty"`
}

// render appends the JSON of the struct.
func (c *content) render(b rendered) rendered {
	b = append(b, '{')
	b = b.given("ip", c.IP).given("bk_agent_id", c.AgentID).given("utctime", c.UTCTime).given("utctime2", c.UTCTime2)
	if c.Timezone != nil {
		b = b.number("timezone", int64(*c.Timezone))
	}
	if len(c.Value) > 0 {
		b = append(b.name("value"), '[')
		for i := range c.Value {
			b = c.Value[i].render(b.comma())
		}
		b = append(b, ']')
	}
	if len(c.Process) > 0 {
		b = append(b.name("process"), '[')
		for i := range c.Process {
			b = c.Process[i].render(b.comma())
		}
		b = append(b, ']')
	}
	if c.Ext != nil {
		b = c.Ext.render(b.name("ext"))
	}
	return append(b, '}')
}

func (v *contentValue) render(b rendered) rendered {
	b = append(b, '{')
	b = b.text("funcID", v.FuncID).text("instanceID", v.InstanceID).text("procName", v.ProcName)
	b = b.text("setupPath", v.SetupPath).text("result", v.Result)
	if v.IsAuto != nil {
		b = b.truth("isAuto", *v.IsAuto)
	}
	return append(b.given("bk_agent_id", v.AgentID), '}')
}

func (p *contentProcess) render(b rendered) rendered {
	b = append(b, '{')
	b = append(b.text("procname", p.ProcName).name("instance"), '[')
	for i := range p.Instance {
		b = p.Instance[i].render(b.comma())
	}
	return append(b, ']', '}')
}

func (i *contentInstance) render(b rendered) rendered {
	b = append(b, '{')
	b = b.text("cmdline", i.Cmdline).text("processName", i.ProcessName).text("version", i.Version).text("health", i.Health)
	b = b.truth("isAuto", i.IsAuto)
	b = b.float("cpuUsage", i.CPUUsage).float("cpuUsageAve", i.CPUUsageAve).float("phyMemUsage", i.PhyMemUsage)
	b = b.number("usePhyMem", i.UsePhyMem).number("diskSize", i.DiskSize).number("pid", int64(i.PID))
	b = b.text("startTime", i.StartTime).text("stat", i.Stat).text("utime", i.UTime).text("stime", i.STime).text("freeVMem", i.FreeVMem)
	b = b.number("threadCount", int64(i.ThreadCount)).number("elapsedTime", i.ElapsedTime)
	b = b.number("register_time", i.RegisterTime).number("last_start_time", i.LastStartTime).number("report_time", i.ReportTime)
	return append(b, '}')
}

func (e *contentExt) render(b rendered) rendered {
	b = append(b, '{')
	b = b.texts("warnings", e.Warnings).given("state", e.State).nonzero("failures", int64(e.Failures))
	b = b.time("nextRetryAt", e.NextRetryAt).given("evidence", e.Evidence)
	b = b.numbers("pids", e.PIDs).nonzero("instances", int64(e.Instances))
	b = b.floatNonzero("treeCpu", e.TreeCPU).nonzero("treeMem", e.TreeMem)
	b = b.time("nextRunAt", e.NextRunAt).time("frozenUntil", e.FrozenUntil).nonzero("restarts", int64(e.Restarts))
	if e.LastExit != nil {
		b = renderLastExit(b.name("lastExit"), e.LastExit)
	}
	return append(b, '}')
}

func (e *contentExt) empty() bool {
	return len(e.Warnings) == 0 && e.State == "" && e.Failures == 0 && e.NextRetryAt.IsZero() && e.Evidence == "" &&
		len(e.PIDs) == 0 && e.Instances == 0 && e.TreeCPU == 0 && e.TreeMem == 0 &&
		e.NextRunAt.IsZero() && e.FrozenUntil.IsZero() && e.Restarts == 0 && e.LastExit == nil
}

// describer builds contents. Each content reuses the memory of the one before, to avoid
// allocations.
type describer struct {
	content  content
	value    [1]contentValue
	process  [1]contentProcess
	instance [1]contentInstance
	ext      contentExt
	timezone int

	utc, local, started stamp
}

// describe returns the content of a finished item; message is the message of its entry.
// The content is valid until the next call.
func (d *describer) describe(it *procfleet.ItemResult, message string) *content {
	d.content = content{}
	d.extend(it)
	status := it.Result.Status
	agentID := it.Item.Target.AgentID
	if status != nil {
		if agentID == "" {
			agentID = status.AgentID
		}
		d.look(it, agentID)
	}
	if it.Item.Action != procfleet.ActionStatus || status == nil {
		v := contentValue{
			FuncID: it.Spec.FuncID, InstanceID: it.Spec.InstanceID,
			ProcName: it.Spec.ProcName, SetupPath: it.Spec.SetupPath,
			Result: message, AgentID: agentID,
		}
		if status != nil {
			v.IsAuto = &status.Supervised
		}
		d.value[0] = v
		d.content.Value = d.value[:]
	}
	return &d.content
}

// look adds the process state that the agent reported.
func (d *describer) look(it *procfleet.ItemResult, agentID string) {
	c, status := &d.content, it.Result.Status
	if !it.Item.Target.Host.IsZero() {
		c.IP = it.Item.Target.Host.Addr.String()
	}
	c.AgentID = agentID
	c.UTCTime, c.UTCTime2 = d.local.of(status.At, status.UTCOffset), d.utc.of(status.At, 0)
	d.timezone = status.UTCOffset / 3600
	c.Timezone = &d.timezone
	// Callers search the result for the name under which they manage the process.
	name := cmp.Or(it.Spec.Name, it.Spec.ProcName)
	d.instance[0] = contentInstance{
		ProcessName:   name,
		Version:       status.Version,
		Health:        status.Health,
		IsAuto:        status.Supervised,
		DiskSize:      -1,
		PID:           -1, // callers interpret 0 as a running process
		UTime:         "0",
		STime:         "0",
		FreeVMem:      "0",
		RegisterTime:  unix(status.RegisteredAt),
		LastStartTime: unix(status.LastStartedAt),
		ReportTime:    unix(status.At),
	}
	if status.Running {
		d.instance[0].running(status)
		if !status.StartedAt.IsZero() {
			d.instance[0].StartTime = d.started.of(status.StartedAt, status.UTCOffset)
		}
	}
	d.process[0] = contentProcess{ProcName: name, Instance: d.instance[:]}
	c.Process = d.process[:]
}

func (i *contentInstance) running(status *procfleet.ProcessStatus) {
	if status.PID > 0 {
		i.PID = status.PID
	}
	i.Cmdline = status.Command
	i.CPUUsage = status.CPU
	i.CPUUsageAve = status.CPUAverage
	i.PhyMemUsage = status.MemoryPercent
	i.UsePhyMem = status.MemoryBytes
	i.Stat = status.Stat
	i.UTime = strconv.FormatInt(status.UserMS/1000, 10)
	i.STime = strconv.FormatInt(status.SystemMS/1000, 10)
	i.FreeVMem = strconv.FormatInt(status.HostFreeKB, 10)
	i.ThreadCount = status.Threads
	i.ElapsedTime = status.ElapsedMS / 1000
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

// extend adds the data of contentExt, if there is any.
func (d *describer) extend(it *procfleet.ItemResult) {
	d.ext = contentExt{Warnings: it.Result.Warnings}
	if s := it.Result.Status; s != nil {
		d.ext = contentExt{
			Warnings: it.Result.Warnings, State: s.Phase, Failures: s.Failures, NextRetryAt: s.NextRetryAt, Evidence: s.Evidence,
			PIDs: s.PIDs, Instances: s.Instances, TreeCPU: s.TreeCPU, TreeMem: s.TreeMemoryBytes,
			NextRunAt: s.NextRunAt, FrozenUntil: s.FrozenUntil, Restarts: s.Restarts, LastExit: s.LastExit,
		}
	}
	if !d.ext.empty() {
		d.content.Ext = &d.ext
	}
}

// unix returns t in whole Unix seconds, 0 for the zero time.
func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}
