package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// gateMeasures is what is counted of callers. No application appears in it.
type gateMeasures struct {
	refused metric.Int64Counter
	hashes  metric.Int64Counter
	logins  metric.Int64Counter
	reads   metric.Int64Counter
}

// measured has everything counted that happens from now on.
func (g *authenticator) measured(meter metric.Meter) error {
	var errs [5]error
	g.measures.refused, errs[0] = meter.Int64Counter("procfleet_dispatcher_refused_calls",
		metric.WithDescription("Calls and submissions of callers who are not known, or must not do what they asked for."))
	g.measures.hashes, errs[1] = meter.Int64Counter("procfleet_dispatcher_secret_hashes",
		metric.WithDescription("Secrets that were compared with their hash, which takes some 20 ms of a processor."))
	g.measures.logins, errs[2] = meter.Int64Counter("procfleet_dispatcher_login_requests",
		metric.WithDescription("Questions to the login server whose a bk_token is."))
	g.measures.reads, errs[3] = meter.Int64Counter("procfleet_dispatcher_applications_reads",
		metric.WithDescription("Versions of the file of applications that were found."))
	if g.apps != nil {
		_, errs[4] = meter.Int64ObservableGauge("procfleet_dispatcher_applications",
			metric.WithDescription("Applications that may call."),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				o.Observe(int64(g.apps.Len()))
				return nil
			}))
		g.apps.Hashed = func() { g.measures.hashes.Add(context.Background(), 1) }
	}
	if g.login != nil {
		g.login.asked = func(outcome string) {
			g.measures.logins.Add(context.Background(), 1, metric.WithAttributes(attribute.String("outcome", outcome)))
		}
	}
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("dispatcher: metrics: %w", err)
	}
	return nil
}

// appsPoll is how often the file of applications is looked at. A look costs
// one call of the system, and needs nothing that not every file system has.
const appsPoll = time.Second

// watch reads the file of applications again when it changed, until ctx ends.
func (g *authenticator) watch(ctx context.Context, log logrus.FieldLogger) {
	if g.apps == nil {
		return
	}
	g.apps.Watch(ctx, appsPoll, func(_ bool, err error) {
		outcome := "used"
		if err != nil {
			outcome = "unusable"
			log.WithError(err).Error("applications reload failed, keeping the previous ones")
		} else {
			log.WithField("applications", g.apps.Len()).Info("applications reloaded")
		}
		g.measures.reads.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", outcome)))
	})
}

// noteRefusal counts a caller who was sent away, and leaves a line: of
// applications each time, of strangers, who may be many, once a second.
func (a *api) noteRefusal(f *dialect.Error, log logrus.FieldLogger, start time.Time) {
	reason, is := refusals[f.Kind]
	if !is {
		return
	}
	a.authenticator.measures.refused.Add(context.Background(), 1, metric.WithAttributes(attribute.String("reason", reason)))
	if f.Application != "" && f.Kind == dialect.Forbidden || a.refused.due(start) {
		log.WithFields(logrus.Fields{"application": f.Application, "reason": reason, "detail": f.Error()}).Info("call refused")
	}
}
