package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/procfleet/procfleet"

// allowed contains, for every package, the packages of this module that its non-test code may import.
// "" is the root package, the vocabulary.
var allowed = map[string][]string{
	"":           {},
	"agentproto": {},
	"label":      {},
	// For programs of others: the standard library and the vocabulary.
	"api/v1": {""},
	"client": {"", "api/v1"},

	// The task store does not depend on the catalog. Package internal/stores combines them.
	"taskstore":               {""},
	"taskstore/internal/pack": {"", "taskstore", "internal/packing"},
	"taskstore/storetest":     {"", "taskstore", "taskstore/internal/pack"},
	"taskstore/boltstore":     {"", "taskstore", "taskstore/internal/pack", "internal/boltdb"},
	"taskstore/redisstore":    {"", "taskstore", "taskstore/internal/pack", "internal/packing", "internal/redisconn"},

	"catalog":                    {"", "label", "internal/cronrule"},
	"catalog/internal/pack":      {"", "catalog", "internal/packing"},
	"catalog/internal/recent":    {"catalog"},
	"catalog/internal/templates": {"", "catalog"},
	"catalog/catalogtest":        {"", "catalog", "taskstore", "taskstore/storetest"},
	"catalog/boltcatalog":        {"", "catalog", "catalog/internal/pack", "catalog/internal/recent", "catalog/internal/templates", "internal/boltdb"},
	"catalog/rediscatalog":       {"", "catalog", "catalog/internal/pack", "catalog/internal/recent", "catalog/internal/templates", "taskstore", "internal/redisconn"},

	// The console knows the API and nothing behind it.
	"web": {"", "api/v1", "client", "internal/plaintext"},

	"dispatcher/apps":                {"", "internal/datafile"},
	"dispatcher/auth":                {"", "dispatcher/apps", "dispatcher/dialect", "taskstore", "internal/peercred", "internal/tlsfiles"},
	"dispatcher/dialect":             {"", "api/v1", "catalog", "internal/plaintext", "internal/spelling", "label"},
	"dispatcher/dialect/dialecttest": {},
	"dispatcher/natsintake":          {"internal/bus", "taskstore"},
	"dispatcher/webhook":             {"catalog", "internal/bus", "internal/destination", "internal/tlsfiles"},
	"dispatcher/openapi":             {"", "api/v1", "dispatcher/dialect"},
	"dispatcher/openapi/openapitest": {},
	"dispatcher":                     {"", "api/v1", "catalog", "dispatcher/apps", "dispatcher/auth", "dispatcher/dialect", "dispatcher/natsintake", "dispatcher/openapi", "dispatcher/webhook", "taskstore", "internal/audit", "internal/bus", "internal/destination", "internal/fleetkey", "internal/invalid", "internal/loopback", "internal/peercred", "internal/policycache", "internal/tlsfiles", "internal/tracecontext", "internal/undo", "label", "web"},
	"worker/storecall":               {"", "taskstore"},
	"worker/metrics":                 {"", "agentproto", "taskstore", "internal/bus", "internal/fleetkey", "worker/storecall"},
	"worker/agentlink":               {"", "agentproto", "internal/bus", "internal/fleetkey", "worker/metrics", "worker/storecall"},
	"worker/hosts":                   {"", "agentproto", "catalog", "taskstore", "internal/bus", "internal/fleetkey", "worker/agentlink", "worker/metrics", "label"},
	"worker/notify":                  {"", "taskstore", "internal/audit", "internal/bus", "internal/destination", "internal/tlsfiles", "internal/tracecontext", "worker/metrics", "worker/storecall"},
	"worker/collect":                 {"", "agentproto", "taskstore", "internal/bus", "internal/fleetkey", "internal/tracecontext", "worker/agentlink", "worker/metrics", "worker/notify", "worker/storecall"},
	"worker/deliver":                 {"", "agentproto", "taskstore", "internal/bus", "internal/fleetkey", "internal/tracecontext", "worker/agentlink", "worker/collect", "worker/metrics", "worker/storecall"},
	"worker/release":                 {"", "catalog", "taskstore", "internal/audit", "internal/bus", "internal/policycache", "internal/undo", "worker/agentlink"},
	"worker/sweep":                   {"", "agentproto", "catalog", "taskstore", "internal/audit", "internal/bus", "internal/fleetkey", "internal/tracecontext", "internal/undo", "worker/agentlink", "worker/collect", "worker/metrics", "worker/notify", "worker/release", "worker/storecall"},
	"worker":                         {"", "catalog", "taskstore", "internal/audit", "internal/bus", "internal/destination", "internal/fleetkey", "internal/invalid", "internal/tlsfiles", "internal/tracecontext", "worker/agentlink", "worker/collect", "worker/deliver", "worker/hosts", "worker/metrics", "worker/notify", "worker/release", "worker/storecall", "worker/sweep"},

	"agent/proc":      {},
	"agent/limits":    {},
	"agent/supervise": {"internal/cronrule"},
	"agent/journal":   {"agentproto", "internal/datafile"},
	"agent/local":     {"agentproto"},
	"agent/hostcheck": {"agent/proc"},
	// What a spec means, how one piece of work on its process is carried out, and
	// the engine that decides which.
	"agent/operate/procspec": {"agentproto", "agent/proc", "agent/supervise"},
	"agent/operate/procop":   {"agentproto", "agent/journal", "agent/operate/procspec", "agent/proc", "agent/supervise"},
	"agent/operate":          {"agentproto", "agent/local", "agent/journal", "agent/limits", "agent/operate/procop", "agent/operate/procspec", "agent/proc", "agent/supervise"},
	"agent":                  {"agentproto", "agent/hostcheck", "agent/journal", "agent/local", "agent/operate", "agent/proc", "internal/datafile", "internal/fleetkey", "internal/invalid", "internal/natsconn", "internal/tracecontext", "label"},

	"internal/archtest":          {},
	"internal/audit":             {"", "internal/datafile"},
	"internal/boltdb":            {"", "internal/packing", "taskstore"},
	"internal/undo":              {"", "catalog", "taskstore"},
	"internal/policycache":       {"catalog"},
	"internal/bus":               {"", "agentproto", "internal/audit", "internal/fleetkey", "internal/tracecontext"},
	"internal/crashpoint":        {},
	"internal/cronrule":          {},
	"internal/datafile":          {},
	"internal/destination":       {},
	"internal/fleetkey":          {"internal/datafile"},
	"internal/lifecycle":         {},
	"internal/invalid":           {},
	"internal/loopback":          {},
	"internal/peercred":          {},
	"internal/packing":           {""},
	"internal/plaintext":         {},
	"internal/natsconn":          {"internal/invalid", "internal/loopback", "internal/tlsfiles"},
	"internal/redisconn":         {"", "taskstore", "internal/invalid", "internal/packing", "internal/tlsfiles"},
	"internal/spelling":          {},
	"internal/stores":            {"", "catalog", "catalog/boltcatalog", "catalog/rediscatalog", "taskstore", "taskstore/boltstore", "taskstore/redisstore", "internal/boltdb", "internal/redisconn", "internal/tracecontext"},
	"internal/natsauth":          {"agentproto", "internal/datafile"},
	"internal/natsembed":         {"internal/natsauth"},
	"internal/tlsfiles":          {"internal/datafile", "internal/invalid"},
	"internal/telemetry":         {"internal/invalid", "internal/tlsfiles"},
	"internal/telemetry/logging": {"internal/invalid", "internal/plaintext"},
	"internal/telemetry/metrics": {},
	"internal/tracecontext":      {},
	"internal/testenv":           {"internal/bus", "internal/fleetkey", "internal/natsauth", "internal/natsconn", "internal/natsembed"},
	"internal/testenv/redistest": {"internal/testenv"},

	"internal/testenv/tlstest":        {},
	"internal/testenv/agenttest":      {"agentproto", "internal/testenv"},
	"internal/testenv/agenttest/demo": {},
	"test/faults/matrix":              {"test/internal/page"},
	"test/cluster/check":              {"", "client"}, // knows the API and nothing behind it
	"test/internal/images":            {"internal/testenv", "internal/testenv/redistest"},
	"test/internal/page":              {},
	"test/internal/slow":              {"test/internal/page"},
	"test/compose":                    {},
	"test/cluster":                    {},
	"test/simulation":                 {},
	"test/cluster/fleet":              {"internal/testenv", "internal/testenv/tlstest", "test/internal/images"},

	// The commands choose the implementations and may import everything except
	// packages for tests.
	"cmd/procfleet":           {everything},
	"cmd/procfleet-bench":     {"", "cmd/internal/bench", "cmd/internal/command", "cmd/internal/connflags", "cmd/internal/daemon", "cmd/internal/settings", "cmd/internal/simulate", "cmd/internal/tlsflags", "internal/natsauth", "internal/natsembed"},
	"cmd/procfleet-agent":     {"cmd/internal/agentcmd", "cmd/internal/command", "cmd/internal/daemon", "cmd/internal/settings"},
	"cmd/internal/agentcmd":   {"agentproto", "agent", "agent/hostcheck", "agent/local", "agent/operate", "cmd/internal/command", "cmd/internal/daemon", "cmd/internal/settings", "cmd/internal/tlsflags", "internal/crashpoint", "internal/fleetkey", "internal/natsconn", "label"},
	"cmd/internal/command":    {"cmd/internal/settings", "internal/lifecycle", "internal/plaintext"},
	"cmd/internal/connflags":  {"cmd/internal/tlsflags", "internal/fleetkey", "internal/natsauth"},
	"cmd/internal/daemon":     {"cmd/internal/command", "cmd/internal/settings", "cmd/internal/tlsflags", "internal/invalid", "internal/loopback", "internal/plaintext", "internal/telemetry/logging", "internal/telemetry/metrics", "internal/tlsfiles"},
	"cmd/internal/demo":       {"", "client"},
	"cmd/internal/specimport": {""},
	"cmd/internal/bench":      {"", "catalog", "agent/local", "agent/proc", "agentproto", "cmd/internal/simulate", "internal/bus", "cmd/internal/tlsflags", "internal/fleetkey", "internal/natsauth", "internal/natsconn", "internal/redisconn", "internal/stores", "internal/tlsfiles", "taskstore", "taskstore/redisstore"},
	"cmd/internal/settings":   {"internal/datafile", "internal/invalid", "internal/spelling"},
	"cmd/internal/simulate":   {"agentproto", "internal/fleetkey", "internal/natsauth", "internal/natsconn", "internal/tlsfiles"},
	"cmd/internal/tlsflags":   {"cmd/internal/settings", "internal/invalid", "internal/tlsfiles"},
}

