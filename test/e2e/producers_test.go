//go:build linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/testenv"
)

// TestTheExamplesForProducersWork executes the examples in
// docs/how-to/submit-operations.md unchanged on a running system. The examples read
// its addresses from the environment.
func TestTheExamplesForProducersWork(t *testing.T) { //nolint:tparallel // the examples use one server
	t.Parallel()
	e := newExamples(t)
	t.Run("curl", func(t *testing.T) {
		testenv.Need(t, "curl", "apt-get install curl")
		var answer struct{ ID string }
		if out := e.shell(t, e.block("run: curl")); json.Unmarshal([]byte(out), &answer) != nil {
			t.Fatalf("no response with an id: %s", out)
		}
		e.accepted(t, answer.ID)
	})
	t.Run("python", func(t *testing.T) {
		testenv.Need(t, "python3", "apt-get install python3")
		e.accepted(t, strings.TrimSpace(e.run(t, "python3", e.file(t, "post.py", e.block("run: python")))))
	})
	t.Run("nats", func(t *testing.T) {
		e.natsCommand(t)
		e.shell(t, e.block("run: nats"))
		e.accepted(t, "")
	})
	t.Run("nats, with a reply", func(t *testing.T) {
		e.natsCommand(t)
		e.acceptedWithReply(t, e.block("run: nats-reply"))
	})
	t.Run("Go", func(t *testing.T) {
		// With the nats.go of this module.
		status, id, _ := strings.Cut(strings.TrimSpace(e.run(t, "go", "run", e.file(t, "main.go", e.block("run: go")))), " ")
		if status != "201" {
			t.Errorf("status %q", status)
		}
		e.accepted(t, id)
	})
	t.Run("nats, what failed", func(t *testing.T) {
		e.natsCommand(t)
		e.rejectedSubmission(t)
		out := e.shell(t, e.block("run: nats-failed"))
		for _, text := range []string{"Procfleet-Error-Code: invalid_request", "dance"} {
			if strings.Count(out, text) < 2 { // once by get and once by view
				t.Errorf("%q is not twice in %s", text, out)
			}
		}
	})
	// No test runs this example with nats-py; this checks only that it is valid
	// Python.
	t.Run("nats-py compiles", func(t *testing.T) {
		testenv.Need(t, "python3", "apt-get install python3")
		e.run(t, "python3", "-m", "py_compile", e.file(t, "publish.py", e.block("compile: python")))
	})
	if unused := slices.Collect(maps.Keys(e.blocks)); len(unused) != 0 && !t.Failed() && !e.skipped {
		t.Errorf("no test runs the examples %q", unused)
	}
}

// examples are the marked blocks of docs/how-to/submit-operations.md, and the
// system on which they run.
type examples struct {
	c       *client
	blocks  map[string]string // by the text of the mark; a block is removed when it is used
	env     []string
	js      jetstream.JetStream
	seen    int // number of tasks
	skipped bool
}

// marked matches a block of code with its mark.
var marked = regexp.MustCompile("(?s)<!-- ((?:run|compile): [a-z-]+) -->\n```[a-z]+\n(.*?)\n```\n")

func newExamples(t *testing.T) *examples {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.ModuleRoot(), "docs", "how-to", "submit-operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	listen := testenv.FreeAddress(t)
	u := newUp(t, "--nats-listen", listen)
	u.start()
	e := &examples{c: u.c, blocks: map[string]string{}, env: append(os.Environ(), "PROCFLEET_SERVER="+u.c.url, "NATS_URL=nats://"+listen, "PROCFLEET_DATA="+u.data)}
	e.env = append(e.env, producer(t, u)...)
	for _, block := range marked.FindAllStringSubmatch(string(text), -1) {
		if e.blocks[block[1]] != "" {
			t.Errorf("two blocks are marked %q", block[1])
		}
		e.blocks[block[1]] = block[2]
	}
	if e.js, err = jetstream.New(testenv.ConnectAsServer(t, "nats://"+listen, u.data)); err != nil {
		t.Fatal(err)
	}
	return e
}

