package proc

import "testing"

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
