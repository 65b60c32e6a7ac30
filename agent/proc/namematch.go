package proc

import (
	"slices"
	"strings"
)

// commLen is the maximum length of comm, the kernel's name of a process, in bytes.
const commLen = 15

// matchesName reports whether a process has one of the names: as its executable,
// argv[0], the script of an interpreter, its kernel name comm, or a word of a
// virtual machine's command line (a Java main class or jar).
func matchesName(p Process, comm string, names []string) bool {
	for _, name := range names {
		if name == "" {
			continue
		}
		if p.Exe != "" && programName(p.Exe) == plainName(name) {
			return true
		}
		if len(p.Args) > 0 && programName(p.Args[0]) == plainName(name) {
			return true
		}
		if comm == name || len(name) > commLen && comm == name[:commLen] {
			return true
		}
		if matchesArgs(p, name) {
			return true
		}
	}
	return false
}

func matchesArgs(p Process, name string) bool {
	if len(p.Args) < 2 {
		return false
	}
	interpreter := programName(p.Exe)
	if p.Exe == "" {
		interpreter = strings.TrimPrefix(programName(p.Args[0]), "-")
	}
	switch {
	case isScriptHost(interpreter):
		return slices.Contains(scripts(p.Args), plainName(name))
	case isVirtualMachine(interpreter):
		return slices.ContainsFunc(p.Args[1:], func(arg string) bool { return mentions(arg, name) })
	}
	return false
}

// isScriptHost reports whether a program is an interpreter. It ignores versions in
// the name: python3.12, ruby2.7, lua5.4.
func isScriptHost(name string) bool {
	stem := strings.TrimRight(name, "0123456789.-")
	return slices.Contains([]string{
		"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox", "python", "pypy", "perl", "ruby", "node", "nodejs",
		"php", "lua", "luajit", "tclsh", "expect", "Rscript", "pwsh", "env", "deno", "bun",
		"cmd", "powershell", "pythonw", "cscript", "wscript",
	}, stem)
}

func isVirtualMachine(name string) bool {
	return slices.Contains([]string{"java", "javaw", "dotnet", "mono", "beam.smp", "erl"}, name)
}

// scripts returns the base names in argv[1..3] that may be the script of an interpreter. It
// stops at inline code: `sh -c ./app` mentions app but is a shell. The word after -m is a
// Python module.
func scripts(args []string) []string {
	var found []string
	for _, arg := range args[1:min(len(args), 4)] {
		if arg == "-c" || arg == "-e" || arg == "-lc" {
			break
		}
		if !strings.HasPrefix(arg, "-") {
			found = append(found, programName(arg))
		}
	}
	return found
}

// withoutArguments removes the arguments of a script. Such an argument may be the name of
// the program (`ruby /usr/bin/bundle exec app`), but a control script may have the same
// argument (`sh ./stop.sh app`).
func withoutArguments(p Process) Process {
	if len(p.Args) == 0 || !isScriptHost(programName(p.Exe)) {
		return p
	}
	script := slices.IndexFunc(p.Args[1:], func(arg string) bool { return !strings.HasPrefix(arg, "-") && strings.Contains(arg, "/") })
	if script >= 0 {
		p.Args = p.Args[:script+2]
	}
	return p
}

// mentions reports whether a word names the program: a path element, a jar with or
// without its suffix, a main class with or without its package.
func mentions(arg, name string) bool {
	if strings.HasPrefix(arg, "-") && !strings.Contains(arg, "=") {
		return false
	}
	if _, value, ok := strings.Cut(arg, "="); ok {
		arg = value
	}
	if arg == name || strings.HasSuffix(arg, "."+name) && !strings.Contains(arg, "/") {
		return true
	}
	for element := range strings.SplitSeq(plainPath(arg), "/") {
		if element == name || element == name+".jar" || element == name+".dll" {
			return true
		}
	}
	return false
}

// placement is the relation of a process's paths to a setup path.
type placement int

const (
	placeNeutral placement = iota // unknown: the paths are unreadable or belong to the system
	placeInside                   // executable, working directory or script is below the setup path
	placeMixed                    // the executable is elsewhere, the working directory is neutral
	placeForeign                  // executable and working directory are elsewhere
)

// place compares the paths of a process with a setup path whose symbolic links are
// resolved. Executables of the system and the working directory "/" are neutral, since
// packaged daemons and interpreters of unrelated programs have them, too.
func place(p Process, setup string) placement {
	if setup == "" {
		return placeNeutral
	}
	if under(p.Exe, setup) || under(p.Cwd, setup) || scriptUnder(p, setup) {
		return placeInside
	}
	foreignExe := p.Exe != "" && !systemPath(p.Exe)
	foreignCwd := p.Cwd != "" && !samePath(p.Cwd, rootDir()) && !systemPath(p.Cwd)
	switch {
	case foreignExe && foreignCwd:
		return placeForeign
	case foreignExe:
		return placeMixed
	}
	return placeNeutral
}

func scriptUnder(p Process, setup string) bool {
	if len(p.Args) < 2 || !isScriptHost(programName(p.Exe)) && !isVirtualMachine(programName(p.Exe)) {
		return false
	}
	return slices.ContainsFunc(p.Args[1:], func(arg string) bool { return under(arg, setup) })
}

func under(path, dir string) bool {
	if path == "" || dir == "" {
		return false
	}
	path, dir = plainPath(path), strings.TrimSuffix(plainPath(dir), "/")
	return path == dir || strings.HasPrefix(path, dir+"/")
}

func samePath(a, b string) bool {
	return strings.TrimSuffix(plainPath(a), "/") == strings.TrimSuffix(plainPath(b), "/")
}

// windowsPlainPath returns a Windows path in comparable form: lower case, forward slashes,
// and no prefix such as `\\?\`.
func windowsPlainPath(path string) string {
	path = strings.ToLower(strings.ReplaceAll(path, `\`, "/"))
	for _, prefix := range []string{"//?/", "//./", "/??/"} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			return strings.Replace(rest, "unc/", "//", 1)
		}
	}
	return path
}

// windowsProgramName returns the base name of a program's path, in lower case and without
// ".exe".
func windowsProgramName(path string) string {
	path = windowsPlainPath(path)
	return strings.TrimSuffix(path[strings.LastIndexByte(path, '/')+1:], ".exe")
}
