package dialect

import (
	"cmp"
	"encoding/json"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// gseProcInfo is one process on one host in responses of the status calls.
type gseProcInfo struct {
	Meta    gseMetaInfo `json:"meta"`
	Host    gseHostInfo `json:"host"`
	AgentID string      `json:"bk_agent_id"` // as in the request; "" if unknown
	// Flag is the state that the agent maintains: 1 running, 2 stopped, 0 none. Status
	// is the state that the agent reported: 1 running, 2 stopped, 0 unknown.
	Flag    int    `json:"flag"`
	Status  int    `json:"status"`
	IsAuto  bool   `json:"isauto"`
	Message string `json:"message"`
	PID     int    `json:"pid"` // -1 unless running
	Version string `json:"version"`
	// The times are in Unix seconds, 0 if unknown.
	RegisterTime  int64 `json:"register_time"`
	LastStartTime int64 `json:"last_start_time"`
	ReportTime    int64 `json:"report_time"`
	// The usage is in percent of the whole host.
	CPUUsage float64 `json:"cpu_usage"`
	MemUsage float64 `json:"mem_usage"`
	FD       int     `json:"fd"`   // reserved
	Disk     int     `json:"disk"` // reserved
	Net      int     `json:"net"`  // reserved
}

type gseMetaInfo struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels"` // never null
}

// metaInfo returns every label as text, because typed callers expect text, whatever
// scalar the request had.
func metaInfo(namespace, name string, labels map[string]json.RawMessage) gseMetaInfo {
	info := gseMetaInfo{Namespace: namespace, Name: name, Labels: make(map[string]string, len(labels))}
	for label, value := range labels {
		info.Labels[label] = scalarText(value)
	}
	return info
}

// scalarText returns the text of a JSON string, a number with its original digits, true
// or false, and "" for null.
func scalarText(raw json.RawMessage) string {
	text := strings.TrimSpace(string(raw))
	switch {
	case text == "null":
		return ""
	case strings.HasPrefix(text, `"`):
		var s string
		if json.Unmarshal(raw, &s) == nil {
			return s
		}
	}
	return text
}

// gseProcInfos is the data of the status calls.
type gseProcInfos struct {
	Count     *int          `json:"count,omitempty"` // of a page: number of processes on all pages
	ProcInfos []gseProcInfo `json:"proc_infos"`      // never null
}

// gseStatus returns the endpoint of a call that returns one process; write returns the
// key of a host, and supplier adds bk_supplier_id to the hosts of the response.
func gseStatus(write func(*gseHost) string, supplier bool) Endpoint {
	return ShowProcesses{
		Decode: esb(func(params *gseProcesses) (ProcessQuery, error) {
			process, err := params.Meta.process()
			if err != nil {
				return ProcessQuery{}, err
			}
			targets, err := params.asked(write)
			return ProcessQuery{Namespace: process.Namespace, Name: process.Name, Targets: targets}, err
		}),
		Encode: func(q *ProcessQuery, found []ProcessEntry, requestID string) Reply {
			data := gseProcInfos{ProcInfos: make([]gseProcInfo, 0, len(found))}
			for i := range found {
				e := &found[i]
				if e.Registration == nil && e.Reported == nil {
					continue
				}
				info := procInfo(e)
				info.Host = hostAsked(q.Targets[i], e.Target.Host, supplier)
				info.AgentID = cmp.Or(q.Targets[i].AgentID, info.AgentID)
				data.ProcInfos = append(data.ProcInfos, info)
			}
			return gseAnswer(data, requestID)
		},
	}
}

// maxSyncPage is the published maximum of page.limit, and its default.
const maxSyncPage = 1000

type gseSync struct {
	Meta *gseMeta `json:"meta"`
	Page *struct {
		Start int `json:"start"`
		Limit int `json:"limit"`
	} `json:"page"`
}

