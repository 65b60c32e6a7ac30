package catalog_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

type values = map[catalog.Attribute]catalog.Value

// nginx is a template that has all that a spec can have, with changes.
func nginx(changes values) *catalog.Template {
	t := &catalog.Template{ID: 7, Values: values{
		catalog.AttrName: catalog.Text("nginx"), catalog.AttrFuncName: catalog.Text("nginx-bin"), catalog.AttrFuncID: catalog.Text("12"),
		catalog.AttrWorkPath: catalog.Text("/srv/nginx"), catalog.AttrUser: catalog.Text("www"), catalog.AttrPidFile: catalog.Text("/run/nginx.pid"),
		catalog.AttrStart: catalog.Text("./start"), catalog.AttrStop: catalog.Text("./stop"), catalog.AttrRestart: catalog.Text("./restart"),
		catalog.AttrReload: catalog.Text("./reload"), catalog.AttrKill: catalog.Text("./kill"), catalog.AttrArgsPattern: catalog.Text("-c a.conf"),
		catalog.AttrInstances: catalog.Number(2), catalog.AttrTimeout: catalog.Number(90), catalog.AttrAutoStart: catalog.Truth(true), catalog.AttrAutoStartGap: catalog.Number(3),
	}}
	maps.Copy(t.Values, changes)
	return t
}

var shop = catalog.Business{Account: catalog.DefaultAccount, ID: 2}

func TestSpecHasWhatTheTemplateSays(t *testing.T) {
	t.Parallel()
	want := procfleet.DefaultSpec()
	want.Alive.StopGrace = 0
	want.Namespace, want.Name, want.ProcName, want.ArgsPattern = "2", "nginx", "nginx-bin", "-c a.conf"
	want.SetupPath, want.PidPath, want.Account, want.FuncID, want.InstanceID = "/srv/nginx", "/run/nginx.pid", "www", "12", "7"
	want.Control.Start, want.Control.Stop, want.Control.Restart, want.Control.Reload, want.Control.Kill = "./start", "./stop", "./restart", "./reload", "./kill"
	want.Alive.Instances, want.Alive.OpTimeout, want.Alive.StartInterval = 2, procfleet.Seconds(90), procfleet.Seconds(3)
	if diff := cmp.Diff(want, nginx(nil).Spec(shop)); diff != "" {
		t.Error(diff)
	}
	if of := nginx(nil).Spec(catalog.Business{Account: "acme", ID: 2}); of.Key() != "acme.2:nginx" {
		t.Errorf("of another account it is %s", of.Key())
	}
}

func TestSpecOfATemplateThatSaysNothingHasTheDefaults(t *testing.T) {
	t.Parallel()
	want := procfleet.DefaultSpec()
	want.Alive.StopGrace = 0
	want.Namespace, want.Name, want.ProcName, want.InstanceID, want.Alive.Type = "2", "nginx", "nginx", "7", procfleet.Manual
	bare := &catalog.Template{ID: 7, Values: values{catalog.AttrName: catalog.Text("nginx")}}
	if diff := cmp.Diff(want, bare.Spec(shop)); diff != "" {
		t.Error(diff)
	}
}

func TestSpecPutsAPidFileIntoTheWorkPath(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ folder, file, want string }{
		{"/srv/web", "web.pid", "/srv/web/web.pid"},
		{"/srv/web/", "./run/web.pid", "/srv/web/run/web.pid"},
		{"/srv/web", "../run/web.pid", "/srv/run/web.pid"},
		{"/srv/web", "/run/web.pid", "/run/web.pid"},
		{"/srv/web", "", ""},
		{"", "web.pid", "web.pid"},
		{`C:\web`, "web.pid", `C:\web\web.pid`},
		{`C:\web\`, `.\web.pid`, `C:\web\web.pid`},
		{`C:\web`, `D:\run\web.pid`, `D:\run\web.pid`},
		{`C:/web`, `D:/run/web.pid`, `D:/run/web.pid`},
	} {
		s := nginx(values{catalog.AttrWorkPath: catalog.Text(c.folder), catalog.AttrPidFile: catalog.Text(c.file)}).Spec(shop)
		if s.PidPath != c.want {
			t.Errorf("%q in %q is %q, want %q", c.file, c.folder, s.PidPath, c.want)
		}
		if windows := strings.Contains(c.folder, "C:"); (s.Control.Shell == procfleet.ShellBat) != windows {
			t.Errorf("commands in %q are for %s", c.folder, s.Control.Shell)
		}
	}
}

func TestSpecProblemsNameTheAttributes(t *testing.T) {
	t.Parallel()
	empty := catalog.Text("")
	for name, c := range map[string]struct {
		changes values
		action  procfleet.Action
		want    []string // how the problems begin
	}{
		"nothing to start":       {nil, procfleet.ActionStart, nil},
		"no start command":       {values{catalog.AttrStart: empty}, procfleet.ActionStart, []string{"start_cmd: is required for start"}},
		"none is needed to stop": {values{catalog.AttrStart: empty, catalog.AttrStop: empty}, procfleet.ActionStop, nil},
		"no command to restart": {
			values{catalog.AttrStart: empty, catalog.AttrRestart: empty}, procfleet.ActionRestart, []string{"restart_cmd: is required for restart"},
		},
		"no reload command":  {values{catalog.AttrReload: empty}, procfleet.ActionReload, []string{"reload_cmd: is required"}},
		"relative work path": {values{catalog.AttrWorkPath: catalog.Text("srv")}, procfleet.ActionStatus, []string{`work_path: "srv" is not an absolute path`}},
		"nothing to tell it by": {
			values{catalog.AttrWorkPath: empty, catalog.AttrPidFile: empty, catalog.AttrInstances: {}}, procfleet.ActionStatus, []string{"work_path: is empty"},
		},
		"relative pid file": {values{catalog.AttrWorkPath: empty, catalog.AttrPidFile: catalog.Text("a.pid")}, procfleet.ActionStatus, []string{"pid_file: "}},
		"instances and no pid file": {
			values{catalog.AttrPidFile: empty}, procfleet.ActionStart, []string{"instances: 2 need pid_file"},
		},
		"too many instances":      {values{catalog.AttrInstances: catalog.Number(9999)}, procfleet.ActionStop, []string{"instances: 9999 is out of range"}},
		"supervise what is not":   {values{catalog.AttrAutoStart: catalog.Truth(false)}, procfleet.ActionSupervise, []string{"auto_start: is false"}},
		"start what is not":       {values{catalog.AttrAutoStart: catalog.Truth(false)}, procfleet.ActionStart, nil},
		"a Windows work path":     {values{catalog.AttrWorkPath: catalog.Text(`C:\web`), catalog.AttrPidFile: catalog.Text("a.pid")}, procfleet.ActionStart, nil},
		"several at once, in all": {values{catalog.AttrWorkPath: catalog.Text("srv"), catalog.AttrStart: empty, catalog.AttrPidFile: empty}, procfleet.ActionStart, []string{"instances: ", "work_path: ", "start_cmd: "}},
	} {
		got := nginx(c.changes).SpecProblems(shop, c.action)
		if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
