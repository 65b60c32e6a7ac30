package bench

import (
	"context"
	"encoding/json"
	"path/filepath"
	"time"

	"github.com/procfleet/procfleet"
)

// measureUp measures `procfleet up`, which runs all roles in one process, with supervised
// processes.
func (s Supervise) measureUp(ctx context.Context, at *site, found *findings) error {
	if s.UpProcesses == 0 {
		return nil
	}
	const name = "up"
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	address, data := "127.0.0.1:"+port, filepath.Join(at.dir, name)
	if err := at.startRole(ctx, name, []string{name, "--http", address, "--data", data, "--log-level", "warn"}, "ready at "); err != nil {
		return err
	}
	up := at.child(name)
	defer up.stop()
	processes, err := at.sleepers("upbench", s.UpProcesses)
	if err != nil {
		return err
	}
	w, err := dial(ctx, address)
	if err != nil {
		return err
	}
	defer w.close()
	for _, p := range processes {
		body, err := p.submission(at.account)
		if err != nil {
			return err
		}
		if _, err := w.submit(body, ""); err != nil {
			return err
		}
	}
	if _, err := running(ctx, filepath.Join(data, agentName), len(processes)); err != nil {
		return err
	}
	if err := wait(ctx, settleUp); err != nil {
		return err
	}
	cpu, rss, err := idle(ctx, up.pid(), s.For)
	if err != nil {
		return err
	}
	found.upkeeps = append(found.upkeeps, upkeep{what: "procfleet up", processes: len(processes), cpu: cpu, rss: rss, goalCPU: upGoal})
	return nil
}

// settleUp is the pause between the start tasks and the measurement of processor time.
const settleUp = 2 * time.Second

// submission returns a task that starts the process on this host.
func (p sleeper) submission(account string) ([]byte, error) {
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName = "bench", filepath.Base(p.dir), sleeperName
	spec.SetupPath, spec.PidPath, spec.Account = p.dir, p.pidFile(), account
	spec.Control.Start, spec.Control.NoProfile = p.command, true
	spec.Alive.StartCheckBegin, spec.Alive.StartCheckEnd = procfleet.Duration(startCheck), procfleet.Duration(startCheck)
	return json.Marshal(map[string]any{
		"action": procfleet.ActionStart, "process": spec, "hosts": []string{"0:" + overseen.String()},
	})
}
