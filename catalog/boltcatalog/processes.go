package boltcatalog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/pack"
	"github.com/procfleet/procfleet/internal/boltdb"
)

// standing records whether a process is registered, whether the last report of its host
// names it, or both. A process with neither has no key.
type standing struct {
	reported     bool
	spec         []byte // key in bucketSpecs; nil if the process is not registered
	registeredAt time.Time
	askedAt      time.Time // when the spec was requested
}

func (st standing) registered() bool { return st.spec != nil }

// bytes encodes a standing: whether it is reported, then, if it is registered, the
// times and the spec.
func (st standing) bytes() []byte {
	out := []byte{0}
	if st.reported {
		out[0] = 1
	}
	if st.registered() {
		for _, at := range []time.Time{st.registeredAt, st.askedAt} {
			out = append(out, boltdb.Number8(uint64(at.UnixMicro()))...)
		}
		out = append(out, st.spec...)
	}
	return out
}

func readStanding(raw []byte) standing {
	if len(raw) == 0 {
		return standing{}
	}
	st := standing{reported: raw[0] == 1}
	const specAt = 1 + 8 + 8
	if len(raw) > specAt {
		st.registeredAt = time.UnixMicro(int64(binary.BigEndian.Uint64(raw[1:]))).UTC()
		st.askedAt = time.UnixMicro(int64(binary.BigEndian.Uint64(raw[1+8:]))).UTC()
		st.spec = bytes.Clone(raw[specAt:])
	}
	return st
}

// names returns texts as the beginning of a key. A NUL, which names do not contain,
// ends each text, so that no result is a prefix of another.
func names(texts ...string) []byte {
	var key []byte
	for _, text := range texts {
		key = append(append(key, text...), 0)
	}
	return key
}

func processKey(p catalog.Process) []byte {
	return append(names(p.Namespace, p.Name), boltdb.HostKey(p.Host)...)
}

// standing returns the standing of a process, or the zero standing if it is
// neither registered nor reported.
func (t *tx) standing(p catalog.Process) standing {
	if p.Validate() != nil {
		return standing{}
	}
	return readStanding(t.Bucket(bucketProcesses).Get(processKey(p)))
}

// setStanding changes the standing under a key and returns the previous one.
func (t *tx) setStanding(key []byte, change func(st *standing)) (before standing, err error) {
	b := t.Bucket(bucketProcesses)
	raw := b.Get(key)
	before = readStanding(raw)
	st := before
	change(&st)
	after := st.bytes()
	switch {
	case bytes.Equal(raw, after):
		return before, nil
	case !st.reported && !st.registered():
		return before, b.Delete(key)
	}
	return before, b.Put(key, after)
}

// uses maps the key of a spec to the change in the number of its registrations, so that
// a spec of 10,000 hosts is written and counted once.
type uses map[string]int

// settle writes the counts. It stores new specs, whose packed form is in packed, and
// removes specs without registrations.
func (u uses) settle(t *tx, packed map[string][]byte) error {
	b := t.Bucket(bucketSpecs)
	for key, more := range u {
		raw := b.Get([]byte(key))
		count, spec := 0, packed[key]
		if raw != nil {
			count, spec = int(binary.BigEndian.Uint64(raw)), raw[8:]
		}
		var err error
		switch count += more; {
		case more == 0: // the number of registrations is unchanged
		case count < 0 || spec == nil:
			err = fmt.Errorf("specs %x: %d registrations, and it is there: %v", key, count, raw != nil)
		case count == 0:
			err = b.Delete([]byte(key))
		default:
			err = b.Put([]byte(key), append(boltdb.Number8(uint64(count)), spec...))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// catalogReader builds entries. It reads each spec and report once.
type catalogReader struct {
	t       *tx
	specs   map[string]procfleet.ProcessSpec
	reports map[procfleet.Host]*hostReport
}

// hostReport is a report with its processes that are entries.
type hostReport struct {
	catalog.Report
	named map[[2]string]int
}

func (t *tx) catalog() *catalogReader {
	return &catalogReader{t: t, specs: map[string]procfleet.ProcessSpec{}, reports: map[procfleet.Host]*hostReport{}}
}

func (r *catalogReader) registration(p catalog.Process, st standing) (*catalog.Registration, error) {
	if !st.registered() {
		return nil, nil
	}
	spec, read := r.specs[string(st.spec)]
	if !read {
		raw := r.t.Bucket(bucketSpecs).Get(st.spec)
		if len(raw) < 8 {
			return nil, fmt.Errorf("specs %x is missing", st.spec)
		}
		var err error
		if spec, err = pack.ReadSpec(raw[8:]); err != nil {
			return nil, err
		}
		r.specs[string(st.spec)] = spec
	}
	return &catalog.Registration{Process: p, Spec: spec, RegisteredAt: st.registeredAt}, nil
}

func (r *catalogReader) report(h procfleet.Host) (*hostReport, error) {
	if found := r.reports[h]; found != nil {
		return found, nil
	}
	report, err := r.t.report(h, boltdb.HostKey(h))
	if err != nil {
		return nil, err
	}
	found := &hostReport{Report: report, named: map[[2]string]int{}}
	for i := range report.Processes {
		found.named[[2]string{report.Processes[i].Namespace, report.Processes[i].Name}] = i
	}
	r.reports[h] = found
	return found, nil
}

func (r *catalogReader) entry(p catalog.Process, st standing) (catalog.Entry, error) {
	e := catalog.Entry{Process: p}
	var err error
	if e.Registration, err = r.registration(p, st); err != nil || !st.reported {
		return e, err
	}
	report, err := r.report(p.Host)
	if err != nil {
		return e, err
	}
	i, ok := report.named[[2]string{p.Namespace, p.Name}]
	if !ok {
		return e, fmt.Errorf("%s is not in the report of %s", p.Name, p.Host)
	}
	process := report.Processes[i]
	e.Reported, e.ReportedAt, e.AgentID = &process, report.At, report.AgentID
	return e, nil
}
