package main

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// ask sends a request with a token to a dispatcher, and returns the HTTP status.
func ask(t *testing.T, url, token string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func metricsOf(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestARunningSystemFollowsTheFileOfApplications(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "apps.yaml")
	binary := testenv.BuildBinary(t, "./cmd/procfleet")
	app := func(args ...string) (string, error) {
		out, err := exec.Command(binary, append([]string{"app"}, append(args, "--apps", file)...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	secret, err := app("add", "shop")
	if err != nil {
		t.Fatal(err)
	}
	s := up(t, t.TempDir(), "--apps", file, "--agent=false")
	tasks := s.url + "/v1/tasks"
	if ask(t, tasks, "shop."+secret) != http.StatusOK || ask(t, tasks, "shop.guess") != http.StatusUnauthorized || ask(t, tasks, "late.later") != http.StatusUnauthorized {
		t.Error("the file was not read at the start")
	}
	s.procfleet(0, "task", "list", "--token", "shop."+secret)
	s.procfleet(1, "task", "list", "--token", "shop.guess")

	if _, err := app("add", "late", "--secret", "later"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, startTimeout, func() bool { return ask(t, tasks, "late.later") == http.StatusOK }, "the new application is known")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("applications: [oops"), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, startTimeout, func() bool {
		return strings.Contains(metricsOf(t, s.url), `procfleet_dispatcher_applications_reads_total{outcome="unusable"`)
	}, "the broken file is noticed")
	if ask(t, tasks, "shop."+secret) != http.StatusOK || ask(t, tasks, "late.later") != http.StatusOK {
		t.Error("a broken file keeps callers out")
	}
	s.WaitOutput(t, startTimeout, "applications reload failed, keeping the previous ones")
	if _, err := app("remove", "shop"); err == nil {
		t.Error("a broken file was written over")
	}
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := app("remove", "shop"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, startTimeout, func() bool { return ask(t, tasks, "shop."+secret) == http.StatusUnauthorized }, "the removed application is refused")
	if ask(t, tasks, "late.later") != http.StatusOK {
		t.Error("the other one is refused as well")
	}
	for _, want := range []string{"procfleet_dispatcher_applications ", "procfleet_dispatcher_refused_calls_total{", "procfleet_dispatcher_secret_hashes_total"} {
		if !strings.Contains(strings.ReplaceAll(metricsOf(t, s.url), "applications{", "applications {"), want) {
			t.Errorf("no metric %s", want)
		}
	}
}
