package boltcatalog

import (
	"bytes"
	"context"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/pack"
	"github.com/procfleet/procfleet/internal/boltdb"
)

// packedReport is a report in stored form.
type packedReport struct {
	host    procfleet.Host
	number  int64
	raw     []byte
	entries []catalog.Process
}

// packReport packs a report. Call it outside the transaction, which delays all other
// writers.
func packReport(r *catalog.Report) packedReport {
	return packedReport{host: r.Host, number: r.Number, raw: pack.Report(r), entries: entriesOf(r)}
}

// entriesOf returns the processes in a report that are entries, with repetitions.
func entriesOf(r *catalog.Report) []catalog.Process {
	ps := make([]catalog.Process, 0, len(r.Processes))
	for i := range r.Processes {
		p := catalog.Process{Host: r.Host, Namespace: r.Processes[i].Namespace, Name: r.Processes[i].Name}
		if p.Validate() == nil {
			ps = append(ps, p)
		}
	}
	return ps
}

// Report stores reports. It ignores a report without a host.
func (s *Catalog) Report(ctx context.Context, reports []catalog.Report) error {
	packed := make([]packedReport, 0, len(reports))
	for i := range reports {
		if !reports[i].Host.IsZero() {
			packed = append(packed, packReport(&reports[i]))
		}
	}
	return change(ctx, s, func(t *tx) error {
		for _, r := range packed {
			if err := t.takeReport(r); err != nil {
				return err
			}
		}
		return nil
	})
}

// takeReport stores a report if it is newer than the stored one. It updates the index
// only if the two reports name different processes, which is rare.
func (t *tx) takeReport(r packedReport) error {
	key := boltdb.HostKey(r.host)
	old, err := t.report(r.host, key)
	if err != nil {
		return err
	}
	if !old.Host.IsZero() && r.number <= old.Number {
		return nil
	}
	if before := entriesOf(&old); !slices.Equal(before, r.entries) {
		if err := t.setReported(before, false); err != nil {
			return err
		}
		if err := t.setReported(r.entries, true); err != nil {
			return err
		}
	}
	return t.Bucket(bucketReports).Put(key, r.raw)
}

func (t *tx) setReported(ps []catalog.Process, reported bool) error {
	for _, p := range ps {
		if _, err := t.setStanding(processKey(p), func(st *standing) { st.reported = reported }); err != nil {
			return err
		}
	}
	return nil
}

// report returns the last report of a host; the zero Report if the host never reported.
func (t *tx) report(h procfleet.Host, key []byte) (catalog.Report, error) {
	raw := t.Bucket(bucketReports).Get(key)
	if raw == nil {
		return catalog.Report{}, nil
	}
	return pack.ReadReport(h, string(raw))
}

// ForgetHost removes the report of a host. Registered processes remain in the index. key
// is the host's [boltdb.HostKey].
func ForgetHost(b *boltdb.Tx, key []byte) error {
	t := &tx{b}
	host, err := boltdb.ReadHostKey(key)
	if err != nil {
		return err
	}
	report, err := t.report(host, key)
	if err != nil || report.Host.IsZero() {
		return err
	}
	if err := t.setReported(entriesOf(&report), false); err != nil {
		return err
	}
	return t.Bucket(bucketReports).Delete(key)
}

// Reported returns the last report of each host, in order.
func (s *Catalog) Reported(ctx context.Context, hosts []procfleet.Host) ([]catalog.Report, error) {
	return view(ctx, s, func(t *tx) ([]catalog.Report, error) {
		out := make([]catalog.Report, len(hosts))
		for i, h := range hosts {
			var err error
			if out[i], err = t.report(h, boltdb.HostKey(h)); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
}

// Entries returns the entry of each process, in order.
func (s *Catalog) Entries(ctx context.Context, ps []catalog.Process) ([]catalog.Entry, error) {
	return view(ctx, s, func(t *tx) ([]catalog.Entry, error) {
		out, r := make([]catalog.Entry, len(ps)), t.catalog()
		for i, p := range ps {
			var err error
			if out[i], err = r.entry(p, t.standing(p)); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
}

// EntryPage returns a page of the entries of a namespace, sorted by key, and their
// total. It counts the keys of the namespace on each call, because a stored counter
// could drift.
func (s *Catalog) EntryPage(ctx context.Context, namespace string, start, limit int) ([]catalog.Entry, int, error) {
	if !catalog.ValidName(namespace) {
		return nil, 0, ctx.Err()
	}
	type page struct {
		entries []catalog.Entry
		total   int
	}
	p, err := view(ctx, s, func(t *tx) (page, error) {
		var p page
		prefix, r := names(namespace), t.catalog()
		c := t.Bucket(bucketProcesses).Cursor()
		for key, raw := c.Seek(prefix); bytes.HasPrefix(key, prefix); key, raw = c.Next() {
			if p.total++; p.total <= start || len(p.entries) >= limit {
				continue
			}
			name, host, _ := bytes.Cut(key[len(prefix):], []byte{0})
			h, err := boltdb.ReadHostKey(host)
			if err != nil {
				return page{}, err
			}
			e, err := r.entry(catalog.Process{Host: h, Namespace: namespace, Name: string(name)}, readStanding(raw))
			if err != nil {
				return page{}, err
			}
			p.entries = append(p.entries, e)
		}
		return p, nil
	})
	return p.entries, p.total, err
}

// purgeReports passes the hosts of reports to [Options.RememberHost], beginning at a key:
// some hosts never announced themselves. It returns the key at which to continue; nil
// after the last report.
func (s *Catalog) purgeReports(t *boltdb.Tx, from []byte) ([]byte, error) {
	if s.opt.RememberHost == nil {
		return nil, nil
	}
	c := t.Bucket(bucketReports).Cursor()
	looked := 0
	key, _ := c.Seek(from)
	for ; key != nil && looked < boltdb.PurgeKeys; key, _ = c.Next() {
		looked++
		host, err := boltdb.ReadHostKey(key)
		if err != nil {
			return nil, err
		}
		if err := s.opt.RememberHost(t, host); err != nil {
			return nil, err
		}
	}
	return bytes.Clone(key), nil
}
