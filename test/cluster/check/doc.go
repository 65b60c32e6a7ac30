// Package check tests from outside that a fleet loses no operation and runs none
// twice. A [Load] submits operations through the API, polls every accepted task,
// and records responses, notifications and results as a [History].
// [History.Violations] compares the history with the marks that control commands
// wrote on the agents' hosts. The package uses only the API, the notifications and
// these marks, so it detects a violation regardless of its cause.
//
// [NewSchedule] creates the faults during a load from a seed.
//
// # What a fail-over of Redis may show
//
// If dispatchers and workers wait for replicas, a fail-over loses no accepted task
// and no result for which an agent has a receipt. Clients may have seen unconfirmed
// writes of the old master, which are then lost: the next poll may show less
// progress. The agents send the results again. So within a [Span] in which the
// store may fail over, the progress of a task may decrease. But the task must
// exist, its counters must add up, and in the end each item must have the same
// agent's result as before. Outside these spans progress never decreases.
package check
