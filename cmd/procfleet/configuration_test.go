package main

import (
	ordered "cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/settings"
)

var update = flag.Bool("update", false, "write the lists of docs/reference/configuration.md and cli.md anew")

const configurationPage = "../../docs/reference/configuration.md"

var rolesOfPage = []string{"up", "dispatcher", "worker", "agent"}

func roleCommand(t *testing.T, name string) *cobra.Command {
	t.Helper()
	cmd, _, err := newRoot().Find([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	cmd.InheritedFlags() // adds the parent's to cmd.Flags
	return cmd
}

// settable calls fn for every setting of a role.
func settable(cmd *cobra.Command, fn func(*pflag.Flag)) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !slices.Contains([]string{"help", settings.Flag, settings.CheckFlag, settings.HelpAllFlag}, f.Name) {
			fn(f)
		}
	})
}

// The environment belongs to the process, so this test is not parallel.
func TestEverySettingOfEveryRoleCanComeFromFileAndVariable(t *testing.T) {
	values := map[string]string{"bool": "true", "int": "7", "int64": "7", "float64": "0.5", "duration": "7s", "string": "seven", "stringSlice": "seven=7"}
	for _, role := range rolesOfPage {
		settable(roleCommand(t, role), func(f *pflag.Flag) {
			value, known := values[f.Value.Type()]
			if !known {
				t.Errorf("--%s: no value for type %s in this test", f.Name, f.Value.Type())
				return
			}
			if f.DefValue == value {
				value = "false"
			}
			want := value
			if f.Value.Type() == "stringSlice" {
				want = "[" + value + "]"
			}
			t.Run(role+" "+f.Name, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "procfleet.yaml")
				if err := os.WriteFile(file, fmt.Appendf(nil, "%s: %s\n", f.Name, value), 0o600); err != nil {
					t.Fatal(err)
				}
				fromFile := roleCommand(t, role)
				if err := fromFile.ParseFlags([]string{"--config", file}); err != nil {
					t.Fatal(err)
				}
				if err := settings.Fill(fromFile); err != nil || fromFile.Flag(f.Name).Value.String() != want {
					t.Errorf("from the file: %s, %v", fromFile.Flag(f.Name).Value, err)
				}
				t.Setenv(settings.Variable(f.Name), value)
				fromVariable := roleCommand(t, role)
				if err := settings.Fill(fromVariable); err != nil || fromVariable.Flag(f.Name).Value.String() != want {
					t.Errorf("from the variable: %s, %v", fromVariable.Flag(f.Name).Value, err)
				}
			})
		})
	}
}

// TestThePageOfSettingsIsTrue compares the list with the flags; with -update it
// writes it.
func TestThePageOfSettingsIsTrue(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(configurationPage)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- settings -->\n", "<!-- end of settings -->\n"
	before, rest, found := strings.Cut(string(data), begin)
	list, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("no place for the settings")
	}
	want := settingsList(t)
	if *update {
		if err := os.WriteFile(configurationPage, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("write the list with go test ./cmd/procfleet -run ThePageOfSettings -update\n%s", diff)
	}
}

