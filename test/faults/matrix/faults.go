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
	title   string
	first   int
	summary string
}{
	{"The pid file", 1, "stale, reused, deleted, late, malformed, unreadable, or not a regular file"},
	{"Start", 12, "the command hangs, fails, prints 1 GiB, or is the program itself; the process dies or changes its pid; concurrent operations"},
	{"Stop and kill", 26, "the process ignores signals, ends slowly, leaves children, becomes a fork bomb, or does not run"},
	{"Restart, reload, registration, wrong requests", 34, "the old process survives a restart; a reload ends the process; repeated and unknown registrations; invalid specs"},
	{"The agent ends or the host boots", 40, "the agent is killed at each point of an operation, and with 100 supervised processes; systemd restarts it; pid files are stale after a boot"},
	{"Journal and disk", 46, "a torn or damaged journal, a failed fsync, a full disk, a read-only or deleted data folder"},
	{"Delivery, clocks, pauses", 51, "repeated, reordered and late commands; the wall clock steps; the host is suspended"},
	{"Unusual processes", 57, "zombies, containers, SIGSTOP, replaced program files, unusual and changed names"},
	{"Accounts, paths, scripts", 63, "hidden processes in /proc; accounts, paths and permissions that are missing; scripts that cannot be executed; login profiles that hang"},
	{"Limits", 71, "CPU and memory of processes and groups: spikes, leaks, small masters with workers, frozen hosts, exhausted memory"},
	{"Supervision", 79, "crash loops; 500 processes die at once; an exhausted host; an operator starts or replaces the process; periodic and one-shot processes; several instances"},
	{"Many processes", 88, "1,000 idle supervised processes; 30,000 foreign processes; 5,000 concurrent operations"},
	{"Kernel, NATS, agent", 91, "no pidfd; control groups of version 1; NATS is unavailable; a slow fsync; two agents with one data folder; a panic; hanging version and health commands"},
	{"Windows, versions, inheritance", 102, "commands for Windows (only their construction, on Linux); a newer journal; inherited settings; denied system calls"},
}

// groupList returns the list of the groups without their outcomes.
func groupList() string {
	var text strings.Builder
	for i, g := range groups {
		last := len(faults)
		if i+1 < len(groups) {
			last = groups[i+1].first - 1
		}
		fmt.Fprintf(&text, "* **%s** (F%d to F%d): %s\n", g.title, g.first, last, g.summary)
	}
	return text.String()
}

const benchmark = "`procfleet-bench supervise` measures it, see [benchmarks.md](../benchmarks.md)"

