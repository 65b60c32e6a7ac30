package redisconn_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
)

func TestNoErrorShowsThePasswordOfAURL(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://me:quite secret@127.0.0.1:1", `redis://me:quite"secret@127.0.0.1:1`, "redis://:quite/secret@127.0.0.1:1",
		"redis://me:quite%secret@127.0.0.1:1", "redis://me:quitesecret@127.0.0.1:x", "redis://me:quitesecret@127.0.0.1/x",
		"me:quitesecret@127.0.0.1:1", "redis://127.0.0.1:1?sentinel_password=quitesecret",
	} {
		err := redisconn.Options{URL: url}.Validate()
		if err == nil || strings.Contains(err.Error(), "quite") || strings.Contains(err.Error(), "secret@") || strings.Contains(err.Error(), "%se") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestServerThatEvictsIsRefused(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory-policy", "allkeys-lru")
	// Open does not wait for Patience: waiting does not change the eviction policy.
	_, err := redisconn.Open(t.Context(), redisconn.Options{URL: server.URL(), Patience: time.Hour, Log: testenv.Log(t)})
	if err == nil || errors.Is(err, taskstore.ErrUnavailable) || !strings.Contains(err.Error(), "maxmemory-policy is allkeys-lru; set it to noeviction") {
		t.Error(err)
	}
}

func TestDataOfAnotherFormatIsRefused(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	opt := redisconn.Options{URL: server.URL(), Patience: time.Hour, Log: testenv.Log(t)}
	for range 2 { // the first connection stores the format
		c, err := redisconn.Open(t.Context(), opt)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	for format, want := range map[string]string{
		"2": "its data has format 2, this procfleet reads format 1: start the procfleet that wrote it, or give another Redis",
		"x": `its format is "x"`,
	} {
		if err := server.Client(t).Set(t.Context(), "pf:{index}:format", format, 0).Err(); err != nil {
			t.Fatal(err)
		}
		c, err := redisconn.Open(t.Context(), opt)
		if err == nil {
			t.Error("data of format "+format+" was opened", c.Close())
		} else if errors.Is(err, taskstore.ErrUnavailable) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("error %q does not end with %q", err, want)
		}
	}
}
