//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// Types of published fields.
const (
	aText   = "text"
	aFlag   = "true or false"
	aWhole  = "whole number"
	aNumber = "number"
	aMoment = "YYYY-MM-DD HH:MM:SS"
)

// contentFields are the members of contents, without the optional ones:
// bk_agent_id, isAuto of a value, ext.
var contentFields = struct{ status, value, process, instance map[string]string }{
	status: map[string]string{"ip": aText, "utctime": aMoment, "utctime2": aMoment, "timezone": aWhole},
	value:  map[string]string{"funcID": aText, "instanceID": aText, "procName": aText, "setupPath": aText, "result": aText},
	process: map[string]string{
		"procname": aText,
	},
	instance: map[string]string{
		"cmdline": aText, "processName": aText, "version": aText, "health": aText, "isAuto": aFlag,
		"cpuUsage": aNumber, "cpuUsageAve": aNumber, "phyMemUsage": aNumber, "usePhyMem": aWhole,
		"diskSize": aWhole, "pid": aWhole, "startTime": aText, "stat": aText, "utime": aText, "stime": aText,
		"freeVMem": aText, "threadCount": aWhole, "elapsedTime": aWhole,
		"register_time": aWhole, "last_start_time": aWhole, "report_time": aWhole,
	},
}

// contentOf decodes an object and keeps the notation of its numbers.
func contentOf(t *testing.T, content string) (object map[string]any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(content))
	d.UseNumber()
	if err := d.Decode(&object); err != nil || d.More() {
		t.Fatalf("content is %s", content)
	}
	return object
}

func number(t *testing.T, v any) int {
	t.Helper()
	n, _ := v.(json.Number)
	i, err := n.Int64()
	if err != nil {
		t.Fatalf("%v is not a whole number", v)
	}
	return int(i)
}

var dateAndTime = regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$`)

// is reports whether a value has one of the types above.
func is(v any, kind string) bool {
	switch v := v.(type) {
	case string:
		return kind == aText || kind == aMoment && dateAndTime.MatchString(v)
	case bool:
		return kind == aFlag
	case json.Number:
		_, err := v.Int64()
		return kind == aNumber || kind == aWhole && err == nil
	}
	return false
}

// wrong lists the differences of an object from its fields; the members in
// sometimes are optional.
func wrong(object map[string]any, fields, sometimes map[string]string) (problems []string) {
	for name, kind := range fields {
		if !is(object[name], kind) {
			problems = append(problems, fmt.Sprintf("%s is %v, no %s", name, object[name], kind))
		}
	}
	for name, v := range object {
		if kind, more := sometimes[name]; fields[name] == "" && (!more || kind != "" && !is(v, kind)) {
			problems = append(problems, fmt.Sprintf("%s is %v", name, v))
		}
	}
	return problems
}

// checkShape checks a content that is not empty: process for a status, and value
// for other actions, with process if the agent observed it.
func checkShape(t *testing.T, what string, content map[string]any) {
	t.Helper()
	value, _ := content["value"].([]any)
	process, _ := content["process"].([]any)
	more := map[string]string{"value": "", "process": "", "ext": "", "bk_agent_id": aText}
	fields := contentFields.status
	if len(process) == 0 {
		fields = nil
	}
	problems := wrong(content, fields, more)
	if len(value)+len(process) == 0 || len(value) > 1 || len(process) > 1 {
		problems = append(problems, fmt.Sprintf("%d value and %d process", len(value), len(process)))
	}
	for _, v := range value {
		object, _ := v.(map[string]any)
		problems = append(problems, wrong(object, contentFields.value, map[string]string{"isAuto": aFlag, "bk_agent_id": aText})...)
	}
	for _, p := range process {
		object, _ := p.(map[string]any)
		instances, _ := object["instance"].([]any)
		problems = append(problems, wrong(object, contentFields.process, map[string]string{"instance": ""})...)
		if len(instances) != 1 {
			problems = append(problems, fmt.Sprintf("%d instances", len(instances)))
			continue
		}
		one, _ := instances[0].(map[string]any)
		problems = append(problems, wrong(one, contentFields.instance, nil)...)
		if pid := number(t, one["pid"]); pid == 0 || pid < -1 {
			problems = append(problems, fmt.Sprintf("pid %d", pid))
		}
		if one["utime"] == "" || one["stime"] == "" || number(t, one["report_time"]) == 0 {
			problems = append(problems, "no utime, stime or report_time")
		}
	}
	if len(problems) > 0 {
		t.Errorf("%s: %s in %v", what, strings.Join(problems, "; "), content)
	}
}

// shapes reads a finished task with each of the result calls. All return the same
// entries; content is JSON in a string for GSE, an object for Job, and "" if the
// agent observed nothing.
func (b *gseBatch) shapes(id string) {
	b.t.Helper()
	entries := b.poll(id)
	var both map[string]struct {
		gseEntry
		OtherCode    *int    `json:"errcode"`
		OtherMessage *string `json:"errmsg"`
	}
	b.ask(http.MethodPost, "/api/c/compapi/v2/gse/get_proc_operate_result/", map[string]any{"task_id": id}, &both)
	var job struct {
		Status int
		Result map[string]jobEntry
	}
	b.ask(http.MethodPost, "/api/c/compapi/v2/job/get_proc_result/", map[string]any{"bk_biz_id": 1, "bk_gse_taskid": id}, &job)
	if job.Status != 0 || len(both) != len(entries) || len(job.Result) != len(entries) {
		b.t.Errorf("%d, %d and %d entries, and Job's status is %d", len(entries), len(both), len(job.Result), job.Status)
	}
	for key, e := range entries {
		v1, wrapped := both[key], job.Result[key]
		if v1.gseEntry != e || v1.OtherCode == nil || *v1.OtherCode != e.Code || v1.OtherMessage == nil || *v1.OtherMessage != e.Message {
			b.t.Errorf("%s is %+v by one call and %+v by the other", key, e, v1)
		}
		if wrapped.Code != e.Code || wrapped.Message != e.Message {
			b.t.Errorf("%s is %+v to GSE and %+v to Job", key, e, wrapped)
		}
		if e.Content == "" {
			if string(wrapped.Content) != `""` || e.Code != 832 && e.Code != 117 {
				b.t.Errorf("%s: %d has content %q to GSE and %s to Job", key, e.Code, e.Content, wrapped.Content)
			}
			continue
		}
		content := contentOf(b.t, e.Content)
		if !reflect.DeepEqual(content, contentOf(b.t, string(wrapped.Content))) {
			b.t.Errorf("%s has content %s to GSE and %s to Job", key, e.Content, wrapped.Content)
		}
		checkShape(b.t, key, content)
	}
}
