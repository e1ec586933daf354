# The commands of Pillarbox; "make help" lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help build run test race e2e verify alerts bench profile microbench crash compose-test soak up down logs clean

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.1
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
PG := go run ./shared/database/databasetest/withpostgres --
# The race detector needs a C compiler; the programs never do.
COMPOSE := $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
RACE := $(shell command -v gcc >/dev/null && echo -race)
export CGO_ENABLED ?= $(if $(RACE),1,0)
N ?= 20
SEED ?= 0

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build the five programs into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/ ./services/store ./services/mailer ./services/audit ./services/loyalty ./services/suite

run: ## run everything in one process, files under ./data
	@CGO_ENABLED=0 go build -o bin/suite ./services/suite
	@exec bin/suite run

test: ## all tests, with PostgreSQL found or set up; with the race detector where a C compiler is
	$(PG) go test -short $(RACE) -shuffle=on -timeout 20m ./...

race: ## all tests three times with the race detector, full mode
	$(PG) go test -race -shuffle=on -count=3 -timeout 60m ./...

e2e: ## the end-to-end scenarios alone
	$(PG) go test -count=1 -timeout 20m ./services/suite/e2e/...

verify: ## formatting, vet, static analysis, import rules, tidy module, known vulnerabilities
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	go vet ./...
	go mod tidy -diff
	go run $(STATICCHECK) ./...
	go test -count=1 ./services/internal/rules
	@GOBIN=$(CURDIR)/bin/tools go install $(GOVULNCHECK)
	@bin/tools/govulncheck ./... || { status=$$?; [ $$status -ne 3 ] || exit 1; echo "SKIPPED: govulncheck cannot reach its database (status $$status)"; }

alerts: ## check the Prometheus alert rules and try them on series (needs promtool: Debian's package prometheus; part of verify)
	cd services/deploy && promtool check rules alerts.yml && promtool test rules alerts_test.yml

bench: build ## measure beside peers and the disk, in one run: make bench [ONLY=T1,T6] [ROUNDS=5] [SCALE=100]
	go run ./shared/database/databasetest/withpostgres -durable -- env SUITE=$(CURDIR)/bin/suite go run -C bench .

profile: ## CPU profile of a target: make profile ONLY=T1, then go tool pprof bin/cpu.prof
	$(MAKE) bench PROFILE=$(CURDIR)/bin/cpu.prof ROUNDS=1

microbench: ## the packages' own benchmarks
	$(PG) go test -run '^$$' -bench . -benchtime 2s ./shared/... ./services/...

clean: ## remove what was built; data and mails stay
	rm -rf bin

up: ## docker-compose up: separate services, PostgreSQL and NATS, mails in ./pickup
	@mkdir -p pickup
	$(COMPOSE) up --build -d

down: ## stop the compose services; volumes and mails stay
	$(COMPOSE) down

logs: ## follow the logs of the compose services
	$(COMPOSE) logs -f --tail=100

compose-test: ## the compose file for real: build, up, three mailers, kill, restarts, all under load (needs Docker, as root)
	go test -count=1 -v -tags compose -run TestCompose -timeout 40m ./services/suite/e2e

crash: ## long crash runs: make crash N=200 SEED=1
	$(PG) env PILLARBOX_CRASH_N=$(N) PILLARBOX_CRASH_SEED=$(SEED) go test -count=1 -v -timeout 6h -run 'Crash|Killed|Wiped|Restore|Lost|Terminated|Fsync|Pickup|Frozen|AtOnce|Full|Partition|Answer|Idle|Upgrade' ./services/suite/e2e

soak: ## everything long: all tests in full mode, 200 faults in every shape
	$(PG) go test -race -shuffle=on -timeout 3h ./...
	$(MAKE) crash N=200
