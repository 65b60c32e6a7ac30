package collect

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/worker/agentlink"
)

// completed is a consumer that ends a pull request with a status, as some leaders of a cluster do,
// instead of letting it expire.
type completed struct{ jetstream.Consumer }

func (completed) Fetch(int, ...jetstream.FetchOpt) (jetstream.MessageBatch, error) {
	return completedBatch{}, nil
}

type completedBatch struct{}

func (completedBatch) Messages() <-chan jetstream.Msg {
	none := make(chan jetstream.Msg)
	close(none)
	return none
}
func (completedBatch) Error() error { return jetstream.ErrBatchCompleted }

func TestTheEndOfAPullIsNoError(t *testing.T) {
	t.Parallel()
	old := &olderResults{&collector{Intake: &agentlink.Intake{}, cfg: &Config{Max: 1, Pull: time.Minute}}}
	if more, err := old.some(t.Context(), completed{}); more || err != nil {
		t.Errorf("a pull of results that is complete: %v, %v", more, err)
	}
}
