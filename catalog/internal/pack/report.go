package pack

import (
	"math"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/packing"
)

// Report packs a report without its host.
func Report(r *catalog.Report) []byte {
	f := packing.Writing(64 + 160*len(r.Processes))
	reportFields(f, r)
	return f.Out
}

// ReadReport parses the output of [Report]. The texts of the report share the memory of
// data.
func ReadReport(host procfleet.Host, data string) (catalog.Report, error) {
	r := catalog.Report{Host: host}
	f, err := packing.Reading(data)
	if err != nil {
		return catalog.Report{}, err
	}
	reportFields(f, &r)
	if f.Err != nil {
		return catalog.Report{}, f.Err
	}
	return r, nil
}

func reportFields(f *packing.Fields, r *catalog.Report) {
	packing.Text(f, &r.AgentID)
	packing.Text(f, &r.Instance)
	packing.Num(f, &r.Number)
	f.Time(&r.At)
	n := len(r.Processes)
	packing.Num(f, &n)
	if f.Reading {
		if n < 0 || n > len(f.In) { // damaged: each process needs at least one byte
			f.Fail()
			n = 0
		}
		if n > 0 {
			r.Processes = make([]catalog.ReportedProcess, n)
		}
	}
	for i := range r.Processes {
		if f.Reading && f.In == "" { // truncated: a missing process must not be read as an empty one
			f.Fail()
			return
		}
		f.Part(func(f *packing.Fields) { reportedProcess(f, r, i) })
	}
}

// reportedProcess writes or reads one process of a report. The encoding is compact, because
// every host frequently reports all its processes: a value that usually follows from
// another value is written only if it differs.
func reportedProcess(f *packing.Fields, r *catalog.Report, i int) {
	p, before := &r.Processes[i], ""
	if i > 0 {
		before = r.Processes[i-1].Namespace
	}
	same(f, &p.Namespace, before)
	packing.Text(f, &p.Name)
	same(f, &p.Key, p.Namespace+":"+p.Name)
	packing.Text(f, &p.ProcName)
	packing.Text(f, &p.Desired)
	reportedStatus(f, r.At, &p.Status)
}

func reportedStatus(f *packing.Fields, made time.Time, s *procfleet.ProcessStatus) {
	near(f, &s.At, made)
	packing.Num(f, &s.UTCOffset)
	f.Bool(&s.Running)
	f.Bool(&s.Supervised)
	packing.Text(f, &s.Phase)
	packing.Text(f, &s.AgentID)
	packing.Num(f, &s.PID)
	packing.Text(f, &s.Command)
	packing.Text(f, &s.Stat)
	packing.Num(f, &s.Threads)
	near(f, &s.StartedAt, made)
	packing.Num(f, &s.ElapsedMS)
	packing.Num(f, &s.UserMS)
	packing.Num(f, &s.SystemMS)
	decimal(f, &s.CPU)
	decimal(f, &s.CPUAverage)
	packing.Num(f, &s.MemoryBytes)
	decimal(f, &s.MemoryPercent)
	packing.Num(f, &s.HostFreeKB)
	packing.Text(f, &s.Version)
	packing.Text(f, &s.Health)
	near(f, &s.RegisteredAt, s.StartedAt)
	near(f, &s.LastStartedAt, s.StartedAt)
	packing.Num(f, &s.Failures)
	near(f, &s.NextRetryAt, made)
	packing.Text(f, &s.Evidence)
	uncommon(f, made, s)
}

// uncommon writes or reads the fields that are empty for most processes.
func uncommon(f *packing.Fields, made time.Time, s *procfleet.ProcessStatus) {
	there := len(s.PIDs) > 0 || s.Instances != 0 || s.TreeCPU != 0 || s.TreeMemoryBytes != 0 ||
		!s.NextRunAt.IsZero() || !s.FrozenUntil.IsZero() || s.Restarts != 0 || s.LastExit != nil
	f.Bool(&there)
	if !there {
		return
	}
	packing.Nums(f, &s.PIDs)
	packing.Num(f, &s.Instances)
	decimal(f, &s.TreeCPU)
	packing.Num(f, &s.TreeMemoryBytes)
	near(f, &s.NextRunAt, made)
	near(f, &s.FrozenUntil, made)
	packing.Num(f, &s.Restarts)
	if packing.HasLastExit(f, &s.LastExit) {
		near(f, &s.LastExit.At, made)
		packing.LastExit(f, s.LastExit)
	}
}

// same writes or reads a text that usually equals expected.
func same(f *packing.Fields, v *string, expected string) {
	differs := *v != expected
	f.Bool(&differs)
	if differs {
		packing.Text(f, v)
	} else if f.Reading {
		*v = expected
	}
}

// near writes or reads a time that is usually within hours of another one. Like
// [packing.Fields.Time] it preserves nanoseconds and the zero time.
func near(f *packing.Fields, v *time.Time, other time.Time) {
	const zero, microseconds, whole = 0, 1, 2
	between := v.Round(0).Sub(other.Round(0))
	form := uint64(whole)
	switch {
	case v.IsZero():
		form = zero
	case between > -1e6*time.Hour && between < 1e6*time.Hour && between%time.Microsecond == 0:
		form = microseconds
	}
	f.Uint(&form)
	switch form {
	case zero:
		if f.Reading {
			*v = time.Time{}
		}
	case microseconds:
		us := between.Microseconds()
		packing.Num(f, &us)
		if f.Reading {
			*v = other.Add(time.Duration(us) * time.Microsecond).UTC()
		}
	default:
		f.Time(v)
	}
}

// decimal writes or reads a number that usually has few decimal places.
func decimal(f *packing.Fields, v *float64) {
	const scale = 1e4
	scaled := math.Round(*v * scale)
	short := math.Abs(scaled) < 1<<50 && scaled/scale == *v && !math.Signbit(*v)
	f.Bool(&short)
	if !short {
		f.Float(v)
		return
	}
	n := int64(scaled)
	packing.Num(f, &n)
	if f.Reading {
		*v = float64(n) / scale
	}
}
