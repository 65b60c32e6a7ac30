package client_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/internal/crashpoint"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

const startTimeout = 60 * time.Second

// If a dispatcher dies between storing a task and responding, the client repeats the request at the other
// dispatcher, and the command runs once.
func TestADispatcherThatDiesBeforeItsAnswerMakesNothingRunTwice(t *testing.T) {
	t.Parallel()
	binary := testenv.BuildBinary(t, "./cmd/procfleet")
	bus, redis := testenv.StartNATS(t), redistest.Start(t)
	start := func(crash string, args ...string) *testenv.Child {
		t.Helper()
		return testenv.StartChild(t, []string{crashpoint.Variable + "=" + crash}, binary, append(args, "--nats", bus.URL)...)
	}
	dispatcher := func(crash string) (*testenv.Child, string) {
		t.Helper()
		address := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
		child := start(crash, "dispatcher", "--http", address, "--redis", redis.URL())
		child.WaitHTTP(t, startTimeout, "http://"+address+"/readyz")
		return child, "http://" + address
	}
	start("", "worker", "--redis", redis.URL())
	start("", "agent", "--ip", "10.0.0.1", "--data", t.TempDir()).WaitOutput(t, startTimeout, "accepting commands")
	_, healthy := dispatcher("")
	for _, point := range []string{"dispatcher.stored", "dispatcher.published"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dying, url := dispatcher(point)
			c, err := client.New(client.Config{URL: url + "," + healthy})
			if err != nil {
				t.Fatal(err)
			}
			dir, business := t.TempDir(), point
			operate := func(action procfleet.Action) {
				t.Helper()
				id, err := c.Submit(t.Context(), client.Submission{Business: business, Operations: []client.Operation{
					{Action: action, Process: sleeper("crash", point, dir), Hosts: []procfleet.Host{host}},
				}})
				if err != nil {
					t.Fatal(err)
				}
				if task, err := c.Wait(t.Context(), id); err != nil || !task.Succeeded() {
					t.Fatalf("%s: %+v, %v", action, task, err)
				}
			}
			defer operate(procfleet.ActionKill)
			operate(procfleet.ActionStart)
			dying.Wait(t, startTimeout)
			if made := startsIn(t, c, business); made != 1 {
				t.Errorf("%d tasks were made of one submission", made)
			}
			starts, err := os.ReadFile(filepath.Join(dir, "starts"))
			if err != nil || strings.Count(string(starts), "\n") != 1 {
				t.Errorf("the start command ran %d times; %v", strings.Count(string(starts), "\n"), err)
			}
		})
	}
}

// startsIn counts the starts of a business.
func startsIn(t *testing.T, c *client.Client, business string) (n int) {
	t.Helper()
	for task, err := range c.Tasks(t.Context(), client.TaskQuery{Query: client.Query{PageSize: 2}}) {
		if err != nil {
			t.Fatal(err)
		}
		if task.Business == business && slices.Contains(task.Actions, procfleet.ActionStart) {
			n++
		}
	}
	return n
}
