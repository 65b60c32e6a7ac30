package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const supervisord = "supervisord"

// measureSupervisord measures the functions of supervisord that the agent has too. If the
// program is not found, it logs a warning and measures nothing.
func (s Supervise) measureSupervisord(ctx context.Context, at *site, found *findings) error {
	path, err := exec.LookPath(s.Supervisord)
	if err != nil {
		s.Log.WithError(err).Warn("supervisord not measured")
		return nil
	}
	dir := filepath.Join(at.dir, supervisord)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	config := filepath.Join(dir, "supervisord.conf")
	if err := os.WriteFile(config, []byte(supervisordConfig(dir, at.account, s.Processes)), 0o600); err != nil {
		return err
	}
	if _, err := at.start(ctx, supervisord, path, []string{"--nodaemon", "--configuration", config}, ""); err != nil {
		return err
	}
	program := at.child(supervisord)
	defer program.stop()
	events := supervisordLog(filepath.Join(dir, "log"))
	if err := events.await(ctx, program, "RUNNING", s.Processes); err != nil {
		return err
	}
	cpu, rss, err := idle(ctx, program.pid(), s.For)
	if err != nil {
		return err
	}
	found.upkeeps = append(found.upkeeps, upkeep{what: supervisord, processes: s.Processes, cpu: cpu, rss: rss})
	d, err := s.killSupervisords(ctx, program, events)
	found.deaths = append(found.deaths, d)
	return err
}

func supervisordConfig(dir, account string, processes int) string {
	const filesOfEach, others = 4, 1024
	return fmt.Sprintf(`[supervisord]
nodaemon=true
user=%s
logfile=%s/log
logfile_maxbytes=0
pidfile=%s/pid
childlogdir=%s
minfds=%d

[program:bench]
command=%s %s
process_name=p%%(process_num)d
numprocs=%d
directory=%s
autorestart=true
startsecs=1
startretries=10
stdout_logfile=NONE
stderr_logfile=NONE
`, account, dir, dir, dir, others+filesOfEach*processes, sleeperName, sleeperLife, processes, dir)
}

// killSupervisords is [Supervise.killSome] for supervisord.
func (s Supervise) killSupervisords(ctx context.Context, program *child, log supervisordLog) (deaths, error) {
	d := deaths{what: supervisord}
	entries, err := log.read()
	if err != nil {
		return d, err
	}
	pids := map[string]int{} // of the last spawn
	for _, e := range entries {
		if e.event == "spawned" {
			pids[e.process] = e.pid
		}
	}
	killed := make([]time.Time, s.Runs+s.Kills)
	for i := range killed {
		killed[i] = time.Now()
		if err := kill(pids[processName(i)]); err != nil {
			return d, err
		}
		if i < s.Runs { // wait for the restart
			err = log.await(ctx, program, "spawned", s.Processes+i+1)
		} else {
			err = wait(ctx, killPause)
		}
		if err != nil {
			return d, err
		}
	}
	if err := log.await(ctx, program, "spawned", s.Processes+len(killed)); err != nil {
		return d, err
	}
	if entries, err = log.read(); err != nil {
		return d, err
	}
	exited, spawned := map[string]time.Time{}, map[string]time.Time{}
	for _, e := range entries {
		switch e.event {
		case "exited":
			exited[e.process] = e.at
		case "spawned":
			spawned[e.process] = e.at
		}
	}
	for i, at := range killed {
		name := processName(i)
		if exited[name].Before(at) {
			return d, fmt.Errorf("supervisord has not detected the kill of %s", name)
		}
		if i < s.Runs {
			d.restarted = append(d.restarted, spawned[name].Sub(at))
		} else {
			d.detected = append(d.detected, exited[name].Sub(at))
		}
	}
	return d, nil
}

func processName(i int) string { return "p" + strconv.Itoa(i) }

// supervisordLog is the log file of supervisord.
type supervisordLog string

// entry is a log line about a process.
type entry struct {
	at      time.Time // rounded up to the next millisecond
	event   string    // "spawned", "exited" or "RUNNING"
	process string
	pid     int // set only if event is "spawned"
}

var supervisordLine = regexp.MustCompile(`(?m)^(\S+ \S+) INFO spawned: '(\S+)' with pid (\d+)$|^(\S+ \S+) \w+ exited: (\S+) \(|^(\S+ \S+) INFO success: (\S+) entered RUNNING`)

func (l supervisordLog) read() ([]entry, error) {
	text, err := os.ReadFile(string(l))
	if err != nil {
		return nil, err
	}
	var entries []entry
	for _, m := range supervisordLine.FindAllStringSubmatch(string(text), -1) {
		e := entry{event: "spawned", process: m[2]}
		stamp := m[1]
		switch {
		case m[5] != "":
			e.event, e.process, stamp = "exited", m[5], m[4]
		case m[7] != "":
			e.event, e.process, stamp = "RUNNING", m[7], m[6]
		default:
			if e.pid, err = strconv.Atoi(m[3]); err != nil {
				return nil, err
			}
		}
		at, err := time.ParseInLocation("2006-01-02 15:04:05.000", strings.Replace(stamp, ",", ".", 1), time.Local)
		if err != nil {
			return nil, err
		}
		e.at = at.Add(time.Millisecond)
		entries = append(entries, e)
	}
	return entries, nil
}

// await waits until supervisord has logged an event the given number of times.
func (l supervisordLog) await(ctx context.Context, program *child, event string, times int) error {
	ended := false
	err := until(ctx, fmt.Sprintf("supervisord logs %q %d times", event, times), 20*time.Millisecond, func() bool {
		if ended = program.runningPID() < 0; ended {
			return true
		}
		entries, err := l.read()
		logged := 0
		for _, e := range entries {
			if e.event == event {
				logged++
			}
		}
		return err == nil && logged >= times
	})
	if ended {
		return fmt.Errorf("supervisord has ended: %s", tail(string(l)))
	}
	return err
}
