package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
)

// storedTransition is a [procfleet.Transition] as scripts write it. Its time is a text in
// microseconds.
type storedTransition struct {
	Kind   procfleet.TransitionKind `json:"k"`
	At     string                   `json:"t"`
	Seq    int                      `json:"q"`
	Stage  int                      `json:"g"`
	Hold   procfleet.HoldKind       `json:"h"`
	Mode   procfleet.CancelMode     `json:"c"`
	Reason string                   `json:"r"`
}

// luaNote has the function with which scripts store a transition in the head, KEYS[1]. of is a
// [storedTransition] without kind, time and seq.
const luaNote = `
local function note(kind, of)
  of.k, of.t, of.q = kind, text(now()), redis.call('HINCRBY', KEYS[1], 'seq', 1)
  redis.call('HSET', KEYS[1], 'transition:' .. redis.call('HINCRBY', KEYS[1], 'transitions', 1), cjson.encode(of))
end
`

// Transitions returns some transitions of a task, in one round trip.
func (s *Store) Transitions(ctx context.Context, id procfleet.TaskID, after, upto int) ([]procfleet.Transition, error) {
	if _, err := number(id); err != nil {
		return nil, err
	}
	if after >= upto {
		return nil, nil
	}
	fields := make([]string, 0, upto-after)
	for n := after + 1; n <= upto; n++ {
		fields = append(fields, transitionField(n))
	}
	var values *redis.SliceCmd
	err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		values = pipe.HMGet(ctx, s.keys.task(id).head(), fields...)
	})
	if err != nil {
		return nil, fmt.Errorf("read transitions of task %s: %w", id, err)
	}
	list := make([]procfleet.Transition, len(fields))
	for i, value := range values.Val() {
		text, ok := value.(string)
		if !ok {
			return nil, fmt.Errorf("transition %d of task %s: %w", after+1+i, id, taskstore.ErrNotFound)
		}
		if list[i], err = readTransition(text); err != nil {
			return nil, fmt.Errorf("transition %d of task %s: %w", after+1+i, id, err)
		}
	}
	return list, nil
}

func transitionField(n int) string { return "transition:" + strconv.Itoa(n) }

func readTransition(text string) (procfleet.Transition, error) {
	var t storedTransition
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return procfleet.Transition{}, fmt.Errorf("%w: %w", redisconn.ErrDamaged, err)
	}
	at, _ := strconv.ParseInt(t.At, 10, 64) // only scripts write it
	return procfleet.Transition{
		Kind: t.Kind, At: redisconn.Moment(at), Seq: t.Seq, Stage: t.Stage, Hold: t.Hold, Mode: t.Mode, Reason: t.Reason,
	}, nil
}

// sentScript records how many transitions are published.
//
// KEYS[1] head
// ARGV[1] their number
// Returns 1, or 0 if there is no such task.
var sentScript = redis.NewScript(`
local h = redis.call('HMGET', KEYS[1], 'state', 'sent')
if not h[1] then return 0 end
if tonumber(ARGV[1]) > tonumber(h[2] or 0) then redis.call('HSET', KEYS[1], 'sent', ARGV[1]) end
return 1
`)

// TransitionsSent records that the first upto transitions are published, in one round trip.
func (s *Store) TransitionsSent(ctx context.Context, id procfleet.TaskID, upto int) error {
	return s.change(ctx, id, "record as published transitions", sentScript, upto)
}
