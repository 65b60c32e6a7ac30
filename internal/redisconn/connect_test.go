package redisconn

import (
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

func TestDriverLogIsForThoseWhoSearch(t *testing.T) {
	t.Parallel()
	log, hook := logtest.NewNullLogger()
	d := driverLog{log: log}
	d.Printf(t.Context(), "dial %s: refused", "h")
	if e := hook.LastEntry(); e != nil {
		t.Errorf("by default it says %+v", e)
	}
	log.SetLevel(logrus.DebugLevel)
	d.Printf(t.Context(), "dial %s: refused", "h")
	if e := hook.LastEntry(); e == nil || e.Data["said"] != "dial h: refused" {
		t.Errorf("for those who search it says %+v", e)
	}
}
