// Package client submits operations to procfleet and follows their tasks, over the
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
// [Client.Submit] never creates two tasks for one submission: every attempt has the
// same Idempotency-Key. [Client.Watch] yields the task whenever its counters
// change, [Client.Wait] returns the task once it is finished, and [Client.Results],
// [Client.Tasks] and [Client.Hosts] iterate over lists of any length and fetch them
// page by page.
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
// error is [Error.Retryable]: first at once with each other configured server, and
// then after pauses that grow to some seconds, or as long as the server demands.
// Watch always pauses for some 2 s before it reconnects, since a server that stops
// loses all its watchers at the same moment. A call ends with a response, with an
// [Error] that is not retryable, with its context, or after [Config.Patience].
//
// Errors of the server are an [*Error] with status, error code, field and request
// id; [errors.Is] matches the common ones: [ErrNotFound], [ErrInvalid],
// [ErrConflict], [ErrDenied], [ErrUnavailable]. If a task may exist despite an
// error of Submit, the error is an [*UnknownError] with the key for a retry.
package client
