# procfleet: `make` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
GOTESTSUM := gotest.tools/gotestsum@v1.13.0
BENCHSTAT_COUNT ?= 1
FUZZTIME ?= 30s

# One form of programs for tests, images and releases: the build cache has each package once, and once more for the race detector.
export GOFLAGS ?= -trimpath
PLAIN := CGO_ENABLED=0

export PROCFLEET_REQUIRE ?= redis,chromium
# Tests start these programs; each is built once for the whole run.
export PROCFLEET_TEST_PROGRAMS := $(CURDIR)/bin/test
PROGRAMS := ./cmd/... ./internal/testenv/agenttest/demo github.com/nats-io/nats-server/v2

help: ## list the targets
	@grep -hE '^[a-z][a-z/-]*:.*##' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

build: ## build the three binaries into bin/
	$(PLAIN) go build -buildvcs=auto -ldflags '-s -w' -o bin/ ./cmd/...
	@test $$(wc -c <bin/procfleet-agent) -le $$((20 << 20)) || { echo "bin/procfleet-agent has more than 20 MiB"; exit 1; }
	@test $$(wc -c <bin/procfleet) -le $$((48 << 20)) || { echo "bin/procfleet has more than 48 MiB"; exit 1; }

run: ## the whole system on embedded defaults, at http://127.0.0.1:8080
	go run ./cmd/procfleet up

test: test/setup test/programs test/compiled ## everything: install what the tests need, then all tests; a line for each package, and each test of a whole system
	@$(MAKE) --no-print-directory -j 2 test/packages test/systems

# Tests of packages have the race detector. Tests of whole systems mostly wait for other processes, so they run beside the
# packages. gotestsum prints a line for each package and system test as it ends; no test runs a second time.
# -w leaves debug information out, a third of the time to link.
SYSTEMS := ./test/e2e ./test/faults ./test/pressure ./test/simulation ./test/transport
PACKAGES = $$(go list ./... | grep -v -x -F "$$(go list $(SYSTEMS))" | tr '\n' ' ')
RUN = go run $(GOTESTSUM) --format-icons text --hide-summary skipped --jsonfile bin/$(@F).json
NOSUBTESTS := grep -v -E '^(PASS|SKIP) [^ ]*Test[^ ]*/'

test/packages:
	@$(RUN) --format pkgname --packages "$(PACKAGES)" -- -race -vet off -ldflags -w -timeout 20m -p 2 -parallel 3

test/systems:
	@$(PLAIN) $(RUN) --format testname --packages "$(SYSTEMS)" -- -vet off -ldflags -w -timeout 20m -p 2 -parallel 4 | $(NOSUBTESTS)

# With an empty build cache, compilers would otherwise take the processors from the tests of whole systems for minutes.
test/compiled:
	@go build -race ./...
	@case $(PROCFLEET_REQUIRE) in *natscli*) cd test/natscli && $(PLAIN) go build -o /dev/null github.com/nats-io/natscli/nats ;; esac

test/programs:
	@rm -rf $(PROCFLEET_TEST_PROGRAMS) && mkdir -p $(PROCFLEET_TEST_PROGRAMS)
	@$(PLAIN) go build $(RACE) -o $(PROCFLEET_TEST_PROGRAMS) $(PROGRAMS)

test/slow: test/setup test/programs ## run all tests and write the seconds of each package and the slowest tests into CONTRIBUTING.md
	@begin=$$SECONDS; go test -race -vet off -ldflags -w -exec true $(PACKAGES) >/dev/null; $(PLAIN) go test -vet off -ldflags -w -exec true $(SYSTEMS) >/dev/null; \
	echo $$((SECONDS - begin)) >bin/compile.seconds; echo "compiled and linked all tests in $$(cat bin/compile.seconds) s"
	@$(MAKE) --no-print-directory -j 2 test/packages test/systems
	@go run ./test/internal/slow -in CONTRIBUTING.md -compile $$(cat bin/compile.seconds) bin/packages.json bin/systems.json

