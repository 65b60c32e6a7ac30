// Package compose starts docker-compose.yml as an operator would and breaks
// it. It knows the HTTP API and the docker commands, nothing else. It needs
// docker, so it only runs with the build tag: make compose-test.
package compose