func decodeSyncStatus(params *gseSync) (ProcessPage, error) {
	if missing := cmp.Or(params.Meta.missingNamespace(), absent(params.Page == nil, "page")); missing != "" {
		return ProcessPage{}, required(missing)
	}
	if err := params.Meta.validate(); err != nil {
		return ProcessPage{}, err
	}
	switch start, limit := params.Page.Start, params.Page.Limit; {
	case start < 0:
		return ProcessPage{}, invalid("page.start", "%d is negative", start)
	case limit < 0 || limit > maxSyncPage:
		return ProcessPage{}, invalid("page.limit", "%d is out of range: 1 to %d", limit, maxSyncPage)
	}
	return ProcessPage{
		Namespace: params.Meta.Namespace, Start: params.Page.Start, Limit: cmp.Or(params.Page.Limit, maxSyncPage),
	}, nil
}

func gseSyncStatus(_ *ProcessPage, found ProcessEntries, requestID string) Reply {
	data := gseProcInfos{Count: &found.Total, ProcInfos: make([]gseProcInfo, 0, len(found.Entries))}
	for i := range found.Entries {
		entry := &found.Entries[i]
		info := procInfo(entry)
		info.Host = hostAsked(procfleet.Target{Host: entry.Host}, entry.Host, false)
		data.ProcInfos = append(data.ProcInfos, info)
	}
	return gseAnswer(data, requestID)
}

// procInfo converts an entry, except for its host.
func procInfo(e *ProcessEntry) gseProcInfo {
	info := gseProcInfo{
		Meta:       metaInfo(e.Namespace, e.Name, nil),
		AgentID:    cmp.Or(e.Target.AgentID, e.AgentID),
		PID:        -1, // callers interpret 0 as a running process
		ReportTime: unix(e.ReportedAt),
	}
	if r := e.Registration; r != nil {
		info.Meta = metaInfo(e.Namespace, e.Name, r.Spec.Labels)
		info.RegisterTime = unix(r.RegisteredAt)
	}
	if e.Reported != nil {
		info.reported(e)
	}
	info.Message = statusMessage(e)
	return info
}

// reported adds the agent's report. Without a live agent, the report's supervision
// settings remain valid, but the state of the process does not.
func (info *gseProcInfo) reported(e *ProcessEntry) {
	status := &e.Reported.Status
	switch e.Reported.Desired {
	case catalog.DesiredUp:
		info.Flag, info.IsAuto = 1, true
	case catalog.DesiredDown:
		info.Flag = 2
	case catalog.DesiredNone:
	}
	info.Version = publishedVersion(status.Version)
	info.LastStartTime = unix(status.LastStartedAt)
	if info.RegisterTime == 0 {
		info.RegisterTime = unix(status.RegisteredAt)
	}
	switch {
	case !e.Alive:
	case !status.Running:
		info.Status = 2
	default:
		info.Status, info.CPUUsage, info.MemUsage = 1, status.CPU, status.MemoryPercent
		if status.PID > 0 {
			info.PID = status.PID
		}
	}
}

// statusMessage returns the reason why the status is unknown; "" if it is known.
func statusMessage(e *ProcessEntry) string {
	switch {
	case !e.Alive && e.Reported == nil:
		return "registered; there is no live agent on this host"
	case !e.Alive:
		return "there is no live agent on this host; its last report is of " + e.ReportedAt.UTC().Format(time.RFC3339)
	case e.Reported == nil:
		return "registered; the agent of this host does not manage it"
	}
	return ""
}

var (
	wholeVersion = regexp.MustCompile(`^[A-Za-z0-9.-]+$`)
	partVersion  = regexp.MustCompile(`[A-Za-z0-9.-]*[0-9][A-Za-z0-9.-]*`)
)

// publishedVersion reduces the output of a version command to the characters that
// bk-nodeman accepts in a version: letters, digits, "." and "-". It removes blanks, as
// bk-nodeman does. If other characters remain, it returns the first word with a digit,
// or "".
func publishedVersion(text string) string {
	joined := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text)
	if wholeVersion.MatchString(joined) {
		return joined
	}
	return partVersion.FindString(text)
}
