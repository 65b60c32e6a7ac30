// Package compose starts docker-compose.yml as an operator does, and causes faults.
// It uses only the HTTP API and docker commands. It needs docker, so its tests have
// a build tag: make compose-test.
package compose