// settingsList returns one item per setting, with the roles that have it ("servers" are all but
// the agent), unless all have it, and the default. A setting whose default or meaning depends on the role has several items.
// The TLS files of a connection or listener share an item.
func settingsList(t *testing.T) string {
	t.Helper()
	type item struct{ name, byDefault, meaning string }
	roles := map[item][]string{}
	for _, role := range rolesOfPage {
		cmd, files := roleCommand(t, role), map[string][]string{}
		settable(cmd, func(f *pflag.Flag) {
			if of := tlsOf(cmd, f.Name); of != "" {
				files[of] = append(files[of], f.Name)
				return
			}
			byDefault := ""
			if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" {
				byDefault = "`" + f.DefValue + "`"
			}
			i := item{f.Name, byDefault, f.Usage}
			roles[i] = append(roles[i], role)
		})
		for _, names := range files {
			i := item{strings.Join(names, "`, `"), "", "[TLS](../how-to/enable-tls.md)"}
			roles[i] = append(roles[i], role)
		}
	}
	items := slices.SortedFunc(maps.Keys(roles), func(a, b item) int {
		return ordered.Or(strings.Compare(a.name, b.name), slices.Index(rolesOfPage, roles[a][0])-slices.Index(rolesOfPage, roles[b][0]))
	})
	var list strings.Builder
	for _, i := range items {
		var notes []string
		switch of := strings.Join(roles[i], ", "); {
		case of == "up, dispatcher, worker":
			notes = append(notes, "servers")
		case len(roles[i]) < len(rolesOfPage):
			notes = append(notes, of)
		}
		if i.byDefault != "" {
			notes = append(notes, i.byDefault)
		}
		fmt.Fprintf(&list, "* `%s`", i.name)
		if len(notes) > 0 {
			fmt.Fprintf(&list, " (%s)", strings.Join(notes, "; "))
		}
		fmt.Fprintf(&list, ": %s\n", i.meaning)
	}
	return list.String()
}

// tlsOf returns the connection or listener of a flag that names a certificate or key file,
// such as nats for nats-ca, or "" for other flags.
func tlsOf(cmd *cobra.Command, name string) string {
	for _, suffix := range []string{"-client-ca", "-ca", "-cert", "-key"} {
		if of, found := strings.CutSuffix(name, suffix); found && cmd.Flags().Lookup(of+"-cert") != nil {
			return of
		}
	}
	return ""
}

// checkConfig returns exit code and output of --check-config.
func checkConfig(t *testing.T, args ...string) (code int, said string) {
	t.Helper()
	code, stdout, stderr := call(t, append(args, "--check-config")...)
	return code, stdout + stderr
}

func TestTheCheckRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a port of --http":            {[]string{"dispatcher", "--http", "127.0.0.1:70000"}, "--http: \"127.0.0.1:70000\" has no port from 0 to 65535"},
		"a port of --http of up":      {[]string{"up", "--http", "127.0.0.1:70000"}, "--http: \"127.0.0.1:70000\""},
		"a port of --status-http":     {[]string{"worker", "--status-http", "127.0.0.1:65536"}, "--status-http: \"127.0.0.1:65536\""},
		"a port of NATS":              {[]string{"worker", "--nats", "nats://127.0.0.1:4222,127.0.0.1:70000"}, "--nats: \"nats://127.0.0.1:70000\" has no port"},
		"a port of Redis":             {[]string{"worker", "--redis", "redis://127.0.0.1:70000/0"}, "\"127.0.0.1:70000\" has no port"},
		"a port of another Redis":     {[]string{"worker", "--redis", "redis://127.0.0.1:7000?addr=127.0.0.1:70001"}, "\"127.0.0.1:70001\" has no port"},
		"a port of the collector":     {[]string{"worker", "--otlp", "http://127.0.0.1:99999"}, "--otlp: \"http://127.0.0.1:99999\" has no port"},
		"grpc of the collector":       {[]string{"worker", "--otlp", "grpc://127.0.0.1:4317"}, "--otlp: \"grpc://127.0.0.1:4317\" is not the URL"},
		"the status where callers go": {[]string{"dispatcher", "--http", "127.0.0.1:8080", "--status-http", "localhost:8080"}, "--status-http: localhost:8080 is in use by --http 127.0.0.1:8080"},
		"the status on every address": {[]string{"up", "--status-http", ":8080"}, "--status-http: :8080 is in use by --http 127.0.0.1:8080"},
		"the status where NATS is":    {[]string{"up", "--nats-listen", "127.0.0.1:4222", "--status-http", "127.0.0.1:4222"}, "is in use by --nats-listen"},
		"an unset variable for NATS":  {[]string{"dispatcher", "--nats", ""}, "--nats: \"nats://\" is not the URL of a NATS server"},
		"an unset variable for Redis": {[]string{"worker", "--redis", ""}, "--redis: redis URL:"},
		"replicas of no Redis":        {[]string{"up", "--redis-wait-replicas", "1"}, "--redis-wait-replicas: the embedded store has no replicas"},
		"a body without an end":       {[]string{"up", "--max-body", "9223372036854775807"}, "--max-body: 9223372036854775807 bytes exceed"},
		"bad replicas in the URL":     {[]string{"worker", "--redis", "redis://127.0.0.1:6379/0?wait_replicas=many"}, "wait_replicas=\"many\""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if code, said := checkConfig(t, c.args...); code != command.ExitUsage || !strings.Contains(said, c.want) {
				t.Errorf("exit %d, want %q in: %s", code, c.want, said)
			}
		})
	}
}

