package deliver

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
)

// Every item of a command refers to its own spec, in any combination of items.
func TestCommandsReadAsWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		task := procfleet.Task{
			ID: "GSETASK:20260101000000:1", Number: 77, Lane: procfleet.BigLane(3),
			Deadline: time.Date(2026, 1, 1, 0, 5, 0, 0, time.UTC),
		}
		chunk := procfleet.Chunk{First: rapid.IntRange(0, 1<<20).Draw(t, "first"), Specs: make([]procfleet.ProcessSpec, 4)}
		for i := range chunk.Specs {
			chunk.Specs[i].Control.Start = rapid.String().Draw(t, "start command")
		}
		var items []int
		for i := range rapid.IntRange(1, 8).Draw(t, "items") {
			items = append(items, i)
			chunk.Items = append(chunk.Items, procfleet.Item{
				Action: procfleet.Action(rapid.String().Draw(t, "action")),
				Spec:   rapid.IntRange(0, len(chunk.Specs)-1).Draw(t, "spec"),
			})
		}
		commands, err := newCommands(&taskstore.Begun{Task: task, Chunk: chunk, Deadline: task.Deadline})
		if err != nil {
			t.Fatal(err)
		}
		host := hostRequest{name: "0:10.0.0.1", instance: rapid.String().Draw(t, "instance")}
		now := time.Unix(rapid.Int64Range(0, 1<<32).Draw(t, "now"), 5).UTC()
		data, err := commands.encode(&host, items, "id", now, now.Add(time.Second))
		if err != nil {
			t.Fatal(err)
		}

		var got agentproto.Command
		if err := agentproto.Decode(data, agentproto.TypeCommand, &got); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		want := agentproto.Command{
			Header: agentproto.Header{Type: agentproto.TypeCommand, ID: "id", Sent: now},
			Task:   string(task.ID), Lane: "b", Host: host.name, Instance: host.instance, AcceptBefore: now.Add(time.Second), NotAfter: task.Deadline,
			Items: got.Items, Specs: got.Specs,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
		for n, item := range got.Items {
			want := agentproto.CommandItem{Item: chunk.First + n, Action: string(chunk.Items[n].Action), Spec: item.Spec, Fence: 77}
			spec, err := agentlink.EncodeSpec(&chunk.Specs[chunk.Items[n].Spec])
			if err != nil {
				t.Fatal(err)
			}
			if item != want || !cmp.Equal(decodeSpec(t, got.Specs[item.Spec]), decodeSpec(t, spec)) {
				t.Fatalf("item %d is %+v with spec %s", n, item, got.Specs[item.Spec])
			}
		}
	})
}

func decodeSpec(t *rapid.T, data []byte) (spec agentproto.Spec) {
	if err := json.Unmarshal(data, &spec); err != nil {
		t.Fatal(err)
	}
	return spec
}
