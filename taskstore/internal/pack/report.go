package pack

import (
	"math"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

const reportVersion = 1

// Report packs a report without its host.
func Report(r *catalog.Report) []byte {
	f := fields{out: make([]byte, 0, 64+160*len(r.Processes))}
	f.out = append(f.out, reportVersion)
	f.report(r)
	return f.out
}

// ReadReport parses the output of [Report]. The texts of the report share the memory of
// data.
func ReadReport(host procfleet.Host, data string) (catalog.Report, error) {
	r := catalog.Report{Host: host}
	if data == "" || data[0] != reportVersion {
		return catalog.Report{}, errDamaged
	}
	f := fields{reading: true, in: data[1:]}
	f.report(&r)
	if f.err != nil {
		return catalog.Report{}, f.err
	}
	return r, nil
}

func (f *fields) report(r *catalog.Report) {
	text(f, &r.AgentID)
	text(f, &r.Instance)
	num(f, &r.Number)
	f.time(&r.At)
	n := len(r.Processes)
	num(f, &n)
	if f.reading {
		if n < 0 || n > len(f.in) { // damaged: each process needs at least one byte
			f.fail()
			n = 0
		}
		if n > 0 {
			r.Processes = make([]catalog.ReportedProcess, n)
		}
	}
	for i := range r.Processes {
		if f.reading && f.in == "" { // truncated: a missing process must not be read as an empty one
			f.fail()
			return
		}
		f.part(func(f *fields) { f.reported(r, i) })
	}
}

// reported writes or reads one process of a report. The encoding is compact, because
// every host frequently reports all its processes: a value that usually follows from
// another value is written only if it differs.
func (f *fields) reported(r *catalog.Report, i int) {
	p, before := &r.Processes[i], ""
	if i > 0 {
		before = r.Processes[i-1].Namespace
	}
	f.same(&p.Namespace, before)
	text(f, &p.Name)
	f.same(&p.Key, p.Namespace+":"+p.Name)
	text(f, &p.ProcName)
	text(f, &p.Desired)
	f.reportedStatus(r.At, &p.Status)
}

func (f *fields) reportedStatus(made time.Time, s *procfleet.ProcessStatus) {
	f.near(&s.At, made)
	num(f, &s.UTCOffset)
	f.bool(&s.Running)
	f.bool(&s.Supervised)
	text(f, &s.Phase)
	text(f, &s.AgentID)
	num(f, &s.PID)
	text(f, &s.Command)
	text(f, &s.Stat)
	num(f, &s.Threads)
	f.near(&s.StartedAt, made)
	num(f, &s.ElapsedMS)
	num(f, &s.UserMS)
	num(f, &s.SystemMS)
	f.decimal(&s.CPU)
	f.decimal(&s.CPUAverage)
	num(f, &s.MemoryBytes)
	f.decimal(&s.MemoryPercent)
	num(f, &s.HostFreeKB)
	text(f, &s.Version)
	text(f, &s.Health)
	f.near(&s.RegisteredAt, s.StartedAt)
	f.near(&s.LastStartedAt, s.StartedAt)
	num(f, &s.Failures)
	f.near(&s.NextRetryAt, made)
	text(f, &s.Evidence)
	f.uncommon(made, s)
}

// uncommon writes or reads the fields that are empty for most processes.
func (f *fields) uncommon(made time.Time, s *procfleet.ProcessStatus) {
	there := len(s.PIDs) > 0 || s.Instances != 0 || s.TreeCPU != 0 || s.TreeMemoryBytes != 0 ||
		!s.NextRunAt.IsZero() || !s.FrozenUntil.IsZero() || s.Restarts != 0 || s.LastExit != nil
	f.bool(&there)
	if !there {
		return
	}
	nums(f, &s.PIDs)
	num(f, &s.Instances)
	f.decimal(&s.TreeCPU)
	num(f, &s.TreeMemoryBytes)
	f.near(&s.NextRunAt, made)
	f.near(&s.FrozenUntil, made)
	num(f, &s.Restarts)
	if lastExit(f, &s.LastExit) {
		f.near(&s.LastExit.At, made)
		f.lastExit(s.LastExit)
	}
}

// same writes or reads a text that usually equals expected.
func (f *fields) same(v *string, expected string) {
	differs := *v != expected
	f.bool(&differs)
	if differs {
		text(f, v)
	} else if f.reading {
		*v = expected
	}
}

// near writes or reads a time that is usually within hours of another one. Like
// [fields.time] it preserves nanoseconds and the zero time.
func (f *fields) near(v *time.Time, other time.Time) {
	const zero, microseconds, whole = 0, 1, 2
	between := v.Round(0).Sub(other.Round(0))
	form := uint64(whole)
	switch {
	case v.IsZero():
		form = zero
	case between > -1e6*time.Hour && between < 1e6*time.Hour && between%time.Microsecond == 0:
		form = microseconds
	}
	f.uint(&form)
	switch form {
	case zero:
		if f.reading {
			*v = time.Time{}
		}
	case microseconds:
		us := between.Microseconds()
		num(f, &us)
		if f.reading {
			*v = other.Add(time.Duration(us) * time.Microsecond).UTC()
		}
	default:
		f.time(v)
	}
}

// decimal writes or reads a number that usually has few decimal places.
func (f *fields) decimal(v *float64) {
	const scale = 1e4
	scaled := math.Round(*v * scale)
	short := math.Abs(scaled) < 1<<50 && scaled/scale == *v && !math.Signbit(*v)
	f.bool(&short)
	if !short {
		f.float(v)
		return
	}
	n := int64(scaled)
	num(f, &n)
	if f.reading {
		*v = float64(n) / scale
	}
}