const everything = "*"

// forTests may be imported by test code alone, and by each other.
var forTests = []string{"catalog/catalogtest", "dispatcher/dialect/dialecttest", "dispatcher/openapi/openapitest", "taskstore/storetest", "internal/testenv", "internal/testenv/redistest", "internal/testenv/agenttest", "internal/testenv/tlstest", "test/internal/images", "test/cluster/fleet"}

// thirdParty contains, for each library, the packages that may import it directly; "cmd/..." is
// every package under cmd.
var thirdParty = map[string][]string{
	// As the first process of a container the agent reaps processes that it did not start.
	// So all code of the agent must start programs through agent/proc.
	"os/exec":                               {"agent/proc", "cmd/internal/bench", "internal/testenv/...", "test/..."},
	"github.com/redis/go-redis":             {"catalog/rediscatalog", "taskstore/redisstore", "internal/redisconn", "internal/testenv/redistest", "cmd/internal/bench"},
	"go.etcd.io/bbolt":                      {"internal/boltdb"},
	"github.com/santhosh-tekuri/jsonschema": {"dispatcher/openapi/openapitest"},
	"github.com/nats-io/nats-server":        {"internal/natsembed"},
	"github.com/nats-io/jwt":                {"internal/natsauth", "internal/natsembed"},
	"github.com/spf13/cobra":                {"cmd/..."},
	"golang.org/x/net/html":                 {"dispatcher/openapi"},
	"golang.org/x/tools":                    {"dispatcher/dialect/dialecttest"},
	// A program that executes templates keeps every exported method: 10 MiB of procfleet.
	"text/template":                        nil,
	"html/template":                        {"web"},
	"github.com/chromedp":                  {"test/e2e"},
	"github.com/robfig/cron":               {"agent/supervise", "catalog", "internal/cronrule"},
	"github.com/standard-webhooks":         {"dispatcher/webhook", "test/cluster/check"},
	"github.com/prometheus":                {"internal/telemetry/metrics"},
	"go.opentelemetry.io/otel/sdk":         {"internal/telemetry/..."},
	"go.opentelemetry.io/otel/exporters":   {"internal/telemetry/..."},
	"github.com/nats-io/nats.go":           {"agent", "worker", "worker/agentlink", "worker/collect", "worker/deliver", "worker/hosts", "internal/bus", "internal/natsconn", "internal/tracecontext", "internal/testenv", "internal/testenv/agenttest", "test/cluster/check", "cmd/..."},
	"github.com/nats-io/nats.go/jetstream": {"worker/agentlink", "worker/collect", "worker/deliver", "internal/bus", "internal/testenv", "test/cluster/check", "cmd/procfleet", "cmd/internal/bench"},
}

