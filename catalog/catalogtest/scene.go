package catalogtest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func host(cloud procfleet.CloudArea, n int) procfleet.Host {
	addr := netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
	return procfleet.Host{Cloud: cloud, Addr: addr}
}

func hosts(n int) []procfleet.Host {
	hs := make([]procfleet.Host, n)
	for i := range hs {
		hs[i] = host(3, i)
	}
	return hs
}

// wideHosts returns hosts in the order that the contract requires: by the number of the
// cloud area, then by the text of the address.
func wideHosts(t T) []procfleet.Host {
	t.Helper()
	var hs []procfleet.Host
	for _, text := range []string{
		"0:10.0.0.1", "0:10.0.0.10", "0:10.0.0.2", "0:9.9.9.9", "0:fd00::1", "0:fd00::1:0", "2:10.0.0.1", "2:2001:db8::1",
		"10:10.0.0.1", "300:::1", "5000000000:10.0.0.1", "9223372036854775807:10.0.0.1",
	} {
		h, err := procfleet.ParseHost(text)
		must(t, err, "parse host")
		hs = append(hs, h)
	}
	return hs
}

// wholeSpec returns a spec of process web in namespace shop with a value in every
// field.
func wholeSpec() procfleet.ProcessSpec {
	s := procfleet.DefaultSpec()
	s.Namespace, s.Name, s.ProcName = "shop", "web", "nginx: worker process"
	s.SetupPath, s.PidPath, s.LogPath = "/usr/local/nginx", "/var/run/nginx.pid", `C:\log`
	s.Account, s.Contact = "nobody", "ops"
	s.Control.Start = "./start.sh --name \"<web> & 中文\" | tee log\n"
	s.Control.Environment = map[string]string{"LANG": "zh_CN.UTF-8", "EMPTY": ""}
	s.Alive.OpTimeout, s.Alive.Crontab = procfleet.Duration(1500*time.Millisecond), "*/5 * * * *"
	s.Limits = procfleet.Limits{CPU: 0.1, Memory: 200}
	s.Labels = labels()
	return s
}

// labels returns labels with every kind of JSON value.
func labels() map[string]json.RawMessage {
	return map[string]json.RawMessage{
		"text": json.RawMessage(`"front"`), "markup": json.RawMessage(`"<a href='?x&y'> </a>"`), "empty": json.RawMessage(`""`),
		"escaped": json.RawMessage(`"\u4e2d\/\n"`), "plain": json.RawMessage(`"中文"`),
		"int": json.RawMessage(`7`), "huge": json.RawMessage(`123456789012345678901234567890`), "decimal": json.RawMessage(`1.50`),
		"exponent": json.RawMessage(`-1E+400`), "yes": json.RawMessage(`true`), "no": json.RawMessage(`false`), "null": json.RawMessage(`null`),
		"": json.RawMessage(`0`), "a.b{c}:\"": json.RawMessage(`"d"`),
	}
}

func process(h procfleet.Host, namespace, name string) catalog.Process {
	return catalog.Process{Host: h, Namespace: namespace, Name: name}
}

// processes returns one process on each of the hosts.
func processes(hs []procfleet.Host, namespace, name string) []catalog.Process {
	ps := make([]catalog.Process, len(hs))
	for i, h := range hs {
		ps[i] = process(h, namespace, name)
	}
	return ps
}

// marked returns a small spec that differs from other specs of the same process by its
// mark.
func marked(namespace, name, mark string) procfleet.ProcessSpec {
	s := procfleet.DefaultSpec()
	s.Namespace, s.Name, s.ProcName, s.Contact = namespace, name, name, mark
	return s
}

func register(ctx context.Context, t T, s catalog.Store, replace bool, ds ...catalog.Definition) [][]bool {
	t.Helper()
	existed, err := s.Register(ctx, ds, replace)
	must(t, err, "register")
	if len(existed) != len(ds) {
		t.Fatalf("register of %d definitions has %d answers", len(ds), len(existed))
	}
	for i := range ds {
		if len(existed[i]) != len(ds[i].Hosts) {
			t.Fatalf("register on %d hosts has %d answers", len(ds[i].Hosts), len(existed[i]))
		}
	}
	return existed
}

// registerOn registers a process on hosts with a marked spec, and returns for each host
// whether it was registered before.
func registerOn(ctx context.Context, t T, s catalog.Store, replace bool, namespace, name, mark string, hs ...procfleet.Host) []bool {
	t.Helper()
	return register(ctx, t, s, replace, catalog.Definition{Spec: marked(namespace, name, mark), Hosts: hs})[0]
}

func unregister(ctx context.Context, t T, s catalog.Store, ps ...catalog.Process) []bool {
	t.Helper()
	existed, err := s.Unregister(ctx, ps)
	must(t, err, "unregister")
	return existed
}

func registrations(ctx context.Context, t T, s catalog.Store, ps ...catalog.Process) []*catalog.Registration {
	t.Helper()
	rs, err := s.Registrations(ctx, ps)
	must(t, err, "registrations")
	if len(rs) != len(ps) {
		t.Fatalf("%d registrations of %d processes", len(rs), len(ps))
	}
	return rs
}

