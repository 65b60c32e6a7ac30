package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/cmd/internal/bench"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// TestBenchmarksMeasure runs each benchmark with next to nothing to do, its
// roles and agents processes of their own on a real NATS and Redis. What was
// measured is not judged, but must have been measured.
func TestBenchmarksMeasure(t *testing.T) { //nolint:tparallel // the benchmarks share NATS and Redis
	t.Parallel()
	redis, env := redistest.Start(t), testenv.StartNATS(t)
	program := testenv.BuildBinary(t, "./cmd/procfleet")
	for _, tt := range []struct {
		args   string
		tables []int // rows of each
	}{
		{"fanout --hosts 1,300 --connections 20", []int{2, 2}},
		{"small --tasks 40 --in-flight 4 --agents 10 --samples 3 --beside 500", []int{1, 1, 2}},
		{"accept --hosts 1,300 --samples 2", []int{3}},
		{"poll --items 1,300 --samples 2", []int{6}},
	} {
		name, _, _ := strings.Cut(tt.args, " ")
		t.Run(name, func(t *testing.T) { // one after the other: they share NATS and Redis
			file := filepath.Join(t.TempDir(), "report.json")
			args := append([]string{"bench"}, strings.Fields(tt.args)...)
			cmd := exec.Command(program, append(args, "--runs", "1", "--json", file, "--nats", env.URL, "--redis", "redis://"+redis.Addr+"/0")...)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			report := readReport(t, file)
			if len(report.Tables) != len(tt.tables) {
				t.Fatalf("%d tables, want %d:\n%s", len(report.Tables), len(tt.tables), out)
			}
			for i, table := range report.Tables {
				checkTable(t, table, tt.tables[i])
				if !strings.Contains(string(out), "### "+table.Title+"\n") {
					t.Errorf("%q is not in the output:\n%s", table.Title, out)
				}
			}
		})
	}
}

func readReport(t *testing.T, file string) (r bench.Report) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// checkTable wants so many rows, each as long as the heading, with figures
// above zero; only processor time is told in units that may be too coarse.
func checkTable(t *testing.T, table *bench.Table, rows int) {
	t.Helper()
	if len(table.Rows) != rows {
		t.Errorf("%q has %d rows, want %d", table.Title, len(table.Rows), rows)
	}
	for _, row := range table.Rows {
		if len(row) != len(table.Columns) {
			t.Errorf("%q: %d cells for %d columns", table.Title, len(row), len(table.Columns))
			continue
		}
		for i, cell := range row {
			coarse := strings.Contains(table.Columns[i], "CPU") || strings.Contains(table.Title, "processor time")
			if figure, ok := cell.(float64); ok && figure <= 0 && !coarse {
				t.Errorf("%q: %s is %v", table.Title, table.Columns[i], figure)
			}
		}
	}
}