var faults = []fault{
	{1, "stale, names another program", "P", ""},
	{2, "the pid is reused by a program of the same name in another or an unknown folder", "P", ""},
	{3, "the pid is reused between check and kill", "N", ""},
	{4, "deleted while the process lives", "P", ""},
	{5, "written late, within the start window", "P", ""},
	{6, "written after the start window, by a process that appears then", "P", ""},
	{7, "empty, without a number, or with an invalid one: -1, 0, 1, above the maximum pid, the agent's pid", "P", ""},
	{8, "with a byte order mark, CRLF, NULs, text after the pid, several lines", "U", ""},
	{9, "a FIFO, a directory, a loop of symbolic links, /dev/zero, or 2 GiB large", "P", ""},
	{10, "not readable by an agent that is not root", "P", ""},
	{11, "contains the id of a thread", "P", ""},
	{12, "the command hangs and starts no process", "P", ""},
	{13, "it hangs while its daemon runs", "P", ""},
	{14, "it is the program itself, in the foreground", "P", ""},
	{15, "the daemon inherits its output and writes 10 MB", "P", ""},
	{16, "it prints 1 GiB", "P", ""},
	{17, "its output is binary, GBK, or invalid UTF-8", "U", ""},
	{18, "the process dies within the start window", "P", ""},
	{19, "the command fails although its process runs", "P", ""},
	{20, "the process dies right after the start window", "P", ""},
	{21, "the pid changes within the start window", "P", ""},
	{22, "the process runs already", "P", ""},
	{23, "during the delay before an automatic start", "P", ""},
	{24, "two at the same time", "P", ""},
	{25, "concurrent starts, stops, restarts and kills in random order", "U, P", ""},
	{26, "the process ignores SIGTERM", "P", ""},
	{27, "it survives SIGKILL", "R", ""},
	{28, "it becomes a fork bomb", "R", ""},
	{29, "children outlive it", "P", ""},
	{30, "it does not run", "P", ""},
	{31, "during the delay before an automatic start, or after the agent gave up the process", "P", ""},
	{32, "the command fails although the process has ended", "P", ""},
	{33, "the process ends slowly", "P", ""},
	{34, "the restart command leaves the old process running", "P", ""},
	{35, "a restart of a process that does not run", "P", ""},
	{36, "the reload command ends the process", "P", ""},
	{37, "a process is registered twice, and with another spec", "P", ""},
	{38, "a process is unregistered while unknown, and while running", "P", ""},
	{39, "unknown operations and invalid specs", "P", ""},
	{40, "the agent is killed at each point of an operation", "P", ""},
	{41, "during a start whose daemon starts in the meantime", "P", ""},
	{42, "with 100 supervised processes", "P", ""},
	{43, "10 of them die while it does not run", "P", ""},
	{44, "systemd restarts its main process alone or its whole control group", "R", ""},
	{45, "after a boot pid files are stale, and other processes have their pids", "N", ""},
	{46, "the journal is torn at any byte of its last record", "U", ""},
	{47, "a bit of it is flipped", "U", ""},
	{48, "the disk is full", "P", ""},
	{49, "the data folder is read-only, or is deleted while the agent runs", "P", ""},
	{50, "an fsync of the journal fails", "U", ""},
	{51, "one command is delivered 100 times concurrently, after its end, and after a restart of the agent", "P", ""},
	{52, "another operation reuses the id of an operation", "P", ""},
	{53, "commands arrive out of order, or too late", "P", ""},
	{54, "the wall clock steps", "U, R", ""},
	{55, "the host is suspended for ten minutes", "U", ""},
	{56, "the agent is stopped for a while, as on a starved host", "P", ""},
	{57, "the main process is a zombie", "P", ""},
	{58, "the first process of the container reaps no children, or is the agent", "N", ""},
	{59, "the process is stopped by SIGSTOP", "P", ""},
	{60, "its program file is replaced while it runs", "P", ""},
	{61, "long names, names with spaces and parentheses, scripts, interpreters", "U, P", ""},
	{62, "the process runs under another name", "P", ""},
	{63, "/proc hides the processes of other accounts from an agent that is not root", "R, N", ""},
	{64, "the account is missing, has no shell, or exists only in a directory service, which may not reply", "R", ""},
	{65, "ids, groups, environment, umask and folder under another account", "R", ""},
	{66, "another account, and the agent is not root", "P", ""},
	{67, "the setup path is missing, is a file, or is not accessible to the account", "P, R", ""},
	{68, "scripts without an interpreter, with CRLF, not executable, being written", "P", ""},
	{69, "the login profile prints, hangs, or exits", "P", ""},
	{70, "a command reads its standard input", "P", ""},
	{71, "a busy thread exceeds a limit on CPU, on 16 CPUs and on one", "U, P", ""},
	{72, "the usage has spikes, or oscillates around a limit", "U", ""},
	{73, "a process leaks memory over its limit, again and again", "P", ""},
	{74, "the workers of a small master process together exceed the limit", "P", ""},
	{75, "a process over its limit ignores its stop command", "P", ""},
	{76, "a group exceeds its limit: selection of the member that the agent ends", "U", ""},
	{77, "a limit is exceeded during an operation, or on a frozen host", "U", ""},
	{78, "the kernel kills the process because memory is exhausted", "R", ""},
	{79, "the process dies again and again", "U, P", ""},
	{80, "500 processes die at the same time", "P", ""},
	{81, "the host cannot create another process or file", "P", ""},
	{82, "an operator starts the process by hand during the delay before its automatic start", "P", ""},
	{83, "an operator replaces the process by hand", "P", ""},
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
	{96, "the agent's handling of one process panics", "U", ""},
	{97, "a spec with shell metacharacters, newlines, Unicode, and 32 KiB", "P", ""},
	{98, "the daemon's log is rotated, and the daemon fills the output of its start command", "P", ""},
	{99, "the version command and the health command hang", "P", ""},
	{100, "a status during a long start", "P", ""},
	{101, "a pid file written in another PID namespace", "N", ""},
	{102, "batch files with spaces, &, ^ and %, PowerShell, output in another encoding (only the construction of the commands is tested, on Linux)", "W", ""},
	{103, "the journal has a newer format", "U", ""},
	{104, "programs must not inherit settings of the agent", "R", ""},
	{105, "the kernel denies pidfd or a change of groups", "N", ""},
}