// marks returns the marks of the registered specs; "" for a process that is not
// registered.
func marks(ctx context.Context, t T, s catalog.Store, ps ...catalog.Process) []string {
	t.Helper()
	out := make([]string, len(ps))
	rs := registrations(ctx, t, s, ps...)
	for i, p := range ps {
		if rs[i] != nil {
			out[i] = rs[i].Spec.Contact
			equal(t, "process of a registration", rs[i].Process, p)
		}
	}
	return out
}

// hostWalk reads all hosts of a process in pages of limit.
func hostWalk(ctx context.Context, t T, s catalog.Store, namespace, name string, limit int) []procfleet.Host {
	t.Helper()
	var all []procfleet.Host
	after := procfleet.Host{}
	for {
		page, err := s.RegisteredHosts(ctx, namespace, name, after, limit)
		must(t, err, "registered hosts")
		if len(page) > limit {
			t.Fatalf("a page of at most %d has %d hosts", limit, len(page))
		}
		if len(page) == 0 {
			return all
		}
		all = append(all, page...)
		after = page[len(page)-1]
		if len(all) > 100_000 {
			t.Fatalf("the walk over all hosts does not end")
		}
	}
}

// epoch is the time of the first report.
var epoch = time.Date(2026, 7, 1, 12, 0, 0, 123456000, time.UTC)

// report returns the n-th report of a host.
func report(h procfleet.Host, n int, ps ...catalog.ReportedProcess) catalog.Report {
	at := epoch.Add(time.Duration(n) * time.Microsecond)
	return catalog.Report{Host: h, AgentID: "agent-" + h.String(), Instance: "i", Number: at.UnixMicro(), At: at, Processes: ps}
}

// running returns the reported state of a process that runs with the pid.
func running(namespace, name string, pid int) catalog.ReportedProcess {
	return catalog.ReportedProcess{
		Key: namespace + ":" + name, Namespace: namespace, Name: name, ProcName: "java", Desired: catalog.DesiredUp,
		Status: procfleet.ProcessStatus{At: epoch, Running: true, Supervised: true, PID: pid, Phase: "running"},
	}
}

func sendReports(ctx context.Context, t T, s catalog.Store, rs ...catalog.Report) {
	t.Helper()
	must(t, s.Report(ctx, rs), "report")
}

func reported(ctx context.Context, t T, s catalog.Store, hs ...procfleet.Host) []catalog.Report {
	t.Helper()
	rs, err := s.Reported(ctx, hs)
	must(t, err, "reported")
	if len(rs) != len(hs) {
		t.Fatalf("%d reports of %d hosts", len(rs), len(hs))
	}
	return rs
}

func entries(ctx context.Context, t T, s catalog.Store, ps ...catalog.Process) []catalog.Entry {
	t.Helper()
	es, err := s.Entries(ctx, ps)
	must(t, err, "entries")
	if len(es) != len(ps) {
		t.Fatalf("%d entries of %d processes", len(es), len(ps))
	}
	return es
}

func entryPage(ctx context.Context, t T, s catalog.Store, namespace string, start, limit int) ([]catalog.Entry, int) {
	t.Helper()
	page, total, err := s.EntryPage(ctx, namespace, start, limit)
	must(t, err, "entry page")
	if len(page) != max(0, min(limit, total-start)) {
		t.Fatalf("a page of at most %d after %d of %d has %d entries", limit, start, total, len(page))
	}
	return page, total
}

// entryWalk reads all entries of a namespace in pages of limit.
func entryWalk(ctx context.Context, t T, s catalog.Store, namespace string, limit int) []catalog.Entry {
	t.Helper()
	var all []catalog.Entry
	for {
		page, total := entryPage(ctx, t, s, namespace, len(all), limit)
		all = append(all, page...)
		if len(all) >= total {
			return all
		}
	}
}

// stand returns a short text with the process of an entry and its state.
func stand(e catalog.Entry) string {
	var known []string
	if e.Registration != nil {
		known = append(known, "registered "+e.Registration.Spec.Contact)
	}
	if e.Reported != nil {
		known = append(known, fmt.Sprintf("reported %d", e.Reported.Status.PID))
	}
	if known == nil {
		known = []string{"unknown"}
	}
	return e.Host.String() + " " + e.Namespace + " " + e.Name + ": " + strings.Join(known, ", ")
}

func stands(es []catalog.Entry) []string {
	out := make([]string, len(es))
	for i, e := range es {
		out[i] = stand(e)
	}
	return out
}

// shown checks that the pages, the single entries and the total of a namespace match
// want.
func shown(ctx context.Context, t T, s catalog.Store, namespace string, want ...string) {
	t.Helper()
	all := entryWalk(ctx, t, s, namespace, 7)
	equal(t, "entries of "+namespace, stands(all), want)
	ps := make([]catalog.Process, len(all))
	for i := range all {
		ps[i] = all[i].Process
	}
	equal(t, "entries asked for by name", entries(ctx, t, s, ps...), all)
}
