package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet/cmd/internal/bench"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// TestBenchmarksMeasure runs each benchmark with very small tasks; roles and agents are processes on a
// real NATS and Redis. The test does not judge the numbers, but each must be present. The tables' own
// tests are those of package bench.
func TestBenchmarksMeasure(t *testing.T) { //nolint:tparallel // subtests share NATS and Redis: one after the other
	testenv.Long(t, "each benchmark measures a small system")
	t.Parallel()
	redis, env := redistest.Start(t), testenv.StartNATS(t)
	program, procfleet := testenv.BuildBinary(t, "./cmd/procfleet-bench"), testenv.BuildBinary(t, "./cmd/procfleet")
	for _, tt := range []struct {
		args   string
		tables []int // rows of each
	}{
		{"fanout --hosts 300 --connections 20", []int{1, 1}},
		{"cancel --hosts 300", []int{2}},
		{"small --tasks 40 --in-flight 4 --agents 10 --samples 3 --beside 300", []int{1, 1, 2}},
		{"accept --hosts 1,300 --samples 2", []int{5}},
		{"poll --items 1,300 --samples 2", []int{12}},
		{"fair --tasks 2 --hosts 300 --samples 3 --area 300", []int{3, 2, 5}},
		{"workers --hosts 300 --workers 1,2 --latency 10ms", []int{2}},
		{"rollout --hosts 60 --windows 10,30 --latency 100ms", []int{2}},
		{"presence --hosts 1200 --areas 5 --tasks 100", []int{9}},
		{"sweep --tasks 200 --workers 1", []int{2}},
		{"reports --agents 100 --every 1s --for 2s", []int{1}},
	} {
		name, _, _ := strings.Cut(tt.args, " ")
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "report.json")
			args := append(strings.Fields(tt.args), "--procfleet", procfleet)
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

// TestSafetyIsMeasured requires a row for each value of --secure, and that the tables of a started
// system name the security measures in use.
func TestSafetyIsMeasured(t *testing.T) {
	testenv.Long(t, "each security measure in a system of its own")
	t.Parallel()
	redistest.Need(t)
	program, procfleet, tmp := testenv.BuildBinary(t, "./cmd/procfleet-bench"), testenv.BuildBinary(t, "./cmd/procfleet"), t.TempDir()
	file := filepath.Join(t.TempDir(), "report.json")
	run := func(args string) bench.Report {
		t.Helper()
		cmd := exec.Command(program, append(strings.Fields(args), "--procfleet", procfleet, "--runs", "1", "--json", file)...)
		cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", args, err, out)
		}
		nothingLeft(t, tmp)
		return readReport(t, file)
	}
	compared := run("safety --hosts 300").Tables[0]
	checkTable(t, compared, 5)
	var secure []any
	for _, row := range compared.Rows {
		secure = append(secure, row[0])
	}
	if want := []any{"none", "keys", "credentials", "tls", "all"}; !slices.Equal(secure, want) {
		t.Errorf("secure: %v, want %v", secure, want)
	}
	for secure, want := range map[string]string{
		"none": "(without signatures, credentials and TLS)",
		"all":  "(with signed messages, NATS credentials, TLS to NATS, TLS to Redis)",
	} {
		for _, table := range run("accept --start --hosts 1 --samples 2 --secure " + secure).Tables {
			if !strings.HasSuffix(table.Title, want) {
				t.Errorf("--secure %s: %q does not say %q", secure, table.Title, want)
			}
		}
	}
}

func TestEmbeddedIsMeasured(t *testing.T) {
	testenv.Long(t, "the benchmark of procfleet up")
	t.Parallel()
	program, procfleet, tmp := testenv.BuildBinary(t, "./cmd/procfleet-bench"), testenv.BuildBinary(t, "./cmd/procfleet"), t.TempDir()
	file := filepath.Join(t.TempDir(), "report.json")
	cmd := exec.Command(program, append(strings.Fields("embedded --tasks 40 --in-flight 4 --agents 10 --runs 1"), "--procfleet", procfleet, "--json", file)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	report := readReport(t, file)
	if len(report.Tables) != 1 {
		t.Fatalf("%d tables, want 1", len(report.Tables))
	}
	checkTable(t, report.Tables[0], 1)
	nothingLeft(t, tmp)
}

func TestBenchRefusesToGuessWhatIsSecure(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--start --fleet-key fleet.key": "--start creates certificates, credentials and keys",
		"--start --nats-creds a.creds":  "--start creates certificates, credentials and keys",
		"--secure all":                  "--secure requires --start",
		"--start --secure al":           `"al" is not keys, credentials, tls, all or none`,
	} {
		code, _, stderr := call(t, append([]string{"fanout"}, strings.Fields(args)...)...)
		if code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%s: code %d, %q, want %q", args, code, stderr, want)
		}
	}
}

