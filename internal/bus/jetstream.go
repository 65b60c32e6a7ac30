package bus

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// AckTimeout ends an asynchronous publication that no stream acknowledged, so
// that its message does not stay in memory for ever.
const AckTimeout = 5 * time.Second

// maxPending bounds asynchronous publications that await acknowledgement.
const maxPending = 16 << 10

// JetStream returns the JetStream context of nc with bounded asynchronous
// publishing: an acknowledgement that does not arrive within [AckTimeout] is an
// error. It is here and not in natsconn, which agents use: they have no right
// on streams, and their program does not contain JetStream's code.
func JetStream(nc *nats.Conn) (jetstream.JetStream, error) {
	js, err := jetstream.New(nc,
		jetstream.WithPublishAsyncTimeout(AckTimeout),
		jetstream.WithPublishAsyncMaxPending(maxPending))
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return js, nil
}
