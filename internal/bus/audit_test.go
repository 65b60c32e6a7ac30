package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/testenv"
)

// keepRecord puts a record into the stream of the audit log.
func keepRecord(t *testing.T, b *bus.Bus, id string, event audit.Event) {
	t.Helper()
	text, err := json.Marshal(audit.Record{ID: id, Event: event})
	if err == nil {
		err = b.AuditSink().Keep(t.Context(), []audit.Line{{ID: id, Event: event, JSON: text}}, true)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestTheAuditLogHasTheEndsOfTasksInTheirOrder reads two streams as one log.
func TestTheAuditLogHasTheEndsOfTasksInTheirOrder(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	var none []audit.Record
	read := func(follow bool, visit func(audit.Record) error) error {
		return env.Bus.ReadAudit(t.Context(), time.Time{}, follow, func(text []byte) error {
			var r audit.Record
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatal(err)
			}
			return visit(r)
		})
	}
	gather := func(into *[]audit.Record) func(audit.Record) error {
		return func(r audit.Record) error { *into = append(*into, r); return nil }
	}
	if err := read(false, gather(&none)); err != nil || len(none) != 0 {
		t.Errorf("an empty log has %v, %v", none, err)
	}

	end := func(id procfleet.TaskID, items int) {
		event := bus.FinishedEvent(procfleet.Task{
			ID: id, State: procfleet.TaskFinished, FinishedAt: time.Unix(7, 0).UTC(), Items: items, Application: "shop",
			Actions: []procfleet.Action{procfleet.ActionStop}, Counts: procfleet.Counts{procfleet.StateSucceeded: items, procfleet.StateFailed: 0},
			Origin: procfleet.Origin{User: "ada", Address: "10.0.0.9"},
		})
		if err := env.Bus.PublishFinished(t.Context(), &event)(); err != nil {
			t.Fatal(err)
		}
	}
	keepRecord(t, env.Bus, "a/accepted", audit.Accepted)
	end("a", 3)
	keepRecord(t, env.Bus, "b/accepted", audit.Accepted)
	keepRecord(t, env.Bus, "b/finished", audit.Finished) // of a rejected task
	keepRecord(t, env.Bus, "c", audit.Refused)

	var all []audit.Record
	if err := read(false, gather(&all)); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, r := range all {
		ids = append(ids, r.ID)
	}
	if want := []string{"a/accepted", "a/finished", "b/accepted", "b/finished", "c"}; !slices.Equal(ids, want) {
		t.Fatalf("records %v, want %v", ids, want)
	}
	got := all[1]
	if got.Event != audit.Finished || got.Task != "a" || got.Items != 3 || got.Application != "shop" || len(got.Counts) != 1 ||
		got.User != "" || got.Address != "" || !slices.Equal(got.Actions, []procfleet.Action{procfleet.ActionStop}) {
		t.Errorf("the end is %+v", got)
	}

	enough := errors.New("enough")
	seen := 0
	err := read(true, func(r audit.Record) error {
		seen++
		switch r.ID {
		case "c":
			end("d", 1)
		case "d/finished":
			keepRecord(t, env.Bus, "e", audit.Refused)
		case "e":
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || seen != 7 {
		t.Errorf("following: %v after %d records", err, seen)
	}
}

// In TestFollowingTheAuditLogEndsWithItsContext the log is empty.
func TestFollowingTheAuditLogEndsWithItsContext(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := env.Bus.ReadAudit(ctx, time.Time{}, true, func([]byte) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
