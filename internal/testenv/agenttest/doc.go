// Package agenttest runs the built procfleet-agent against a broker of the
// test, as servers and hosts would, with programs for it to manage. Only tests
// import it.
package agenttest