# What takes too long for each change. Memory limits and virtual time have no use for the race detector.
test/long: export PROCFLEET_TEST_LONG := 1
test/long: test/long/packages test/long/systems simulate churn console-hour fault-matrix cross/all ## all that `make test` and CI cut, except the cluster scenarios (make cluster-test): hours

test/long/packages: test/setup test/programs
	@$(RUN) --format pkgname --packages "$(PACKAGES)" -- -race -vet off -ldflags -w -timeout 60m -p 2
	go test -vet off ./agent/journal # every byte and bit: the race detector leaves most places of damage out

test/long/systems: export PROCFLEET_TEST_PROGRAMS := $(CURDIR)/bin/race
test/long/systems: test/setup
	@$(MAKE) --no-print-directory test/programs PLAIN= RACE=-race PROCFLEET_TEST_PROGRAMS=$(CURDIR)/bin/race
	@$(RUN) --format testname --packages "./test/e2e ./test/faults ./test/transport" -- -race -vet off -ldflags -w -timeout 90m -p 1 -parallel 3 | $(NOSUBTESTS)
	@$(MAKE) --no-print-directory test/programs
	@PROCFLEET_TEST_PROGRAMS=$(CURDIR)/bin/test $(RUN) --format testname --packages "./test/pressure ./test/simulation" -- -vet off -ldflags -w -timeout 60m -p 1 | $(NOSUBTESTS)

test/setup: ## install redis-server and chromium where they are missing (apt or brew)
	@if command -v redis-server >/dev/null && command -v chromium >/dev/null; then :; \
	elif command -v apt-get >/dev/null; then \
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
		$$sudo apt-get update -qq; $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server chromium >/dev/null; \
		$$sudo systemctl disable --now redis-server >/dev/null 2>&1 || true; \
	elif command -v brew >/dev/null; then brew install redis; \
	else echo "redis-server or chromium is missing and neither apt-get nor brew is here: install Redis 6.2 or later, and Chromium" >&2; exit 1; fi

test/short: test/programs ## while you edit: every package without the race detector, and three tests of a whole system
	$(PLAIN) go test -vet off -timeout 20m $(PACKAGES)
	$(PLAIN) go test -vet off -timeout 20m ./test/e2e -run '^(TestTheExampleSpecWorks|TestUpKilledInTheMiddleOfATask|TestEveryCommandInTheDocumentationIsRunOrMarked)$$'

compose-test: test/setup test/programs test/compiled ## start docker-compose.yml from images built here, break it, and see it recover
	$(PLAIN) go vet -tags compose ./test/compose
	$(PLAIN) go test -vet off -tags compose -count 1 -timeout 10m ./test/compose

cluster-test: test/setup test/programs test/compiled ## break a whole fleet in containers and write its section of docs/reference/faults.md (needs root); ONLY=REGEXP runs scenarios by name
	$(PLAIN) go vet -tags cluster ./test/cluster
	$(PLAIN) go test -vet off -tags cluster -count 1 -v -timeout 120m ./test/cluster $(if $(ONLY),-only '$(ONLY)',-write "$(CURDIR)/docs/reference/faults.md") $(if $(SEED),-seed $(SEED))

cluster-test/short: test/setup test/programs ## a few of the scenarios, and a few random faults from a fixed seed
	$(PLAIN) go vet -tags cluster ./test/cluster
	$(PLAIN) go test -vet off -tags cluster -count 1 -timeout 15m ./test/cluster -cut

SEEDS ?= 1000
SIMULATIONS ?= $(shell nproc 2>/dev/null || echo 2)

simulate: ## SEEDS (1000, in hundreds) histories of whole fleets in virtual time, beginning with seed FIRST (1)
	@mkdir -p bin && $(PLAIN) go test -vet off -c -o bin/simulation.test ./test/simulation
	seq $(or $(FIRST),1) 100 $$(($(or $(FIRST),1) + $(SEEDS) - 1)) | GOMAXPROCS=1 xargs -P $(SIMULATIONS) -I {} \
		bin/simulation.test -test.v -test.run '^TestHistories$$' -test.timeout 1h -first {} -seeds $$(($(SEEDS) < 100 ? $(SEEDS) : 100))

