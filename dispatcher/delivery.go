package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/auth"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/dispatcher/natsintake"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

// Headers of a published submission, in addition to the headers of an HTTP request.
const (
	dialectHeader  = "Procfleet-Dialect"
	replyToHeader  = "Procfleet-Reply-To"
	notAfterHeader = "Procfleet-Not-After"
	// The reply contains copies of these two headers.
	requestHeader   = "Procfleet-Request-Id"
	messageIDHeader = "Nats-Msg-Id"
)

// Headers of the reply.
const (
	statusHeader = "Procfleet-Status"
	taskHeader   = "Procfleet-Task"
)

// maxEcho is the maximum length in bytes of a header that is copied into the reply.
const maxEcho = 1 << 10

// outcome is the result of processing a published submission.
type outcome string

const (
	outcomeAccepted  outcome = "accepted"
	outcomeFailed    outcome = "failed"
	outcomePostponed outcome = "put_off"
)

// codePoisoned is the failure code of a message that repeatedly made dispatchers crash.
// HTTP requests cannot have it.
const codePoisoned = "poisoned"

// delivery is one delivery of a published message.
type delivery struct {
	in      *intake
	s       *bus.Submission
	target  acceptCall
	replyTo string
	who     auth.Caller // set after authentication
	id      string      // 32 hexadecimal digits
	start   time.Time
	log     logrus.FieldLogger
}

// handle processes a message until it is accepted, failed or postponed. The context pulling
// ends when the dispatcher stops receiving messages; work ends later.
func (in *intake) handle(pulling, work context.Context, s *bus.Submission) {
	e := &delivery{in: in, s: s, target: in.acceptCalls[nativeCall], id: newRequestID(), start: time.Now()}
	e.log = in.api.log.WithFields(logrus.Fields{"request": e.id, "submission": s.ID()})
	ctx, span := in.api.cfg.Tracer.Start(s.Context(work), "NATS submission", trace.WithSpanKind(trace.SpanKindConsumer))
	defer span.End()
	e.log = tracecontext.Log(ctx, e.log)
	o := outcomePostponed
	defer func() {
		if cause := recover(); cause != nil {
			e.log.WithField("panic", fmt.Sprint(cause)).WithField("stack", string(debug.Stack())).Error("submission panicked")
			e.postpone()
		}
		label := attribute.String("outcome", string(o))
		span.SetAttributes(label)
		in.api.metrics.submissions.Add(ctx, 1, metric.WithAttributes(label))
	}()
	o = e.decide(ctx, pulling)
}

// decide accepts the message, fails it, or postpones it. A message that was delivered
// several times is processed in a trial, one message at a time. If decide panics, the
// record of the trial remains.
func (e *delivery) decide(ctx, pulling context.Context) outcome {
	on, err := e.in.Suspect(pulling, e.s, e.id)
	switch {
	case errors.Is(err, natsintake.ErrPoisoned):
		_, _, _ = e.read() // sets the reply subject and the dialect of the reply
		e.log.WithError(err).Error("submission poisoned")
		return e.fail(ctx, codePoisoned, &dialect.Error{Kind: dialect.Internal, Problem: err.Error()})
	case err != nil:
		return e.postpone()
	}
	defer on.Over()
	task, err := e.accept(ctx)
	if unavailable(err) {
		on.Acquit()
		task, err = e.retry(ctx, pulling, err)
	}
	o, broken := e.conclude(ctx, task, err)
	if !broken {
		on.Acquit()
	}
	return o
}

func unavailable(err error) bool { return err != nil && failure(err).RetryAfter > 0 }

// retry retries while the store or the queue is unavailable, at most for Timeouts.Hold,
// so that a short outage neither reorders messages nor counts as a delivery. It returns
// the last error, or err if it made no attempt.
func (e *delivery) retry(ctx, pulling context.Context, err error) (task procfleet.Task, _ error) {
	wait := 250 * time.Millisecond
	for unavailable(err) && time.Since(e.start) < e.in.api.cfg.Timeouts.Hold && pause(pulling, jitter(wait)) {
		task, err = e.accept(ctx)
		wait = min(2*wait, 5*time.Second)
	}
	return task, err
}

// conclude acknowledges, rejects or postpones the message. It returns broken if the message probably caused an
// internal error: the error is unclassified and the store is available.
func (e *delivery) conclude(ctx context.Context, task procfleet.Task, err error) (o outcome, broken bool) {
	if err == nil {
		e.in.api.cfg.Reached(PointSubmitted)
		return e.accepted(ctx, task.ID), false
	}
	f := e.in.api.failed(err, e.log, e.id, e.start)
	switch {
	case f.Kind == dialect.Internal:
		return e.postpone(), e.in.StoreAvailable(ctx)
	case f.RetryAfter > 0:
		return e.postpone(), false
	}
	return e.fail(ctx, f.Kind.String(), f), false
}

// accept creates a task from the message, or finds the task that an earlier delivery
// created.
func (e *delivery) accept(ctx context.Context) (procfleet.Task, error) {
	in, t, err := e.read()
	if err != nil {
		return procfleet.Task{}, err
	}
	release, err := e.in.api.bodies.reserve(ctx, int64(len(e.s.Body)))
	if err != nil {
		return procfleet.Task{}, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, e.in.api.cfg.Timeouts.Query)
	defer cancel()
	if e.who, err = e.in.api.authenticator.Authenticate(ctx, &e.target.family, in, netip.Addr{}); err != nil {
		return procfleet.Task{}, err
	}
	sub, err := e.in.api.decode(ctx, t.key, e.s.Header.Get, e.target.accept.Decode, in)
	if err == nil {
		err = e.who.MaySubmit(&sub)
	}
	if err != nil {
		return procfleet.Task{}, err
	}
	if t.key == "" {
		t.key, t.sole = positionKey(e.s), true
	}
	t.origin = originOf(&e.who, netip.Addr{}, e.id)
	return e.in.api.accept(ctx, &acceptance{call: e.target.name, who: &e.who, terms: t, start: e.start, log: e.log}, &sub)
}