func TestTheCheckTakesWhatTheDocumentationHas(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--redis", "redis://127.0.0.1:6379/0?wait_replicas=1"},
		{"--redis", "rediss://user:word@[::1]:6379/3"},
		{"--redis", "redis://[::1]"},
		{"--redis", "redis://host:26379/0?master_name=NAME&addr=host2:26379&wait_replicas=2"},
		{"--redis", "redis://host:6379?cluster=true&addr=host2:6379"},
		{"--http", "127.0.0.1:0", "--status-http", "127.0.0.1:0"},
		{"--http", "127.0.0.1:8080", "--status-http", "127.0.0.2:8080"},
		{"--otlp", "http://127.0.0.1:4318"},
		{"--nats", "127.0.0.1"},
	} {
		if code, said := checkConfig(t, append([]string{"dispatcher"}, args...)...); code != 0 {
			t.Errorf("%v: exit %d: %s", args, code, said)
		}
	}
}

// The environment belongs to the process, so this test is not parallel.
func TestTheCheckKnowsTheStandardVariablesOfTraces(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	if code, said := checkConfig(t, "worker"); code != 0 {
		t.Errorf("without traces: exit %d: %s", code, said)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
	if code, said := checkConfig(t, "worker"); code != command.ExitUsage || !strings.Contains(said, `OTEL_EXPORTER_OTLP_PROTOCOL="grpc"`) || !strings.Contains(said, "4318") {
		t.Errorf("grpc: exit %d: %s", code, said)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
	if code, said := checkConfig(t, "worker"); code != 0 {
		t.Errorf("that of traces counts first: exit %d: %s", code, said)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4318")
	if code, said := checkConfig(t, "worker"); code != command.ExitUsage || !strings.Contains(said, "OTEL_EXPORTER_OTLP_ENDPOINT: \"127.0.0.1:4318\" is not the URL") {
		t.Errorf("no scheme: exit %d: %s", code, said)
	}
}

// The environment belongs to the process, so this test is not parallel.
func TestAMisspeltVariableIsNamed(t *testing.T) {
	t.Setenv("PROCFLEET_STATUS_HTP", "127.0.0.1:1")
	t.Setenv("PROCFLEET_ENTIRELY_ELSE", "x")
	t.Setenv("PROCFLEET_LOG_LEVEL", "") // counts as not set
	for _, name := range []string{"CRASH_AT", "KEY", "PORT_8080_TCP_ADDR", "SERVICE_HOST", "HTTP_PORT_2", "REDIS", "SERVER"} {
		t.Setenv("PROCFLEET_"+name, "redis://127.0.0.1:6379")
	}
	for _, args := range [][]string{{"worker", "--check-config"}, {"task", "list", "--server", "http://127.0.0.1:1"}} {
		_, _, stderr := call(t, args...)
		if !strings.Contains(stderr, "PROCFLEET_STATUS_HTP has no effect: there is no such setting; did you mean PROCFLEET_STATUS_HTTP?\n") ||
			!strings.Contains(stderr, "PROCFLEET_ENTIRELY_ELSE has no effect: there is no such setting\n") || strings.Count(stderr, "has no effect") != 2 {
			t.Errorf("%v: %s", args, stderr)
		}
	}
}
