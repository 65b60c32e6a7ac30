# procfleet: `make` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
BENCHSTAT_COUNT ?= 1
FUZZTIME ?= 30s
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)

help: ## list the targets
	@grep -hE '^[a-z][a-z/-]*:.*##' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

build: ## build both binaries into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

run: ## the whole system on embedded defaults, at http://127.0.0.1:8080
	go run ./cmd/procfleet up

test: test/setup ## everything: install what the tests need, then all tests with the race detector
	export PROCFLEET_REQUIRE=$${PROCFLEET_REQUIRE:-redis}; \
	go test -race -timeout 20m $$(go list ./... | grep -v /test/e2e); \
	go test -race -timeout 20m ./test/e2e # by itself: it keeps a whole machine busy

test/setup: ## install redis-server where it is missing (apt or brew)
	@if command -v redis-server >/dev/null; then :; \
	elif command -v apt-get >/dev/null; then \
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
		$$sudo apt-get update -qq; $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server >/dev/null; \
		$$sudo systemctl disable --now redis-server >/dev/null 2>&1 || true; \
	elif command -v brew >/dev/null; then brew install redis; \
	else echo "redis-server is missing and neither apt-get nor brew is here: install Redis 6.2 or later" >&2; exit 1; fi

test/short: ## only what needs no processes of its own
	go test -short -timeout 5m ./...

compose-test: test/setup ## start docker-compose.yml from images built here, break it, and see it recover
	go vet -tags compose ./test/compose
	go test -tags compose -count 1 -timeout 10m ./test/compose

bench: build ## every benchmark of the system against the floor of this machine, in a few minutes
	bin/procfleet bench accept --start --hosts 1,10000
	bin/procfleet bench poll --start --items 1,10000 --runs 5
	bin/procfleet bench small --start --tasks 10000 --beside 100000
	bin/procfleet bench fanout --start --hosts 1000,10000,100000
	bin/procfleet bench fanout --start --hosts 5000 --connections 5000
	bin/procfleet bench reports --start --agents 10000 --every 3s --for 10s

bench/go: ## the Go benchmarks of every package, once
	go test -run '^$$' -bench . -benchtime 1x -count $(BENCHSTAT_COUNT) ./...

fuzz: ## every fuzz target for FUZZTIME (30s) each
	@for pkg in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' "$$pkg" | grep '^Fuzz' || true); do \
			echo "== $$pkg $$target"; go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$$pkg"; \
		done; \
	done

lint: ## golangci-lint, gofmt and vet; also as darwin sees the tree
	go run $(GOLANGCI) run ./...
	GOOS=darwin go vet ./...

verify: ## the module file is tidy and the tree is formatted
	go mod tidy -diff
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "gofmt: $$unformatted" >&2; exit 1; }

docker: build ## build the images procfleet and procfleet-agent
	docker build -q -f deploy/Dockerfile --target server -t procfleet:latest .
	docker build -q -f deploy/Dockerfile --target agent -t procfleet-agent:latest .

ci: test verify lint build ## exactly what CI runs

clean: ## remove what build made
	rm -rf bin

.PHONY: help build run test test/setup test/short compose-test bench bench/go fuzz lint verify docker ci clean