// positionKey returns the idempotency key for a message without one. It contains a control
// character, which the keys of callers cannot contain.
func positionKey(s *bus.Submission) string { return "\x00submission/" + s.ID() }

// read parses the headers. It parses the reply subject first, so that the dispatcher
// can reply to the producer with any other error.
func (e *delivery) read() (*dialect.Request, terms, error) {
	h := e.s.Header
	name := cmp.Or(h.Get(dialectHeader), nativeCall)
	d, known := e.in.acceptCalls[name]
	if known {
		e.target = d
		e.log = e.log.WithField("dialect", name)
	}
	if to := h.Get(replyToHeader); to != "" {
		if err := bus.CheckReplySubject(to); err != nil {
			return nil, terms{}, invalidHeader(replyToHeader, err.Error())
		}
		e.replyTo = to
	}
	if !known {
		return nil, terms{}, invalidHeader(dialectHeader, fmt.Sprintf("%.100q is not a call that accepts operations; the calls are %s", name, e.in.names))
	}
	t := terms{key: h.Get(keyHeader), label: e.target.accept.Label}
	if text := h.Get(notAfterHeader); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, terms{}, invalidHeader(notAfterHeader, fmt.Sprintf("%.100q is not a time like 2026-11-21T05:35:22Z", text))
		}
		t.notAfter = at
	}
	if limit := e.in.api.cfg.Limits.Body; int64(len(e.s.Body)) > limit {
		return nil, terms{}, bodyTooLarge(limit)
	}
	return &dialect.Request{
		Method: http.MethodPost, Query: url.Values{}, Body: e.s.Body, MaxItems: e.in.api.cfg.Limits.Items,
		Authorization: h.Get("Authorization"), BkapiAuthorization: h.Get("X-Bkapi-Authorization"),
	}, t, nil
}

func invalidHeader(name, problem string) *dialect.Error {
	return &dialect.Error{Kind: dialect.InvalidField, Field: name, Problem: problem}
}

// accepted replies to the producer and then acknowledges the message. If the
// acknowledgement is lost, the message is redelivered and the reply is sent again.
func (e *delivery) accepted(ctx context.Context, task procfleet.TaskID) outcome {
	e.end(ctx, e.target.accept.Encode(task, e.id), task)
	return outcomeAccepted
}

// fail stores the message among the failed messages, then acknowledges it.
func (e *delivery) fail(ctx context.Context, code string, f *dialect.Error) outcome {
	keeping, cancel := e.timeout(ctx)
	defer cancel()
	if err := e.in.api.cfg.Submissions.SubmissionFailed(keeping, e.s, code, f.Error()); err != nil {
		if e.in.api.unavailableLog.due(time.Now()) {
			e.log.WithError(err).Warn("failed submissions postponed")
		}
		return e.postpone()
	}
	e.in.api.cfg.Reached(PointFailed)
	f.Call = e.target.name
	e.in.api.auditRefusal(f, "", &e.who, originOf(&e.who, netip.Addr{}, e.id))
	e.log.WithFields(logrus.Fields{"code": code, "error": f.Error()}).Info("submission failed")
	e.end(ctx, e.target.family.Fail(f, e.id), f.Task)
	return outcomeFailed
}

// timeout returns a context for ending a message, which must complete after the work
// context has ended.
func (e *delivery) timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), e.in.api.cfg.Timeouts.Accept)
}

// end replies and acknowledges the message.
func (e *delivery) end(ctx context.Context, reply dialect.Reply, task procfleet.TaskID) {
	if err := e.reply(reply, task); err != nil {
		e.log.WithError(err).Warn("reply to submission not published")
		if errors.Is(err, bus.ErrUnavailable) {
			e.postpone()
			return
		}
	}
	ctx, cancel := e.timeout(ctx)
	defer cancel()
	if err := e.s.Done(ctx); err != nil {
		e.log.WithError(err).Warn("submission not acknowledged, will be redelivered")
	}
}

// reply replies to the producer if the message has a reply subject.
func (e *delivery) reply(reply dialect.Reply, task procfleet.TaskID) error {
	if e.replyTo == "" {
		return nil
	}
	body, err := reply.JSON()
	if err != nil {
		return fmt.Errorf("encode an answer of %s: %w", e.target.name, err)
	}
	header := http.Header{}
	header.Set(statusHeader, strconv.Itoa(reply.Status))
	if task != "" {
		header.Set(taskHeader, string(task))
	}
	for _, name := range []string{requestHeader, messageIDHeader} {
		if given := e.s.Header.Get(name); given != "" && len(given) <= maxEcho {
			header.Set(name, given)
		}
	}
	return e.in.api.cfg.Submissions.Reply(e.replyTo, header, body)
}

// postpone requests redelivery of the message, after a delay of at most one minute.
func (e *delivery) postpone() outcome {
	after := e.in.redeliveryDelay << min(e.s.Delivered-1, 6)
	if err := e.s.PutOff(jitter(min(after, time.Minute))); err != nil {
		e.log.WithError(err).Debug("negative acknowledgement failed, submission redelivered after AckWait")
	}
	return outcomePostponed
}
