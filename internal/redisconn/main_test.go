package redisconn_test

import (
	"testing"

	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }
