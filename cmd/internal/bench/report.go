package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

// Report holds the tables of a benchmark and a description of the machine.
type Report struct {
	Machine string   `json:"machine"`
	Tables  []*Table `json:"tables"`
}

// Markdown writes the report as Markdown.
func (r *Report) Markdown(out io.Writer) error {
	if _, err := fmt.Fprintf(out, "%s\n\n", r.Machine); err != nil {
		return err
	}
	for _, t := range r.Tables {
		if err := t.Markdown(out); err != nil {
			return err
		}
	}
	return nil
}

// JSON writes the report as JSON to the file name.
func (r *Report) JSON(name string) error {
	data, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(data, '\n'), 0o600)
}

// report returns a report of tables. It adds the security features to the table titles.
func (l *lab) report(ctx context.Context, tables ...*Table) Report {
	for _, t := range tables {
		t.Title += " (" + l.safety() + ")"
	}
	return Report{Machine: l.machine(ctx), Tables: tables}
}

// machine returns a description of the machine and of the software versions.
func (l *lab) machine(ctx context.Context) string {
	store := "embedded store"
	if l.redis != nil {
		store = "Redis " + l.redisVersion(ctx)
	}
	what := fmt.Sprintf("%s, nats-server %s, %s; medians of %d runs", hardware(), l.conn.ConnectedServerVersion(), store, l.Runs)
	if l.Start {
		what += "; all processes on this machine"
	}
	return what
}

func hardware() string {
	return fmt.Sprintf("%s/%s, %d CPUs%s, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), memory(), runtime.Version())
}

func (l *lab) redisVersion(ctx context.Context) string {
	for line := range strings.Lines(l.redis.Info(ctx, "server").Val()) {
		if version, ok := strings.CutPrefix(line, "redis_version:"); ok {
			return strings.TrimSpace(version)
		}
	}
	return "of unknown version"
}

// memory returns the size of the machine's memory, or "" without /proc.
func memory() string {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return ""
	}
	defer file.Close()
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		var kib int
		if n, _ := fmt.Sscanf(scanner.Text(), "MemTotal: %d kB", &kib); n == 1 {
			return fmt.Sprintf(", %.0f GiB", float64(kib)/(1<<20))
		}
	}
	return ""
}
