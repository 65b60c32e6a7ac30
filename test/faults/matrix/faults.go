package main

import (
	"fmt"
	"strings"
)

// fault is one fault of the matrix. Its text continues the title of its group.
type fault struct {
	number int
	text   string
	// level is what the test needs: U no processes, P real ones, R root, N
	// namespaces, B the benchmark, W commands for Windows.
	level string
	// measured names the measurement that replaces a test; "" = there is a test.
	measured string
}

// groups are the items of the list; each contains the faults up to the next group's first.
var groups = []struct {
	title string
	first int
}{
	{"The pid file", 1},
	{"Start", 12},
	{"Stop and kill", 26},
	{"Restart, reload, registration, wrong requests", 34},
	{"The agent ends or the host boots", 40},
	{"Journal and disk", 46},
	{"Delivery, clocks, pauses", 51},
	{"Unusual processes", 57},
	{"Accounts, paths, scripts", 63},
	{"Limits", 71},
	{"Supervision", 79},
	{"Many processes", 88},
	{"Kernel, NATS, agent", 91},
	{"Windows, versions, inheritance", 102},
}

// groupList returns the list of the faults without their outcomes.
func groupList() string {
	var text strings.Builder
	for i, g := range groups {
		last := len(faults)
		if i+1 < len(groups) {
			last = groups[i+1].first - 1
		}
		texts := make([]string, 0, last-g.first+1)
		for _, f := range faults[g.first-1 : last] {
			texts = append(texts, f.text)
		}
		fmt.Fprintf(&text, "* **%s** (F%d to F%d): %s\n", g.title, g.first, last, strings.Join(texts, "; "))
	}
	return text.String()
}

const benchmark = "`procfleet-bench supervise` measures it, see [benchmarks.md](../benchmarks.md)"

