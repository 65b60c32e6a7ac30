package pack

import (
	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

const reportVersion = 1

// Report packs what an agent reported, without its host.
func Report(r *catalog.Report) []byte {
	f := fields{out: make([]byte, 0, 64+160*len(r.Processes))}
	f.out = append(f.out, reportVersion)
	f.report(r)
	return f.out
}

// ReadReport reads what [Report] packed; the texts of the report share its
// memory.
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
		if n < 0 || n > len(f.in) { // each takes a byte at least
			f.fail()
			n = 0
		}
		if n > 0 {
			r.Processes = make([]catalog.ReportedProcess, n)
		}
	}
	for i := range r.Processes {
		if f.reading && f.in == "" { // cut short: a process that is missing is not an empty one
			f.fail()
			return
		}
		f.part(func(f *fields) { f.reported(&r.Processes[i]) })
	}
}

func (f *fields) reported(p *catalog.ReportedProcess) {
	text(f, &p.Key)
	text(f, &p.Namespace)
	text(f, &p.Name)
	text(f, &p.ProcName)
	text(f, &p.Desired)
	f.status(&p.Status)
}