// implementations contains the packages that may import an implementation of a store: the
// package that joins the stores, and tools that measure one. Everything else declares
// the interfaces that it needs.
var implementations = map[string][]string{
	"catalog/boltcatalog":  {"internal/stores"},
	"catalog/rediscatalog": {"internal/stores"},
	"taskstore/boltstore":  {"internal/stores"},
	"taskstore/redisstore": {"internal/stores", "cmd/internal/bench"},
	"internal/boltdb":      {"catalog/boltcatalog", "taskstore/boltstore", "internal/stores", "cmd/procfleet"},
	"internal/redisconn":   {"catalog/rediscatalog", "taskstore/redisstore", "internal/stores", "cmd/procfleet", "cmd/internal/bench"},
	"internal/stores":      {"cmd/procfleet", "cmd/internal/bench"},
}

// catalogUsers lists the packages that may import the contract of the catalog, besides
// the catalog itself: the CMDB shape, what registers and selects processes, and what
// stores reports of agents.
var catalogUsers = []string{"dispatcher", "dispatcher/dialect", "dispatcher/webhook", "internal/policycache", "internal/undo", "worker/hosts", "worker/release", "worker/sweep", "internal/stores", "cmd/procfleet", "cmd/internal/bench"}

// absent lists what a binary must not link: the agent runs on every host, and
// a first build of procfleet compiles everything that it links.
var absent = map[string][]string{
	"cmd/procfleet-agent": {
		"github.com/nats-io/nats.go/jetstream", // agents have no right on streams
		"github.com/nats-io/jwt", "github.com/redis/go-redis", "github.com/nats-io/nats-server", "go.etcd.io/bbolt",
		"go.opentelemetry.io/otel/exporters/otlp", "google.golang.org/grpc", "google.golang.org/genproto",
		module + "/dispatcher", module + "/worker", module + "/taskstore", module + "/catalog",
	},
	"cmd/procfleet": {
		"google.golang.org/grpc", "google.golang.org/genproto", "golang.org/x/net/http2",
		module + "/cmd/internal/bench", // for developers: cmd/procfleet-bench
	},
}

