package check

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Publisher returns a function for [Config.Publish] that uses a connection.
func Publisher(nc *nats.Conn) func(ctx context.Context, key string, body []byte) error {
	return func(ctx context.Context, key string, body []byte) error {
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		msg := nats.NewMsg("procfleet.submit")
		msg.Header.Set("Idempotency-Key", key)
		msg.Data = body
		if _, err := js.PublishMsg(ctx, msg); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		return nil
	}
}