screenshots: test/setup ## write the pictures of the console into docs/pictures
	go test -tags screenshots -count 1 -run '^TestScreenshots$$' ./test/e2e -pictures $(CURDIR)/docs/pictures

fault-matrix: ## make everything go wrong that the fault matrix names, as root, and write its section of docs/reference/faults.md
	go test -count 1 -parallel 6 -json -run '^TestFaultMatrix$$' ./agent/... ./test/faults | go run ./test/faults/matrix docs/reference/faults.md

churn: ## 200 programs that are started, stopped and killed at random for two minutes, by an agent that is killed too
	go test -count 1 -v -run '^TestChurn$$' ./test/faults -churn.for 2m

console-hour: test/setup ## a page of the console about 100,000 items, with the changes of an hour: 3,600
	PROCFLEET_TEST_LONG=1 go test -count 1 -v -run '^TestTheConsoleShowsABigTask$$' ./test/e2e -console.changes 3600

bench: build ## every benchmark of the system against the floor of this machine, in a few minutes
	bin/procfleet-bench accept --start --hosts 1,10000
	bin/procfleet-bench poll --start --items 1,10000 --runs 5
	bin/procfleet-bench small --start --tasks 10000 --beside 100000
	bin/procfleet-bench embedded
	bin/procfleet-bench fanout --start --hosts 1000,10000,100000
	bin/procfleet-bench fanout --start --action stop --hosts 10000
	bin/procfleet-bench fanout --start --hosts 5000 --connections 5000
	bin/procfleet-bench reports --start --agents 10000 --every 3s --for 10s
	bin/procfleet-bench supervise

bench/go: ## the Go benchmarks of every package, once
	go test -run '^$$' -bench . -benchtime 1x -count $(BENCHSTAT_COUNT) ./...

fuzz: ## every fuzz target for FUZZTIME (30s) each
	@for pkg in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' "$$pkg" | grep '^Fuzz' || true); do \
			echo "== $$pkg $$target"; go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$$pkg"; \
		done; \
	done

audit: ## known vulnerabilities and changed modules; where the database cannot be reached it says so and fails
	go mod verify
	go run $(GOVULNCHECK) ./...

lint: ## golangci-lint, gofmt and vet
	$(PLAIN) go run $(GOLANGCI) run ./...

# vet compiles everything and checks the tests, once for each system: no file is for one architecture only. Building the
# commands afterwards only links them.
cross: ## what other systems see: vet with the tests, and link the commands that are released for them
	GOOS=windows go vet ./...
	GOOS=windows $(PLAIN) go build ./cmd/...
	GOARCH=arm64 $(PLAIN) go build ./cmd/...
	GOOS=darwin go vet ./...

cross/all: cross ## the same, with all tests linked for Windows, and its other architecture
	GOOS=windows GOARCH=arm64 $(PLAIN) go build ./cmd/...
	GOOS=windows $(PLAIN) go test -vet off -ldflags '-s -w' -c -o /dev/null ./... >/dev/null

verify: ## the module file is tidy and the tree is formatted
	go mod tidy -diff
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "gofmt: $$unformatted" >&2; exit 1; }

docker: build ## build the images procfleet and procfleet-agent
	docker build -q -f deploy/Dockerfile --target server --build-arg VERSION="$$(bin/procfleet-agent --version | cut -d " " -f 3)" -t procfleet:latest .
	docker build -q -f deploy/Dockerfile --target agent --build-arg VERSION="$$(bin/procfleet-agent --version | cut -d " " -f 3)" -t procfleet-agent:latest .

ci: ## what CI runs, with the seconds of each step at the end (needs docker and root)
	.ci/run

clean: ## remove what build made
	rm -rf bin

.PHONY: help build run test test/packages test/systems test/programs test/compiled test/slow test/long test/long/packages test/long/systems test/setup test/short compose-test cluster-test cluster-test/short simulate screenshots fault-matrix churn console-hour bench bench/go fuzz audit lint cross cross/all verify docker ci clean
