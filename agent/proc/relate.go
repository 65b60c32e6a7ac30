package proc

// relate makes of a table whose parents are only numbers one like those of
// systems that know better. A process keeps the number of its parent for ever,
// while the number may have gone to another process since: one that is younger
// than its child is not its parent. PGID becomes the oldest ancestor below the
// agent, so that what a command of the agent started bears the command's pid.
func relate(stats []Stat, agent int) {
	rows := make(map[int]*Stat, len(stats))
	for i := range stats {
		rows[stats[i].PID] = &stats[i]
	}
	for i := range stats {
		if parent, ok := rows[stats[i].PPID]; !ok || parent.Start > stats[i].Start || parent.PID == stats[i].PID {
			stats[i].PPID = 0
		}
	}
	for i := range stats {
		top := &stats[i]
		// Two that started in the same tick could each be the other's parent.
		for steps := 0; top.PPID != 0 && top.PPID != agent && steps < len(stats); steps++ {
			top = rows[top.PPID]
		}
		stats[i].PGID = top.PID
	}
}
