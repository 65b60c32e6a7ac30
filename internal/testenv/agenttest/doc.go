// Package agenttest runs the built procfleet-agent against a NATS server of the test. It
// simulates dispatchers and workers, and provides programs that the agent manages. Only
// tests import it.
package agenttest
