package proc

import "errors"

// Alive reports whether the identified process still runs. Zombies do not. When
// it cannot be told, say because the agent has no file descriptors left, the
// answer is yes: nobody must take a process for stopped without proof.
func Alive(id Identity) bool {
	_, err := statOf(id)
	return !errors.Is(err, ErrGone)
}

// statOf reads the numbers of exactly the identified process; ErrGone when it
// ended or when the pid belongs to another one.
func statOf(id Identity) (Stat, error) {
	boot, err := bootID()
	if err != nil {
		return Stat{}, err
	}
	if id.BootID != boot || id.PID <= 0 {
		return Stat{}, ErrGone
	}
	st, err := readStat(id.PID)
	if err != nil {
		return Stat{}, err
	}
	if st.Start != id.Start || dead(st.State) {
		return Stat{}, ErrGone
	}
	return st, nil
}

func processOf(boot string, st Stat) Process {
	return Process{
		Identity: Identity{BootID: boot, PID: st.PID, Start: st.Start},
		PPID:     st.PPID, PGID: st.PGID, Session: st.Session,
		UID: -1, State: st.State, Name: st.Comm,
	}
}
