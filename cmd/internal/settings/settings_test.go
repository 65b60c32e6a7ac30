package settings

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func newCommand(t *testing.T, args ...string) *cobra.Command {
	t.Helper()
	cmd := &cobra.Command{Use: "x"}
	cmd.Flags().String(Flag, "", "")
	cmd.Flags().String("nats", "default", "")
	cmd.Flags().Int("cloud-area", 0, "")
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	root, other := &cobra.Command{Use: "root"}, &cobra.Command{Use: "y"}
	other.Flags().String("other", "", "")
	root.AddCommand(cmd, other)
	return cmd
}

func TestFlagCountsBeforeEnvironmentBeforeFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("nats: [file, more]\ncloud-area: 3\nother: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
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

func TestWrongValuesNameTheirSource(t *testing.T) {
	t.Setenv("PROCFLEET_CLOUD_AREA", "many")
	if err := Fill(newCommand(t)); err == nil || !strings.Contains(err.Error(), "PROCFLEET_CLOUD_AREA") {
		t.Errorf("got %v", err)
	}
	if err := Fill(newCommand(t, "--cloud-area=1", "--config=/does/not/exist")); err == nil || !strings.Contains(err.Error(), "--config") {
		t.Errorf("got %v", err)
	}
}

func TestKeysOfNoCommandAreNamed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("natts: x\nother: y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Fill(newCommand(t, "--config", file))
	if err == nil || !strings.Contains(err.Error(), `"natts"`) || strings.Contains(err.Error(), "other") {
		t.Errorf("got %v", err)
	}
}
