package pack

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// fill sets every exported field to a nonzero value, so that the test detects a field that packing
// omits.
func fill(v reflect.Value, salt int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d", salt))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(salt))
	case reflect.Float64:
		v.SetFloat(float64(salt) / 8)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), salt)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), salt+i)
		}
	case reflect.Struct:
		switch v.Interface().(type) {
		case time.Time:
			v.Set(reflect.ValueOf(time.Unix(int64(salt), 7).UTC()))
			return
		case procfleet.Host:
			v.Set(reflect.ValueOf(host(salt)))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), salt*10+i+1)
		}
	default:
		panic("fill: no rule for " + v.Type().String())
	}
}

func host(n int) procfleet.Host {
	h, err := procfleet.NewHost(procfleet.CloudArea(n), fmt.Sprintf("10.0.0.%d", n%250+1))
	if err != nil {
		panic(err)
	}
	return h
}

func TestEveryFieldOfAReportIsKept(t *testing.T) {
	t.Parallel()
	var r catalog.Report
	fill(reflect.ValueOf(&r).Elem(), 3)
	packed := string(Report(&r))
	// Values with a short form, and similar values without one.
	at := time.Date(2026, 7, 1, 12, 0, 0, 123456000, time.UTC)
	short := catalog.Report{Host: host(1), At: at, Processes: []catalog.ReportedProcess{
		{Key: "a:b", Namespace: "a", Name: "b", Status: procfleet.ProcessStatus{
			At: at, StartedAt: at.Add(-time.Hour), RegisteredAt: at.Add(time.Nanosecond), LastStartedAt: at.Add(1e8 * time.Second),
			NextRetryAt: at.AddDate(5000, 0, 0), CPU: 0.7, CPUAverage: 100.0 / 3, MemoryPercent: math.Copysign(0, -1),
		}},
		{Key: "a:c", Namespace: "a", Name: "b", Status: procfleet.ProcessStatus{
			RegisteredAt: at, LastStartedAt: at, CPU: math.Inf(1), CPUAverage: 1e300, MemoryPercent: -12.3456,
		}},
		{Key: ":"},
		{Key: "k"},
	}}
	for _, want := range []catalog.Report{r, {Host: host(1)}, short} {
		got, err := ReadReport(want.Host, string(Report(&want)))
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(procfleet.Host{})); diff != "" || err != nil {
			t.Errorf("%v\n%s", err, diff)
		}
	}
	for n := range len(packed) - 1 {
		got, err := ReadReport(r.Host, packed[:n])
		if err == nil && len(got.Processes) == len(r.Processes) {
			t.Errorf("a report cut to %d of %d bytes has all its processes", n, len(packed))
		}
	}
}
