package deliver

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
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

func TestTheEndOfAPullIsNoTrouble(t *testing.T) {
	t.Parallel()
	if err := fetch(completed{}, 1, time.Minute, func(jetstream.Msg) {}); err != nil {
		t.Errorf("a pull of chunks that is complete failed: %v", err)
	}
}
