// Package dispatcher accepts operations and answers for them: it decodes a
// published shape, stores the task, queues its chunks, gives the id, and reads
// the task store when somebody asks. It keeps nothing of its own, so there may
// be any number of dispatchers.
//
// Accepting and asking are use cases without HTTP or JSON (submit.go,
// query.go); what all endpoints have in common is in the http files; what
// distinguishes the endpoints is in package dialect.
package dispatcher