type listedPackage struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// list runs `go list` over the module, once for all tests. It also lists packages that do
// not build.
func list(t *testing.T) []listedPackage {
	t.Helper()
	packages, err := listOnce()
	if err != nil {
		t.Fatal(err)
	}
	return packages
}

var listOnce = sync.OnceValues(func() (packages []listedPackage, err error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = filepath.Join("..", "..")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			return packages, nil
		case err != nil:
			return nil, err
		}
		packages = append(packages, p)
	}
})

// short returns the package's name in the table, and whether it belongs to this module.
func short(path string) (string, bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}

func TestPackagesImportOnlyWhatTheTableAllows(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		name, _ := short(p.ImportPath)
		if onlyTests(p) {
			continue
		}
		may, listed := allowed[name]
		if !listed {
			t.Errorf("package %q is not in the table: decide what it may import", name)
			continue
		}
		for _, path := range p.Imports {
			imported, ours := short(path)
			if !ours || slices.Contains(may, imported) {
				continue
			}
			if slices.Contains(may, everything) && !slices.Contains(forTests, imported) {
				continue
			}
			t.Errorf("package %q must not import %q", name, imported)
		}
	}
}

// onlyTests reports whether a folder contains only tests, which may import any package.
func onlyTests(p listedPackage) bool {
	return len(p.Imports) == 0 && len(p.TestImports)+len(p.XTestImports) > 0 && allowed[strings.TrimPrefix(p.ImportPath, module+"/")] == nil
}

