//go:build linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/testenv"
)

// TestTheExamplesForProducersWork runs what docs/how-to/submit-operations.md shows, as it is
// there, against a system that is up: only the addresses, which the examples
// take from the environment, are its own.
func TestTheExamplesForProducersWork(t *testing.T) {
	e := newExamples(t)
	t.Run("curl", func(t *testing.T) {
		testenv.Need(t, "curl", "apt-get install curl")
		var answer struct{ ID string }
		if out := e.shell(t, e.block("run: curl")); json.Unmarshal([]byte(out), &answer) != nil {
			t.Fatalf("no answer with an id: %s", out)
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
		e.refused(t)
		out := e.shell(t, e.block("run: nats-failed"))
		for _, text := range []string{"Procfleet-Error-Code: invalid_request", "dance"} {
			if strings.Count(out, text) < 2 { // get and view
				t.Errorf("%q is not twice in %s", text, out)
			}
		}
	})
	// What nats-py makes of it is not tested: only that this is Python.
	t.Run("nats-py compiles", func(t *testing.T) {
		testenv.Need(t, "python3", "apt-get install python3")
		e.run(t, "python3", "-m", "py_compile", e.file(t, "publish.py", e.block("compile: python")))
	})
	if unused := slices.Collect(maps.Keys(e.blocks)); len(unused) != 0 && !t.Failed() && !e.skipped {
		t.Errorf("nothing runs the examples %q", unused)
	}
}

// examples are the marked blocks of docs/how-to/submit-operations.md, and the system that
// they are run against.
type examples struct {
	c       *client
	blocks  map[string]string // by what the mark says; a block that was taken is gone
	env     []string
	js      jetstream.JetStream
	seen    int // tasks
	skipped bool
}

// marked is a block of code with the comment that says what to do with it.
var marked = regexp.MustCompile("(?s)<!-- ((?:run|compile): [a-z-]+) -->\n```[a-z]+\n(.*?)\n```\n")

func newExamples(t *testing.T) *examples {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.ModuleRoot(), "docs", "how-to", "submit-operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	listen := net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.FreePort(t)))
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

// producer makes a NATS user, and returns the environment of its programs.
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

// natsCommand puts the nats command first into the PATH. Building it takes a
// minute or two, so it is done in CI, or where it is asked for.
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

// shell runs a script as it would be typed, but for ending at the first error.
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

// try runs a program and returns what it printed. If it takes too long, it
// ends with all that it started.
func (e *examples) try(t *testing.T, timeout time.Duration, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = e.env, &out, &said
	if program == "sh" { // scripts leave files where they run; go needs this module
		cmd.Dir = t.TempDir()
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	t.Logf("%s: %v\n%s%s", program, err, out.Bytes(), said.Bytes())
	return out.String(), err
}

// accepted waits until there is one task more, checks that an example printed
// its id unless it printed none, and sees the task end.
func (e *examples) accepted(t *testing.T, printed string) {
	t.Helper()
	e.seen++
	c := e.c.with(t)
	var tasks []task
	testenv.Eventually(t, finishTimeout, func() bool { tasks = c.tasks(); return len(tasks) >= e.seen }, "the operation is accepted")
	if len(tasks) != e.seen || printed != "" && tasks[0].ID != printed {
		t.Errorf("the example printed %q; tasks are %v, want %d of them", printed, tasks, e.seen)
	}
	c.wait(tasks[0].ID)
}

// acceptedWithReply runs an example that listens and then publishes. It waits
// for its listener as long as a person would, which on a busy machine may be
// too short: then it misses the answer, and is run again.
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
			t.Fatalf("no answer with an id: %s", out)
		}
		e.accepted(t, found[1])
		return
	}
	t.Error("the example never got its answer")
}

// refused publishes what will not be accepted, and waits until it is kept.
func (e *examples) refused(t *testing.T) {
	t.Helper()
	if _, err := e.js.Publish(t.Context(), "procfleet.submit", []byte(`{"action":"dance"}`)); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, finishTimeout, func() bool { return messages(t, e.js, "PROCFLEET_SUBMIT_FAILED") == 1 }, "the submission fails")
}
