# hpcexec's entry points; `make help` lists them.

SLURM ?= 24.11
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS = -s -w -X main.version=$(VERSION)

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/hpcexec (static)
	CGO_ENABLED=0 go build -trimpath -tags urfave_cli_no_docs -ldflags "$(LDFLAGS)" -o bin/hpcexec ./cmd/hpcexec

.PHONY: test
test: ## Everything: unit tests, and the tests on a real cluster; as root, on Debian
	testbed/test.sh

.PHONY: test-unit
test-unit: ## Unit tests alone; they need no cluster and no root
	go test ./...

.PHONY: cluster-up
cluster-up: ## Bring up the test cluster (SLURM=22.05|24.11|26.05); as root, on Debian
	testbed/up $(SLURM)

.PHONY: cluster-down
cluster-down: ## End the test cluster; its images stay cached
	testbed/down

.PHONY: demo
demo: ## Build, bring up the test cluster and show hpcexec at work on it; as root, on Debian
	testbed/demo.sh

.PHONY: bench
bench: build ## Measure hpcexec beside its peers on the test cluster; writes bin/bench.json
	CGO_ENABLED=0 go build -trimpath -o bin/bench ./testbed/bench
	testbed/up $(SLURM)
	testbed/on login /opt/hpcexec/bin/bench -json /home/ada/bench.json
	testbed/on login cat /home/ada/bench.json >bin/bench.json

.PHONY: soak
soak: build ## The long tests: all under the race detector, the chain of wrappers; an hour
	CGO_ENABLED=1 go test -race -timeout 60m ./sshmux ./cmd/hpcexec ./slurm ./apptainer ./overlay ./snapshots
	testbed/up $(SLURM)
	CGO_ENABLED=0 go test -c -tags testbed,soak -o bin/session-soak.test ./internal/session
	testbed/on login /opt/hpcexec/bin/session-soak.test -test.v -test.timeout 90m -test.run 'TestConformanceOfTheChain'

.PHONY: test-slurm-all
test-slurm-all: ## The whole test on each Slurm release in turn; as root, on Debian
	for release in 22.05 24.11 26.05; do testbed/down && SLURM=$$release testbed/test.sh || exit 1; done

.PHONY: fmt
fmt: ## Format the Go code
	gofmt -s -w .

.PHONY: lint
lint: ## gofmt, go vet, and shellcheck where it is installed
	@test -z "$$(gofmt -s -l .)" || { gofmt -s -l .; exit 1; }
	go vet ./...
	@! command -v shellcheck >/dev/null || shellcheck -x testbed/on testbed/up testbed/down testbed/check testbed/node \
		testbed/service testbed/*.sh .ci/run testbed/lib/*.sh testbed/inside/* testbed/image/customize testbed/sif/build

# The folder itself stays: the cluster's nodes have it mounted.
.PHONY: clean
clean: ## Remove what was built
	rm -rf bin/*