func TestEveryRuleHasItsPackage(t *testing.T) {
	t.Parallel()
	var names []string
	for _, p := range list(t) {
		name, _ := short(p.ImportPath)
		names = append(names, name)
	}
	for name, may := range allowed {
		for _, wanted := range append([]string{name}, may...) {
			if wanted != everything && !slices.Contains(names, wanted) {
				t.Errorf("the table names %q, which does not exist", wanted)
			}
		}
	}
}

func TestLibrariesAreImportedOnlyWhereTheyBelong(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		name, _ := short(p.ImportPath)
		for _, imported := range p.Imports {
			for library, may := range thirdParty {
				if under(imported, library) && !slices.ContainsFunc(may, func(m string) bool { return covers(m, name) }) {
					t.Errorf("package %q must not import %s", name, imported)
				}
			}
		}
	}
}

func TestStoresAreImportedOnlyWhereTheyAreJoined(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		name, _ := short(p.ImportPath)
		for _, path := range p.Imports {
			imported, ours := short(path)
			if may, listed := implementations[imported]; ours && listed && !slices.Contains(may, name) {
				t.Errorf("package %q must not import the implementation %q", name, imported)
			}
			if ours && imported == "catalog" && !under(name, "catalog") && !slices.Contains(catalogUsers, name) {
				t.Errorf("package %q must not import the catalog", name)
			}
		}
	}
}

// The task store and the connections do not depend on the catalog, not even indirectly.
func TestTheTaskStoreDoesNotKnowTheCatalog(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "list", "-deps", "./taskstore/...", "./internal/boltdb", "./internal/redisconn")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	for path := range strings.FieldsSeq(string(out)) {
		if under(path, module+"/catalog") {
			t.Errorf("the task store depends on %s", path)
		}
	}
}

func under(path, library string) bool {
	return path == library || strings.HasPrefix(path, library+"/")
}

// covers reports whether an entry of thirdParty includes the package.
func covers(entry, name string) bool {
	folder, all := strings.CutSuffix(entry, "/...")
	return entry == name || (all && under(name, folder))
}

// The agent's binary is built for hosts of every kind, so the graphs are
// checked for each.
func TestBinariesStayLean(t *testing.T) {
	t.Parallel()
	for binary, libraries := range absent {
		for _, goos := range []string{"linux", "darwin", "windows"} {
			t.Run(binary+" "+goos, func(t *testing.T) {
				t.Parallel()
				cmd := exec.Command("go", "list", "-deps", "./"+binary)
				cmd.Dir = filepath.Join("..", "..")
				cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("go list: %v\n%s", err, out)
				}
				for path := range strings.FieldsSeq(string(out)) {
					for _, library := range libraries {
						if under(path, library) {
							t.Errorf("%s links %s", binary, path)
						}
					}
				}
			})
		}
	}
}