var faults = []fault{
	{1, "stale, names another program", "P", ""},
	{2, "its pid is reused by a program of the same name in another or an unknown folder", "P", ""},
	{3, "it is reused between check and kill", "N", ""},
	{4, "deleted while the process lives", "P", ""},
	{5, "written late, within the start window", "P", ""},
	{6, "written after the start window, by a process that appears then", "P", ""},
	{7, "empty, without a number, or with an invalid one: -1, 0, 1, above the maximum pid, the agent's pid", "P", ""},
	{8, "with a byte order mark, CRLF, NULs, text after the pid, several lines", "U", ""},
	{9, "a FIFO, a directory, a loop of symbolic links, /dev/zero, 2 GiB large", "P", ""},
	{10, "not readable by an agent without root", "P", ""},
	{11, "contains the id of a thread", "P", ""},
	{12, "the command hangs without a process", "P", ""},
	{13, "it hangs while its daemon runs", "P", ""},
	{14, "it is the program itself, in the foreground", "P", ""},
	{15, "the daemon inherits its output and writes 10 MB", "P", ""},
	{16, "it prints 1 GiB", "P", ""},
	{17, "its output is binary, GBK, or invalid UTF-8", "U", ""},
	{18, "the process dies within the start window", "P", ""},
	{19, "the command fails although its process runs", "P", ""},
	{20, "it dies right after the start window", "P", ""},
	{21, "its pid changes within the start window", "P", ""},
	{22, "it runs already", "P", ""},
	{23, "during the delay before an automatic start", "P", ""},
	{24, "two at the same time", "P", ""},
	{25, "random starts, stops, restarts and kills at the same time", "U, P", ""},
	{26, "the process ignores SIGTERM", "P", ""},
	{27, "it survives SIGKILL", "R", ""},
	{28, "it becomes a fork bomb", "R", ""},
	{29, "it leaves children", "P", ""},
	{30, "it does not run", "P", ""},
	{31, "during the delay before an automatic start, or after the agent gave up", "P", ""},
	{32, "the command fails although the process has ended", "P", ""},
	{33, "the process ends slowly", "P", ""},
	{34, "the restart command leaves the old process running", "P", ""},
	{35, "a restart of a process that does not run", "P", ""},
	{36, "the reload command ends the process", "P", ""},
	{37, "registered twice, and with another spec", "P", ""},
	{38, "unregistered while unknown, and while running", "P", ""},
	{39, "unknown operations, invalid specs", "P", ""},
	{40, "the agent is killed at each point of an operation", "P", ""},
	{41, "during a start whose daemon starts in the meantime", "P", ""},
	{42, "with 100 supervised processes", "P", ""},
	{43, "10 of them die while it does not run", "P", ""},
	{44, "systemd restarts its main process alone or its control group", "R", ""},
	{45, "after a boot pid files are stale, and other processes have their pids", "N", ""},
	{46, "the journal is torn at any byte of its last record", "U", ""},
	{47, "a bit of it is flipped", "U", ""},
	{48, "the disk is full", "P", ""},
	{49, "the data folder is read-only, or deleted while the agent runs", "P", ""},
	{50, "an fsync fails", "U", ""},
	{51, "one command is delivered 100 times at once, after its end, and after a restart of the agent", "P", ""},
	{52, "another operation reuses its id", "P", ""},
	{53, "commands arrive out of order, or too late", "P", ""},
	{54, "the wall clock steps", "U, R", ""},
	{55, "the host is suspended for ten minutes", "U", ""},
	{56, "the agent is stopped for a while", "P", ""},
	{57, "the main process is a zombie", "P", ""},
	{58, "the first process of the container reaps no children, or is the agent", "N", ""},
	{59, "the process is stopped by SIGSTOP", "P", ""},
	{60, "its program file is replaced", "P", ""},
	{61, "long names, spaces and parentheses, scripts, interpreters", "U, P", ""},
	{62, "it runs under another name", "P", ""},
	{63, "/proc hides other accounts from an agent without root", "R, N", ""},
	{64, "the account is missing, has no shell, or is in a directory service, which may not reply", "R", ""},
	{65, "ids, groups, environment, umask and folder under another account", "R", ""},
	{66, "another account, agent without root", "P", ""},
	{67, "the setup path is missing, a file, or not accessible", "P, R", ""},
	{68, "scripts without an interpreter, with CRLF, not executable, being written", "P", ""},
	{69, "the login profile prints, hangs, or exits", "P", ""},
	{70, "a command reads its standard input", "P", ""},
	{71, "a busy thread exceeds a limit on CPU, on 16 CPUs and on one", "U, P", ""},
	{72, "the usage has spikes, or oscillates around a limit", "U", ""},
	{73, "memory leaks over its limit, again and again", "P", ""},
	{74, "the workers of a small master process exceed it together", "P", ""},
	{75, "the process ignores its stop command", "P", ""},
	{76, "a group exceeds its limit: selection of its member", "U", ""},
	{77, "a limit is exceeded during an operation, or on a frozen host", "U", ""},
	{78, "the kernel kills the process because memory is exhausted", "R", ""},
	{79, "the process dies again and again", "U, P", ""},
	{80, "500 processes die at the same time", "P", ""},
	{81, "the host cannot create another process or file", "P", ""},
	{82, "an operator starts the process by hand before its automatic start", "P", ""},
	{83, "an operator replaces it by hand", "P", ""},
	{84, "a periodic process overlaps, ends between two checks, or misses its run", "U, P", ""},
	{85, "a one-shot process ends before the agent checks it", "P", ""},
	{86, "two of three instances run", "P", ""},
	{87, "two processes with one pid file", "P", ""},
	{88, "1,000 idle supervised processes", "B", benchmark},
	{89, "30,000 foreign processes", "B", "`BenchmarkTreesOfALargeHost` of agent/proc measures it"},
	{90, "5,000 concurrent operations", "B", benchmark},
	{91, "a kernel without pidfd", "P", ""},
	{92, "control groups are version 1, hybrid, or read-only", "R, N", ""},
	{93, "NATS is unavailable during operations", "P", ""},
	{94, "an fsync takes seconds", "U", ""},
	{95, "a second agent with the same data folder", "P", ""},
	{96, "handling of one process panics", "U", ""},
	{97, "a spec with shell metacharacters, newlines, Unicode, and 32 KiB", "P", ""},
	{98, "the daemon's log is rotated, and the daemon fills the output of its start command", "P", ""},
	{99, "version and health command hang", "P", ""},
	{100, "a status during a long start", "P", ""},
	{101, "a pid file written in another PID namespace", "N", ""},
	{102, "batch files with spaces, &, ^ and %, PowerShell, output in another encoding (only the construction of the commands, on Linux)", "W", ""},
	{103, "a newer format of the journal", "U", ""},
	{104, "programs must not inherit settings of the agent", "R", ""},
	{105, "the kernel denies pidfd or a change of groups", "N", ""},
}
