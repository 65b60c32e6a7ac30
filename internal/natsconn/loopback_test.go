package natsconn_test

import (
	"testing"

	"github.com/procfleet/procfleet/internal/natsconn"
)

func TestOnlyServersOnLoopbackNeedNoKeys(t *testing.T) {
	t.Parallel()
	for urls, want := range map[string]bool{
		"nats://127.0.0.1:4222":                      true,
		"127.0.0.1":                                  true,
		"localhost:4222, tls://[::1]:4222":           true,
		"nats://user:word@127.0.0.2":                 true,
		"nats://10.0.0.9:4222":                       false,
		"nats://127.0.0.1:4222,nats://10.0.0.9:4222": false,
		"nats://127.0.0.1@10.0.0.9":                  false,
		"nats://nats:4222":                           false,
		"nats://127.0.0.1.example.com":               false,
	} {
		if err := natsconn.RefuseUnsigned(urls, "fleet-key", false); (err == nil) != want {
			t.Errorf("%s: %v", urls, err)
		}
		if err := natsconn.RefuseUnsigned(urls, "fleet-key", true); err != nil {
			t.Errorf("%s, allowed: %v", urls, err)
		}
	}
}
