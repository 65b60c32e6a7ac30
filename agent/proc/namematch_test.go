package proc

import (
	"strings"
	"testing"
)

func TestMatchesName(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, exe, comm string
		args            []string
		want            bool
	}{
		{"nginx", "/usr/sbin/nginx", "nginx", []string{"nginx: master process"}, true},
		{"nginx", "/usr/bin/sleep", "sleep", []string{"sleep", "9"}, false},
		{"app.sh", "/usr/bin/dash", "app.sh", []string{"/bin/sh", "./app.sh"}, true},
		{"start_long_name.sh", "/usr/bin/dash", "start_long_name", []string{"/bin/sh", "/opt/x/start_long_name.sh"}, true},
		{"app", "/usr/bin/dash", "sh", []string{"sh", "-c", "./app"}, false},
		{"app.js", "/usr/bin/node", "node", []string{"node", "--stack-size", "4096", "app.js"}, true},
		{"app.py", "/usr/bin/python3.12", "python3.12", []string{"python3", "-u", "/opt/app.py", "--port", "1"}, true},
		{"http.server", "/usr/bin/python3", "python3", []string{"python3", "-m", "http.server"}, true},
		{"app", "/usr/bin/tail", "tail", []string{"tail", "-f", "/data/app/app"}, false},
		{"Main", "/usr/lib/jvm/bin/java", "java", []string{"java", "-Xmx1g", "-cp", "x", "com.example.Main"}, true},
		{"order", "/usr/lib/jvm/bin/java", "java", []string{"java", "-jar", "/data/lib/order.jar"}, true},
		{"order", "/usr/lib/jvm/bin/java", "java", []string{"java", "-Dhome=/data/order/conf", "x.Main"}, true},
		{"order", "/usr/lib/jvm/bin/java", "java", []string{"java", "-jar", "/data/reorder.jar"}, false},
		{"app", "", "app", nil, true},
		{"", "/usr/bin/x", "x", []string{"x"}, false},
	} {
		p := Process{Exe: test.exe, Args: test.args}
		if got := matchesName(p, test.comm, []string{test.name}); got != test.want {
			t.Errorf("%q against %s %q: got %t, want %t", test.name, test.exe, test.args, got, test.want)
		}
	}
}

func TestArgumentsOfAScriptAreNotItsName(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		exe  string
		args []string
		want bool
	}{
		{"/usr/bin/dash", []string{"/bin/sh", "./stop.sh", "app"}, false},
		{"/usr/bin/ruby3.2", []string{"ruby", "/usr/bin/bundle", "exec", "app"}, false},
		{"/usr/bin/dash", []string{"/bin/sh", "-x", "./app"}, true},
		{"/usr/bin/node", []string{"node", "--stack-size", "4096", "app"}, true},
		{"/opt/bin/app", []string{"/opt/bin/app", "/etc/app.conf"}, true},
		{"/usr/lib/jvm/bin/java", []string{"java", "-jar", "/data/lib/x.jar", "app"}, true},
		{"/usr/bin/dash", nil, false},
	} {
		p := Process{Exe: test.exe, Args: test.args}
		if got := matchesName(withoutArguments(p), "", []string{"app"}); got != test.want {
			t.Errorf("%s %q: got %t, want %t", test.exe, test.args, got, test.want)
		}
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	line := "4437 (a) R (b) S 1 2 3 0 -1 4194560 1 2 3 4 50 60 7 8 20 0 9 0 123456 1000 77 18446744073709551615 1"
	st, err := parseStat([]byte(line))
	want := Stat{
		PID: 4437, Comm: "a) R (b", State: 'S', PPID: 1, PGID: 2, Session: 3,
		UTime: 50, STime: 60, Threads: 9, Start: 123456, RSSPages: 77,
	}
	if err != nil || st != want {
		t.Fatalf("got %+v, %v; want %+v", st, err, want)
	}
	kernel, err := parseStat([]byte(strings.Replace(line, "4194560", "2129984", 1)))
	if err != nil || !kernel.Kernel {
		t.Errorf("got %+v, %v; want a kernel thread", kernel, err)
	}
	for _, bad := range []string{"", "12", "x (a) S", "1 (a", "1 (a) S 1 2", "1 (a) S x 2 3 0 -1 0 1 2 3 4 5 6 7 8 20 0 9 0 1 1 1"} {
		if st, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: got %+v, want an error", bad, st)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (a) S 1 2 3 0 -1 0 1 2 3 4 5 6 7 8 20 0 9 0 1 1 1"))
	f.Add([]byte("1 ()) S"))
	f.Fuzz(func(_ *testing.T, text []byte) { _, _ = parseStat(text) })
}

func TestPathsOfWindowsAreComparedAsWindowsDoes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ a, b string }{
		{`C:\App\bin`, `c:\app\BIN`},
		{`C:\App\bin`, `C:/App/bin`},
		{`\\?\C:\App`, `C:\App`},
		{`\\?\UNC\server\share`, `\\server\share`},
		{`\??\C:\App`, `C:\App`},
	} {
		if a, b := windowsPlainPath(test.a), windowsPlainPath(test.b); a != b {
			t.Errorf("%s is %s, and %s is %s", test.a, a, test.b, b)
		}
	}
	for path, want := range map[string]string{
		`C:\App\Nginx.EXE`: "nginx", "nginx": "nginx", `D:/x/java.exe`: "java", `C:\app\start.bat`: "start.bat", "": "",
	} {
		if got := windowsProgramName(path); got != want {
			t.Errorf("the name of %q is %q, want %q", path, got, want)
		}
	}
}
