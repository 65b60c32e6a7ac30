package dispatcher

import (
	"context"
	"fmt"
	"reflect"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// endpoint serves one kind of [dialect.Endpoint]. Create it with replies or writes,
// which require an authorizer.
type endpoint struct {
	kind reflect.Type
	// action is the action that the caller must be permitted to do before the request
	// is decoded. It is "" for the endpoints that create and control tasks, whose actions
	// depend on the request.
	action string
	serve  func(ctx context.Context, e *exchange, in *dialect.Request) error
}

// endpoints returns every endpoint of the dispatcher with its required action and its
// authorizer.
func endpoints() []endpoint {
	return []endpoint{
		writes("", (*exchange).decodeSubmission, (*exchange).authorizeSubmission, (*exchange).accept),
		writes(apps.Reading, (*exchange).decodeOutcomes, (*exchange).readableTask, (*exchange).outcomes),
		writes(apps.Reading, (*exchange).decodeWatch, (*exchange).joinWatch, (*exchange).watch),
		writes(apps.Reading, (*exchange).decodeFeed, (*exchange).feedOf, (*exchange).followTasks),
		replies(apps.Reading, (*exchange).readableTask, (*exchange).showTask),
		replies("", (*exchange).controllableTask, (*exchange).controlTask),
		replies(apps.Reading, (*exchange).visibleTasks, (*exchange).listTasks),
		replies(apps.Reading, (*exchange).readableResults, (*exchange).listResults),
		replies(apps.Reading, inBusiness, (*exchange).listHosts),
		replies(apps.Reading, inBusiness, (*exchange).listFleet),

		replies(apps.Registration, onTargets, (*exchange).register),
		replies(apps.Registration, onTargets, (*exchange).setGroups),
		replies(apps.Registration, onTargets, (*exchange).labelHosts),
		replies(apps.Reading, onTargets, (*exchange).showGroups),
		replies(apps.Reading, onTargets, (*exchange).showProcesses),
		replies(apps.Reading, inBusiness, (*exchange).listProcesses),
		replies(apps.Output, onTargets, (*exchange).showOutput),
		replies(apps.Reading, onTargets, (*exchange).showAgents),
		replies(apps.Registration, onTargets, (*exchange).bindAgents),
		replies(apps.Registration, onTargets, (*exchange).freeze),
		replies(apps.Reading, inEveryBusiness, (*exchange).listFreezes),
		replies(apps.Reading, inEveryBusiness, (*exchange).listEvents),
		replies(apps.Reading, inEveryBusiness, (*exchange).showHealth),
		replies(apps.Reading, (*exchange).visibleRecords, (*exchange).listAudit),

		replies(apps.Catalogue, inBusiness, (*exchange).editTemplates),
		replies(apps.Catalogue, inBusiness, (*exchange).saveTemplates),
		replies(apps.Catalogue, inBusiness, (*exchange).deleteTemplate),
		writes(apps.Reading, (*exchange).decodeShowTemplate, inBusiness, (*exchange).showTemplate),
		writes(apps.Reading, (*exchange).decodeSearchTemplates, inBusiness, (*exchange).searchTemplates),
		replies(apps.Reading, inBusiness, (*exchange).showModules),
		replies(apps.Reading, inBusiness, (*exchange).showDrift),
		replies(apps.Catalogue, inBusiness, (*exchange).setPolicies),
		replies(apps.Reading, inBusiness, (*exchange).showPolicies),
		replies(apps.Catalogue, inBusiness, (*exchange).setSchedule),
		replies(apps.Reading, inBusiness, (*exchange).listSchedules),
		replies(apps.Catalogue, inBusiness, (*exchange).removeSchedule),
		replies(apps.Reading, ofApplication, (*exchange).setWebhook),
		replies(apps.Reading, ofApplication, (*exchange).listWebhooks),
		replies(apps.Reading, ofApplication, (*exchange).listDead),
		replies(apps.Reading, ofApplication, (*exchange).redeliver),
		replies(apps.Reading, ofApplication, (*exchange).removeWebhook),
		replies(apps.Catalogue, inBusiness, (*exchange).setTopology),
		replies(apps.Catalogue, inBusiness, (*exchange).editTopology),
		replies(apps.Reading, inBusiness, (*exchange).showTopology),
	}
}

// authorizer checks that the caller may access the objects that the request Q names. It
// returns the scope S: the hosts, task or business that the endpoint may use, and no
// others.
type authorizer[Q, S any] func(e *exchange, ctx context.Context, q *Q) (S, error)

// replies returns the endpoint of a [dialect.Codec]: do returns the result, and the
// codec encodes it.
func replies[Q, S, R any](action string, authorize authorizer[Q, S], do func(e *exchange, ctx context.Context, q *Q, scope S) (R, error)) endpoint {
	decode := func(_ *exchange, _ context.Context, codec dialect.Codec[Q, R], in *dialect.Request) (Q, error) {
		return codec.Decode(in)
	}
	return writes(action, decode, authorize, func(e *exchange, ctx context.Context, codec dialect.Codec[Q, R], q *Q, scope S) error {
		result, err := do(e, ctx, q, scope)
		if err != nil {
			return err
		}
		e.reply(codec.Encode(q, result, e.id))
		return nil
	})
}

// writes returns an endpoint that writes its own response: a stream, or a response that
// depends on more than one result. If write returns an error, the exchange sends the
// error in the dialect's form, so write must not have written anything before.
func writes[C dialect.Endpoint, Q, S any](
	action string, decode func(*exchange, context.Context, C, *dialect.Request) (Q, error), authorize authorizer[Q, S],
	write func(e *exchange, ctx context.Context, codec C, q *Q, scope S) error,
) endpoint {
	served := endpoint{kind: reflect.TypeFor[C](), action: action}
	if authorize == nil {
		return served // endpointsByKind rejects it
	}
	served.serve = func(ctx context.Context, e *exchange, in *dialect.Request) error {
		codec := e.call.Endpoint.(C)
		q, err := decode(e, ctx, codec, in)
		if err != nil {
			return err
		}
		scope, err := authorize(e, ctx, &q)
		if err != nil {
			return err
		}
		in.Body = nil // q holds the decoded request; free the body of a large one
		return write(e, ctx, codec, &q, scope)
	}
	return served
}

// endpointsByKind indexes endpoints. It returns an error for an endpoint without an
// authorizer, and for two endpoints of one kind.
func endpointsByKind(all []endpoint) (map[reflect.Type]endpoint, error) {
	found := make(map[reflect.Type]endpoint, len(all))
	for _, served := range all {
		if served.serve == nil {
			return nil, fmt.Errorf("endpoint %v has no authorizer", served.kind)
		}
		if _, twice := found[served.kind]; twice {
			return nil, fmt.Errorf("endpoint %v is listed twice", served.kind)
		}
		found[served.kind] = served
	}
	return found, nil
}

// inEveryBusiness authorizes a call that belongs to no business; it requires permission
// for all businesses.
func inEveryBusiness[Q any](e *exchange, _ context.Context, _ *Q) (business string, err error) { //nolint:revive // the receiver is first, as in a method expression
	return "", e.who.May("", e.call.action)
}

func inBusiness[Q any, P interface {
	*Q
	InBusiness() string
}](e *exchange, _ context.Context, q *Q) (business string, err error) { //nolint:revive // the receiver is first, as in a method expression
	business = P(q).InBusiness()
	return business, e.who.May(business, e.call.action)
}

func onTargets[Q any, P interface {
	*Q
	OnTargets() (business string, targets []procfleet.Target)
}](e *exchange, ctx context.Context, q *Q) (*targetHosts, error) { //nolint:revive // the receiver is first, as in a method expression
	business, targets := P(q).OnTargets()
	return e.authorizeAndResolve(ctx, business, targets)
}

func (e *exchange) readableTask(ctx context.Context, id *procfleet.TaskID) (*procfleet.Task, error) {
	task, err := e.api.store.Task(ctx, *id)
	if err == nil {
		err = e.who.MayRead(&task)
	}
	if err != nil {
		return nil, about(*id, err)
	}
	return &task, nil
}

// readableResults authorizes reading the results of a task. Without authentication it
// does not read the task, because every caller may read it.
func (e *exchange) readableResults(ctx context.Context, page *dialect.ResultPage) (procfleet.TaskID, error) {
	if !e.who.Authenticated() {
		return page.Task, nil
	}
	_, err := e.readableTask(ctx, &page.Task)
	return page.Task, err
}

func (e *exchange) visibleTasks(context.Context, *dialect.TaskPage) (sees func(*procfleet.Task) bool, err error) {
	return e.who.Sees, nil
}
