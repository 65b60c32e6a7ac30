package catalog_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func moment(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse("2006-01-02 15:04:05", text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestMaintenanceWindows(t *testing.T) {
	nights := procfleet.MaintenanceWindow{Name: "nights", Effect: procfleet.EffectAllow, Cron: "0 22 * * *", TimeZone: "Europe/Berlin", Duration: procfleet.Duration(4 * time.Hour)}
	noon := procfleet.MaintenanceWindow{Name: "noon", Effect: procfleet.EffectAllow, Cron: "0 12 * * *", Duration: procfleet.Duration(time.Hour)}
	sale := procfleet.MaintenanceWindow{Name: "sale", Effect: procfleet.EffectDeny, From: moment(t, "2026-11-27 00:00:00"), Until: moment(t, "2026-11-28 00:00:00")}
	never := procfleet.MaintenanceWindow{Name: "never", Effect: procfleet.EffectDeny}
	web := nights
	web.HostGrouping, web.Groups = procfleet.HostGrouping{By: procfleet.GroupByModule}, []string{"web"}
	type windows []procfleet.MaintenanceWindow
	for what, c := range map[string]struct {
		windows windows
		groups  []string
		at      string
		want    string // "" = not closed
	}{
		"no windows":                         {nil, nil, "2026-11-25 12:00:00", ""},
		"before an allowing window":          {windows{nights}, nil, "2026-11-25 20:59:59", "window nights is closed until 2026-11-25T21:00:00Z"},
		"at its begin":                       {windows{nights}, nil, "2026-11-25 21:00:00", ""},
		"in it, after midnight":              {windows{nights}, nil, "2026-11-26 00:59:59", ""},
		"at its end":                         {windows{nights}, nil, "2026-11-26 01:00:00", "window nights is closed until 2026-11-26T21:00:00Z"},
		"in summer it is an hour earlier":    {windows{nights}, nil, "2026-07-25 20:00:00", ""},
		"one of two is open":                 {windows{nights, noon}, nil, "2026-11-25 12:30:00", ""},
		"the other of two is open":           {windows{noon, nights}, nil, "2026-11-25 22:30:00", ""},
		"the next of two":                    {windows{nights, noon}, nil, "2026-11-25 10:00:00", "window noon is closed until 2026-11-25T12:00:00Z"},
		"denied within an allowing window":   {windows{nights, sale}, nil, "2026-11-27 22:00:00", "window sale denies operations until 2026-11-28T00:00:00Z"},
		"a denial that is over":              {windows{sale}, nil, "2026-11-28 00:00:00", ""},
		"a denial to come":                   {windows{sale}, nil, "2026-11-26 23:59:59", ""},
		"denied without end":                 {windows{never}, nil, "2026-11-26 23:59:59", "window never denies operations"},
		"of another group":                   {windows{web}, []string{"db"}, "2026-11-25 12:00:00", ""},
		"of one of the groups":               {windows{web}, []string{"db", "web"}, "2026-11-25 12:00:00", "window nights is closed until 2026-11-25T21:00:00Z"},
		"open for all, closed for the group": {windows{web, noon}, []string{"web"}, "2026-11-25 12:00:00", ""},
	} {
		p := catalog.RolloutPolicies{Windows: c.windows}
		closure, closed := p.Closed(moment(t, c.at), func(w *procfleet.MaintenanceWindow) bool { return w.For(c.groups) })
		got := ""
		if closed {
			got = closure.String()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", what, got, c.want)
		}
	}
}

func TestInvalidMaintenanceWindows(t *testing.T) {
	valid := procfleet.MaintenanceWindow{Name: "w", Effect: procfleet.EffectAllow, Cron: "0 22 * * 1-5", Duration: procfleet.Duration(time.Hour)}
	for field, change := range map[string]func(*procfleet.MaintenanceWindow){
		"name":      func(w *procfleet.MaintenanceWindow) { w.Name = "a b" },
		"effect":    func(w *procfleet.MaintenanceWindow) { w.Effect = "forbid" },
		"cron":      func(w *procfleet.MaintenanceWindow) { w.Cron = "0 25 * * *" },
		"cron ":     func(w *procfleet.MaintenanceWindow) { w.Cron = "@daily" },
		"cron  ":    func(w *procfleet.MaintenanceWindow) { w.Cron = "0 0 31 2 *" },
		"cron   ":   func(w *procfleet.MaintenanceWindow) { w.Cron = "" },
		"cron    ":  func(w *procfleet.MaintenanceWindow) { w.From = time.Unix(1, 0) },
		"time_zone": func(w *procfleet.MaintenanceWindow) { w.TimeZone = "Local" },
		"duration":  func(w *procfleet.MaintenanceWindow) { w.Duration = 0 },
		"by":        func(w *procfleet.MaintenanceWindow) { w.By, w.Groups = "rack", []string{"a"} },
		"label":     func(w *procfleet.MaintenanceWindow) { w.By, w.Groups = procfleet.GroupByLabel, []string{"a"} },
		"groups":    func(w *procfleet.MaintenanceWindow) { w.By = procfleet.GroupByCloud },
		"until": func(w *procfleet.MaintenanceWindow) {
			*w = procfleet.MaintenanceWindow{Name: "w", Effect: procfleet.EffectDeny, From: time.Unix(2, 0), Until: time.Unix(2, 0)}
		},
	} {
		w := valid
		change(&w)
		p := catalog.RolloutPolicies{Windows: []procfleet.MaintenanceWindow{w}}
		invalid, ok := errors.AsType[*procfleet.FieldError](p.Validate())
		if want := "windows[0]." + strings.TrimSpace(field); !ok || invalid.Field != want {
			t.Errorf("got %v, want an error of %s", p.Validate(), want)
		}
	}
	twice := catalog.RolloutPolicies{Windows: []procfleet.MaintenanceWindow{valid, valid}}
	if twice.Validate() == nil {
		t.Errorf("two windows of one name are valid")
	}
	if err := catalog.CheckPolicies("shop", &catalog.RolloutPolicies{Windows: []procfleet.MaintenanceWindow{{
		Name: "w", Effect: procfleet.EffectDeny, HostGrouping: procfleet.HostGrouping{By: procfleet.GroupBySet}, Groups: []string{"a"},
	}}}); err == nil {
		t.Errorf("sets of a namespace without sets are valid")
	}
}
