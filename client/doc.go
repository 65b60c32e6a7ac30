// Package client submits operations to procfleet and follows them, over the
// native HTTP API.
//
//	c, err := client.New(client.Config{URL: "http://127.0.0.1:8080"})
//	…
//	spec := procfleet.DefaultSpec()
//	spec.Namespace, spec.Name, spec.ProcName = "shop", "web", "nginx"
//	spec.SetupPath, spec.PidPath = "/srv/web", "/srv/web/nginx.pid"
//	spec.Control.Start = "./start.sh"
//	id, err := c.Submit(ctx, client.Submission{Operations: []client.Operation{
//		{Action: procfleet.ActionStart, Process: spec, Hosts: hosts},
//	}})
//	…
//	task, err := c.Wait(ctx, id)
//
// [Client.Submit] never makes two tasks of one submission: every attempt has
// the same Idempotency-Key. [Client.Watch] yields the task whenever its
// counters change, [Client.Wait] returns it when it is finished, and
// [Client.Results], [Client.Tasks] and [Client.Hosts] iterate over lists of any
// length, page by page behind the scenes.
//
// [Client.Register] keeps what a process is, so that an [Operation] can be on
// what is registered; [Client.Processes] and [Client.ProcessesOn] say how
// processes stand without asking their hosts. [Client.Freeze] and
// [Client.FreezeEverywhere] suspend automatic starts and limits for a while;
// [Client.Events] and [Client.FollowEvents] yield what agents did or noticed by
// themselves.
//
// # What is repeated, and what ends a call
//
// Every call goes on while no server can be reached, the connection breaks, or
// the answer says that it is a matter of time ([Error.Retryable]): at the next
// of the configured servers at once, and when none of them is left, after a
// pause that grows to some seconds or that the server asked for. Only Watch
// always pauses before it connects again, some 2 s, for a server that stops
// loses all who watch at the same moment. It ends with
// an answer, with a refusal ([Error]), with its context, or when
// [Config.Patience] is used up.
//
// Errors of the server are an [*Error] with the status, the code word, the
// field, and the id of the request; [errors.Is] matches the common ones:
// [ErrNotFound], [ErrInvalid], [ErrConflict], [ErrDenied], [ErrUnavailable]. An
// error of Submit after which the task may exist all the same is an
// [*UnknownError] with the key to repeat it with.
package client