// TestSuperviseIsMeasured does the same for the benchmark of supervisors. It requires that no process and
// no folder of them remains.
func TestSuperviseIsMeasured(t *testing.T) {
	testenv.Long(t, "the benchmark of agents and other supervisors")
	t.Parallel()
	program, procfleet, agent := testenv.BuildBinary(t, "./cmd/procfleet-bench"), testenv.BuildBinary(t, "./cmd/procfleet"), testenv.BuildBinary(t, "./cmd/procfleet-agent")
	tmp, supervisors := t.TempDir(), 0
	if _, err := exec.LookPath("supervisord"); err == nil {
		supervisors = 1
	}
	file := filepath.Join(t.TempDir(), "report.json")
	cmd := exec.Command(program, append(strings.Fields(
		"supervise --processes 2 --up-processes 1 --operations 4 --kills 1 --for 100ms --runs 1"), "--procfleet", procfleet, "--agent", agent, "--json", file)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	report := readReport(t, file)
	rows := []int{3 + supervisors, 2 + supervisors, 5, 1}
	if len(report.Tables) != len(rows) {
		t.Fatalf("%d tables, want %d:\n%s", len(report.Tables), len(rows), out)
	}
	for i, table := range report.Tables {
		checkTable(t, table, rows[i])
	}
	nothingLeft(t, tmp)
}

func TestSuperviseThatIsInterruptedLeavesNothing(t *testing.T) {
	t.Parallel()
	program, procfleet, agent := testenv.BuildBinary(t, "./cmd/procfleet-bench"), testenv.BuildBinary(t, "./cmd/procfleet"), testenv.BuildBinary(t, "./cmd/procfleet-agent")
	tmp := t.TempDir()
	// Thirty of forty are killed one after the other, which takes far longer
	// than the rest.
	cmd := exec.Command(program, append(strings.Fields(
		"supervise --processes 40 --up-processes 0 --operations 4 --kills 1 --for 100ms --runs 30"), "--procfleet", procfleet, "--agent", agent)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	testenv.Eventually(t, time.Minute, func() bool { return len(workingIn(t, tmp)) >= 30 }, "processes are supervised")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("it ended by %v, want exit code 1", err)
	}
	nothingLeft(t, tmp)
}

// nothingLeft fails if a benchmark left its folder or a process in tmp behind.
func nothingLeft(t *testing.T, tmp string) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(tmp, "procfleet-bench-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if left := workingIn(t, tmp); len(left) > 0 {
		t.Errorf("still working there: %v", left)
	}
}

// workingIn are the processes that work in a folder or below.
func workingIn(t *testing.T, dir string) (pids []string) {
	t.Helper()
	folders, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, cwd := range folders {
		if at, err := os.Readlink(cwd); err == nil && strings.HasPrefix(at, dir) {
			pids = append(pids, filepath.Base(filepath.Dir(cwd)))
		}
	}
	return pids
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

// checkTable verifies the number of rows, that each row has a cell for each column, and that
// all numbers are above zero, except those that can be zero in a short run.
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
			// These can be zero: the kernel counts processor time in coarse units, and the
			// first of two small tasks may finish before the second one begins.
			coarse := strings.Contains(table.Columns[i], "CPU") || strings.Contains(table.Title, "processor time") || strings.Contains(table.Title, "at once")
			if figure, ok := cell.(float64); ok && figure <= 0 && !coarse {
				t.Errorf("%q: %s is %v", table.Title, table.Columns[i], figure)
			}
		}
	}
}