// producer creates a NATS user, and returns the environment of its programs.
func producer(t *testing.T, u *up) []string {
	t.Helper()
	cmd := exec.Command(u.program, "nats-auth", "user", "producer", "--name", "shop", "--nats-auth", filepath.Join(u.data, "nats-auth"))
	var said strings.Builder
	cmd.Stderr = &said
	credentials, err := cmd.Output()
	if err != nil {
		t.Fatal(err, said.String())
	}
	file := tempFile(t, "producer.creds")
	if err := os.WriteFile(file, credentials, 0o600); err != nil {
		t.Fatal(err)
	}
	inbox := regexp.MustCompile(`_INBOX\.producer\.\w+`).FindString(said.String())
	return []string{"NATS_CREDS=" + file, "NATS_INBOX=" + inbox}
}

func (e *examples) block(mark string) string {
	text := e.blocks[mark]
	delete(e.blocks, mark)
	return text
}

// natsCommand adds the nats command to the front of PATH. Its build takes a minute
// or two, so it runs only in CI or on request.
func (e *examples) natsCommand(t *testing.T) {
	t.Helper()
	if !testenv.Required("natscli") {
		e.skipped = true
		testenv.Missing(t, "natscli", "the nats command is built, from test/natscli, only in CI or with PROCFLEET_REQUIRE=natscli")
	}
	path := testenv.BuildTool(t, "test/natscli", "github.com/nats-io/natscli/nats")
	e.env = append(e.env, "XDG_CONFIG_HOME="+t.TempDir(), "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"))
}

func (e *examples) file(t *testing.T, name, text string) string {
	t.Helper()
	path := tempFile(t, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// shell executes a script, which ends at the first error.
func (e *examples) shell(t *testing.T, script string) string {
	t.Helper()
	return e.run(t, "sh", "-ec", script)
}

func (e *examples) run(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := e.try(t, finishTimeout, program, args...)
	if err != nil {
		t.Fatalf("%s: %v", program, err)
	}
	return out
}

// try runs a program and returns its output. After the timeout it kills the program
// with all its descendants.
func (e *examples) try(t *testing.T, timeout time.Duration, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = e.env, &out, &said
	if program == "sh" { // scripts create files in their folder; go needs this module
		cmd.Dir = t.TempDir()
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	t.Logf("%s: %v\n%s%s", program, err, out.Bytes(), said.Bytes())
	return out.String(), err
}

// accepted waits for one more task, compares its id with the output of an example,
// if there is any, and waits for its end.
func (e *examples) accepted(t *testing.T, printed string) {
	t.Helper()
	e.seen++
	c := &client{t: t, url: e.c.url}
	var tasks []task
	testenv.Eventually(t, finishTimeout, func() bool { tasks = c.tasks(); return len(tasks) >= e.seen }, "the operation is accepted")
	if len(tasks) != e.seen || printed != "" && tasks[0].ID != printed {
		t.Errorf("the example printed %q; tasks are %v, want %d of them", printed, tasks, e.seen)
	}
	c.wait(tasks[0].ID)
}

// acceptedWithReply runs an example that subscribes and then publishes. The example
// waits a fixed time for its subscription, which may be too short on a busy
// machine. It then misses the reply, and runs again.
func (e *examples) acceptedWithReply(t *testing.T, script string) {
	t.Helper()
	for range 5 {
		out, err := e.try(t, startTimeout, "sh", "-ec", script)
		if err != nil {
			e.accepted(t, "")
			continue
		}
		found := regexp.MustCompile(`"id": ?"([^"]+)"`).FindStringSubmatch(out)
		if found == nil {
			t.Fatalf("no reply with an id: %s", out)
		}
		e.accepted(t, found[1])
		return
	}
	t.Error("the example got no reply")
}

// rejectedSubmission publishes an invalid submission, and waits until it is stored as failed.
func (e *examples) rejectedSubmission(t *testing.T) {
	t.Helper()
	if _, err := e.js.Publish(t.Context(), "procfleet.submit", []byte(`{"action":"dance"}`)); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, finishTimeout, func() bool { return messages(t, e.js, "PROCFLEET_SUBMIT_FAILED") == 1 }, "the submission fails")
}
