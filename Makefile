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
bench: ## Measure hpcexec on the test cluster (not written yet)
	@echo 'make bench: not written yet' >&2; exit 1

.PHONY: soak
soak: ## Run the long test on the test cluster (not written yet)
	@echo 'make soak: not written yet' >&2; exit 1

.PHONY: test-slurm-all
test-slurm-all: ## Tests on each Slurm release in turn (not written yet)
	@echo 'make test-slurm-all: not written yet' >&2; exit 1

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
