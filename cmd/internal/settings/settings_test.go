package settings

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/internal/invalid"
)

func newCommand(t *testing.T, args ...string) *cobra.Command {
	t.Helper()
	cmd := &cobra.Command{Use: "x"}
	cmd.Flags().String(Flag, "", "")
	cmd.Flags().Bool(CheckFlag, false, "")
	cmd.Flags().String("nats", "default", "")
	cmd.Flags().String("token", "", "")
	cmd.Flags().Int("cloud-area", 0, "")
	cmd.Flags().Bool("agent", true, "")
	cmd.Flags().Duration("drain", time.Second, "")
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	root, other := &cobra.Command{Use: "root"}, &cobra.Command{Use: "y"}
	other.Flags().String("other", "", "")
	root.AddCommand(cmd, other)
	return cmd
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// loaded returns the settings and their errors; the errors omit the folder of the file.
func loaded(t *testing.T, text string, args ...string) (*Settings, string) {
	t.Helper()
	file := writeFile(t, text)
	s := Load(newCommand(t, append(args, "--config", file)...))
	return s, said(s.Err(), file)
}

func said(err error, file string) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), filepath.Dir(file)+"/", "")
}

func TestFlagCountsBeforeEnvironmentBeforeFile(t *testing.T) {
	file := writeFile(t, "nats: [file, more]\ncloud-area: 3\nother: x\n")
	for _, c := range []struct{ flag, env, want string }{
		{"", "", "file,more"}, {"", "env", "env"}, {"flag", "env", "flag"},
	} {
		if c.env != "" {
			t.Setenv("PROCFLEET_NATS", c.env)
		}
		args := []string{"--config", file}
		if c.flag != "" {
			args = append(args, "--nats", c.flag)
		}
		cmd := newCommand(t, args...)
		if err := Fill(cmd); err != nil {
			t.Fatal(err)
		}
		if got := cmd.Flag("nats").Value.String(); got != c.want {
			t.Errorf("flag %q, environment %q: %q, want %q", c.flag, c.env, got, c.want)
		}
		if got := cmd.Flag("cloud-area").Value.String(); got != "3" {
			t.Errorf("cloud-area %s", got)
		}
	}
}

func TestEverythingThatIsWrongIsToldAtOnceWithItsPlace(t *testing.T) {
	t.Setenv("PROCFLEET_AGENT", "perhaps")
	file := writeFile(t, `# the worker
nats: nats://user:word@one
cloud-area: many
natts: x
other: fine
cloud-area: 3
drain:
  soft: 3s
token:
check-config: true
`)
	s := Load(newCommand(t, "--config", file))
	s.Wrong("nats", "%q is too short", `nats://user:wo "rd@one`)
	s.Wrong("cloud-area", "follows from the first mistake")
	s.Refused(errors.Join(invalid.Fieldf("Conn", "is not there yet"), invalid.Fieldf("Drain", "is wrong too"), errors.New("two of them do not go together")),
		map[string]string{"Drain": "drain"})
	want := `9 settings are wrong (see --help):
config.yaml:2: nats: "nats://xxxxx@one" is too short
config.yaml:3: cloud-area: "many" is not a whole number
config.yaml:4: natts: no such setting; did you mean "nats"?
config.yaml:6: cloud-area: already set on line 3
config.yaml:7: drain: contains further settings; a setting is a value or a list of values
config.yaml:9: token: has no value; remove the line, or write "" for an empty value
config.yaml:10: check-config: belongs on the command line
PROCFLEET_AGENT: "perhaps" is neither true nor false
two of them do not go together`
	if diff := cmp.Diff(want, said(s.Err(), file)); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(s.Err(), ErrUsage) {
		t.Error("it does not count as wrong usage")
	}
}

func TestAFileThatCannotBeReadIsNotGuessedAt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"nats: x\n\t- y\n":           "config.yaml:2: not YAML: ",
		"nats: x\ncloud: [1, 2\n":    "config.yaml:2: not YAML: ",
		"- nats\n":                   "config.yaml:1: the file must contain names and values",
		"nats: x\n---\nnats: y\n":    "a second document begins",
		"nats: \"no end\nother: 1\n": "not YAML: ",
		"a: 1\nb: [x\nc: 2\n":        "config.yaml:2: not YAML: ",
		"a: 1\nb: 2\n   c: 3\n":      "config.yaml:3: not YAML: ",
	} {
		s, got := loaded(t, text)
		if !strings.Contains(got, want) || !s.Unread() {
			t.Errorf("%q: %s, want %q in it", text, got, want)
		}
	}
	missing := Load(newCommand(t, "--config=/does/not/exist"))
	if err := missing.Err(); err == nil || !strings.HasPrefix(err.Error(), "--config: ") || !missing.Unread() {
		t.Errorf("got %v", err)
	}
}

func TestFilesThatSetNothingAreFine(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "# nothing\n", "---\n"} {
		if _, got := loaded(t, text); got != "" {
			t.Errorf("%q: %s", text, got)
		}
	}
}

func TestASettingThatIsNearlyRightIsNamed(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"cloud_area": `did you mean "cloud-area"`, "clud-area": `did you mean "cloud-area"`,
		"Nats": `did you mean "nats"`, "othre": `did you mean "other"`, "completely-different": "settings are named like flags",
	} {
		if _, got := loaded(t, key+": x\n"); !strings.Contains(got, key+": no such setting; "+want) && !strings.Contains(got, want) {
			t.Errorf("%s: %s", key, got)
		}
	}
}

func TestTheReportShowsPlacesAndNoSecrets(t *testing.T) {
	t.Setenv("PROCFLEET_TOKEN", "abc")
	s, wrong := loaded(t, "nats: [\"nats://me:se,cr@et@one:4222\", nats://abc@two, \"redis://three/0?sentinel_password=word&x=1\"]\ncloud-area: 0\n", "--drain=5s")
	if wrong != "" {
		t.Fatal(wrong)
	}
	var out strings.Builder
	if err := s.Report(&out); err != nil {
		t.Fatal(err)
	}
	fields := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"configuration is fine config ", "nats://xxxxx@one:4222,nats://xxxxx@two,redis://three/0?sentinel_password=xxxxx&x=1 (", "config.yaml:1)",
		"token xxxxx (PROCFLEET_TOKEN)", "drain 5s (--drain)",
	} {
		if !strings.Contains(fields, want) {
			t.Errorf("no %q in\n%s", want, fields)
		}
	}
	if strings.Contains(fields, "cloud-area") {
		t.Errorf("a default is told:\n%s", fields)
	}
}

func TestTheReportHidesThePasswordOfAServerWithoutAScheme(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"me:word@one:4222": "xxxxx@one:4222", "me:word@one,nats://me:word@two": "xxxxx@one,nats://xxxxx@two",
		"nats://me:word@one,me:word@two": "nats://xxxxx@two", "one,me:word@two": "xxxxx@two",
	} {
		s, _ := loaded(t, "", "--nats", given)
		var out strings.Builder
		if err := s.Report(&out); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), " "+want+" ") {
			t.Errorf("%s: no %s in\n%s", given, want, out.String())
		}
	}
}

func TestZeroIsNotTakenForTheDefault(t *testing.T) {
	t.Parallel()
	s, _ := loaded(t, "drain: 0s\n")
	s.AtLeast(1, "drain", "cloud-area")
	text := s.Err().Error()
	if !strings.Contains(text, ":1: drain: 0s is too small") || !strings.Contains(text, "--cloud-area: 0 is too small") {
		t.Errorf("got %s", text)
	}
}
