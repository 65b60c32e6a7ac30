package natsconn

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
)

func TestServersThatStayAwayAreMentionedOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, hook := test.NewNullLogger()
		o := &outage{log: log}
		for range 150 {
			o.failed(errors.New("connection refused"), "127.0.0.1:4222")
			time.Sleep(time.Second)
		}
		o.ends() // and gone again
		o.failed(errors.New("connection refused"), "127.0.0.1:4222")
		if n := len(hook.AllEntries()); n != 3 {
			t.Errorf("%d lines in 150 s, want 3: %v", n, hook.AllEntries())
		}
	})
}
