package specimport

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
)

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUnitsOfSystemd(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		unit string
		want []string // parts of the YAML; a part with "!" must be absent
	}{
		"a simple service": {
			"[Service]\nExecStart=-/usr/bin/app --port 80 \\\n  --name '%p %i'\nWorkingDirectory=/srv/app\nUser=app\nRestart=on-failure\nRestartSec=1min 5s\nTimeoutStopSec=90\n",
			[]string{"proc_name: app", `start: "cd /srv/app && { /usr/bin/app --port 80`, "account: app", "type: resident", "start_interval: 1m5s", "stop_grace: 1m30s"},
		},
		"a forking service": {
			"[Service]\nType=forking\nPIDFile=/run/app.pid\nExecStart=/usr/sbin/app\nExecReload=/bin/kill -HUP $MAINPID\n",
			[]string{"pid_path: /run/app.pid", "start: /usr/sbin/app\n", `reload: "MAINPID=$(cat /run/app.pid); /bin/kill -HUP $MAINPID"`, "type: manual"},
		},
		"a reload that needs a pid": {
			"[Service]\nExecStart=/usr/sbin/app\nExecReload=/bin/kill -HUP $MAINPID\n", []string{"# ExecReload uses $MAINPID", "!  reload:"},
		},
		"environments": {
			"[Service]\nExecStart=/usr/sbin/app\nEnvironment=A=1 \"B=2 3\"\nEnvironment=C='4'\nEnvironmentFile=-/etc/default/app\n",
			[]string{"    A: \"1\"", "    B: \"2 3\"", "    C: \"4\"", `set -a; [ ! -r /etc/default/app ] || . /etc/default/app; set +a; /usr/sbin/app`},
		},
		"a setting that is reset": {"[Service]\nExecStart=/bin/first\nExecStart=\nExecStart=/bin/second\n", []string{"proc_name: second", "!first"}},
	} {
		spec, err := Systemd(file(t, "app@one.service", test.unit), "ns")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := spec.Validate(procfleet.ActionStart); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, part := range test.want {
			absent, is := strings.CutPrefix(part, "!")
			if strings.Contains(spec.YAML(), strings.TrimPrefix(part, "!")) == is {
				t.Errorf("%s: %q is absent=%t in\n%s", name, absent, !is, spec.YAML())
			}
		}
	}
}

func TestConfigurationsThatCannotBeImported(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"[Service]\nType=oneshot\nExecStart=/bin/true\n":     "oneshot",
		"[Service]\nUser=x\n":                                "ExecStart has 0 commands",
		"[Service]\nExecStart=/bin/a %h\n":                   "specifier %h",
		"[Service]\nExecStart=/bin/a\nTimeoutStopSec=long\n": "is not a time span",
	} {
		if _, err := Systemd(file(t, "app.service", text), "ns"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"[supervisord]\nnodaemon=true\n":                   "has no section [program:NAME]",
		"[program:a]\nuser=x\n":                            "command is missing",
		"[program:a]\ncommand=/bin/a %(unknown)s\n":        "%(unknown)s has no value here",
		"[program:a]\ncommand=/bin/a\nnumprocs=0\n":        "numprocs",
		"[program:a]\ncommand=/bin/a\nstopwaitsecs=soon\n": "stopwaitsecs",
	} {
		if _, err := Supervisord(file(t, "supervisord.conf", text), "ns"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzConfigurations(f *testing.F) {
	f.Add("[program:a]\ncommand=/bin/a %(process_num)02d\nenvironment=A=\"1\"\n")
	f.Add("[Service]\nExecStart=/bin/a %i\nEnvironment=A=1\nTimeoutStopSec=1min\n")
	f.Fuzz(func(t *testing.T, text string) {
		path := file(t, "a@b.service", text)
		if spec, err := Systemd(path, "ns"); err == nil {
			_ = spec.YAML()
		}
		if specs, err := Supervisord(path, "ns"); err == nil {
			_ = specs[0].YAML()
		}
	})
}
