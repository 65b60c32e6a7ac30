package deploy_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// panel has the checked fields of a panel of a Grafana dashboard.
type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               struct{ UID string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct {
		Expr, LegendFormat, RefID string
		Datasource                struct{ UID string }
	}
}

func dashboard(t *testing.T) (source string, panels []panel) {
	t.Helper()
	text, err := os.ReadFile("grafana/procfleet.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
		Panels []panel
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	for _, v := range d.Templating.List {
		if v.Type == "datasource" && v.Query == "prometheus" {
			return "${" + v.Name + "}", d.Panels
		}
	}
	t.Fatal("no variable selects the Prometheus data source")
	return "", nil
}

func TestEveryPanelHasADescriptionAndTheSelectedSource(t *testing.T) {
	t.Parallel()
	source, panels := dashboard(t)
	titles, ids, place := map[string]bool{}, map[int]bool{}, map[[2]int]string{}
	for _, p := range panels {
		if p.Title == "" || titles[p.Title] || p.ID == 0 || ids[p.ID] {
			t.Errorf("panel %d %q: title or id is missing or not unique", p.ID, p.Title)
		}
		titles[p.Title], ids[p.ID] = true, true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if over := place[[2]int{x, y}]; over != "" || x >= 24 {
					t.Fatalf("%q overlaps %q or exceeds the grid", p.Title, over)
				}
				place[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 || p.Datasource.UID != source {
			t.Errorf("%q: description %q, unit %q, %d queries of %q", p.Title, p.Description, p.FieldConfig.Defaults.Unit, len(p.Targets), p.Datasource.UID)
		}
		for _, q := range p.Targets {
			if q.Datasource.UID != source {
				t.Errorf("%q: query %s has the data source %q", p.Title, q.RefID, q.Datasource.UID)
			}
		}
	}
}

func TestDashboardUsesExistingMetricsAndLabels(t *testing.T) {
	t.Parallel()
	_, panels := dashboard(t)
	var expressions []string
	for _, p := range panels {
		for _, q := range p.Targets {
			// Grafana replaces the variable before Prometheus parses the query.
			expressions = append(expressions, strings.ReplaceAll(q.Expr, "$__rate_interval", "1m"))
			var kept []string
			for _, by := range regexp.MustCompile(`by \(([a-z_, ]+)\)`).FindAllStringSubmatch(q.Expr, -1) {
				kept = append(kept, strings.Split(by[1], ", ")...)
			}
			for _, label := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(q.LegendFormat, -1) {
				if !strings.Contains(" "+strings.Join(kept, " ")+" ", " "+label[1]+" ") {
					t.Errorf("%q: the legend names the label %s, which is not in the result of %s", p.Title, label[1], q.Expr)
				}
			}
		}
	}
	mustUseWhatIsThere(t, expressions)
}
