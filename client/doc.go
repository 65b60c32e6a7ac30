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
// [Client.Register] stores the spec of a process, so that an [Operation] can
// refer to it; [Client.Processes] and [Client.ProcessesOn] return the last
// reported state of processes without a request to their hosts. [Client.Freeze]
// and [Client.FreezeEverywhere] suspend automatic starts and limits for a while;
// [Client.Events] and [Client.FollowEvents] yield agent events: automatic
// restarts, crashes, limit actions.
//
// # Retries
//
// Every call retries while no server is reachable, the connection breaks, or the
// error is [Error.Retryable]: at once with the next configured server, and after
// all of them with a pause that grows to some seconds, or of the length that the
// server demands. Only Watch always pauses before it reconnects, some 2 s, since
// a server that stops loses all its watchers at the same moment. A call ends with
// a response, with an [Error] that is not retryable, with its context, or after
// [Config.Patience].
//
// Errors of the server are an [*Error] with the status, the code word, the
// field, and the id of the request; [errors.Is] matches the common ones:
// [ErrNotFound], [ErrInvalid], [ErrConflict], [ErrDenied], [ErrUnavailable]. An
// error of Submit after which the task may exist all the same is an
// [*UnknownError] with the key to repeat it with.
package client
