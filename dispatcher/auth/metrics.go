package auth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// metrics has the counters of an [Authenticator]. Their labels contain no applications.
type metrics struct {
	refused metric.Int64Counter
	hashes  metric.Int64Counter
	logins  metric.Int64Counter
	reads   metric.Int64Counter
}

func (g *Authenticator) register(meter metric.Meter) error {
	var errs [5]error
	g.metrics.refused, errs[0] = meter.Int64Counter("procfleet_dispatcher_refused_calls",
		metric.WithDescription("Calls and submissions rejected by authentication or authorization, by reason."))
	g.metrics.hashes, errs[1] = meter.Int64Counter("procfleet_dispatcher_secret_hashes",
		metric.WithDescription("Argon2 hashes computed to verify secrets, about 20 ms of CPU time each."))
	g.metrics.logins, errs[2] = meter.Int64Counter("procfleet_dispatcher_login_requests",
		metric.WithDescription("Requests to the login server for the user of a bk_token, by outcome."))
	g.metrics.reads, errs[3] = meter.Int64Counter("procfleet_dispatcher_applications_reads",
		metric.WithDescription("Reloads of the changed applications file, by outcome."))
	if g.apps != nil {
		_, errs[4] = meter.Int64ObservableGauge("procfleet_dispatcher_applications",
			metric.WithDescription("Applications that may call."),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				o.Observe(int64(g.apps.Len()))
				return nil
			}))
		g.apps.Hashed = func() { g.metrics.hashes.Add(context.Background(), 1) }
	}
	if g.login != nil {
		g.login.queried = func(outcome string) {
			g.metrics.logins.Add(context.Background(), 1, metric.WithAttributes(attribute.String("outcome", outcome)))
		}
	}
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// appsPoll is the interval of checks for changes of the applications file. Polling
// needs one system call and works on every file system.
const appsPoll = time.Second

// Watch reloads the applications file after changes, until ctx ends.
func (g *Authenticator) Watch(ctx context.Context, log logrus.FieldLogger) {
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
		g.metrics.reads.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", outcome)))
	})
}

// Refresh reloads the applications file if it has changed.
func (g *Authenticator) Refresh() (changed bool, err error) { return g.apps.Refresh() }

// CountRefusal counts a rejected caller; reason is a value of [Refusals].
func (g *Authenticator) CountRefusal(reason string) {
	g.metrics.refused.Add(context.Background(), 1, metric.WithAttributes(attribute.String("reason", reason)))
}
