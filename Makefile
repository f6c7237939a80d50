# `make` lists the targets. Settings: DISTLOCK_TESTBED chooses where the servers
# come from (auto, containers, processes, external).
SHELL := /bin/bash
.DEFAULT_GOAL := help

GO ?= go
export DISTLOCK_TESTBED ?= auto

# Tools are built from the module proxy, once per version.
BIN := $(CURDIR)/.cache/bin
GOLANGCI_LINT := $(BIN)/golangci-lint-v2.15.0
GOVULNCHECK := $(BIN)/govulncheck-v1.9.0

# What a test run is allowed, per package; go test's own default is longer than
# the whole run should take.
TEST_TIMEOUT ?= 8m
RACE_TEST = DISTLOCK_REQUIRE_SERVERS=1 $(GO) test -json -race -timeout $(TEST_TIMEOUT)
SUMMARY = $(GO) run ./internal/testbed/cmd/testsum

# The packages whose tests use real servers.
TESTBED := example.com/distlock/internal/testbed
SERVER_PACKAGES = $$($(GO) list -f '{{$$p := .ImportPath}}{{range .TestImports}}{{if eq . "$(TESTBED)"}}{{$$p}}{{"\n"}}{{end}}{{end}}{{range .XTestImports}}{{if eq . "$(TESTBED)"}}{{$$p}}{{"\n"}}{{end}}{{end}}' ./... | sort -u)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## Install what the servers and the race detector need (Debian, Ubuntu), build etcd
	@internal/testbed/install-deps.sh
	@if [[ "$$DISTLOCK_TESTBED" == auto || "$$DISTLOCK_TESTBED" == processes ]]; then \
		echo "deps: etcd is $$($(GO) run ./internal/testbed/cmd/testbed etcd)"; \
	fi

.PHONY: test
test: deps ## Run all tests on real servers, with the race detector
	@set -o pipefail; $(RACE_TEST) ./... | $(SUMMARY)

.PHONY: test-backends
test-backends: deps ## Run the tests that use servers (DISTLOCK_TESTBED=containers: builds the images first)
	@set -o pipefail; $(RACE_TEST) -count=1 $(SERVER_PACKAGES) | $(SUMMARY)

ifeq ($(DISTLOCK_TESTBED),containers)
test-backends bench bench-smoke: images
endif

.PHONY: bench
bench: deps ## Measure all backends and print the comparison
	@$(GO) run ./cmd/distlock bench

.PHONY: bench-smoke
bench-smoke: deps ## Run the benchmark shortly, to see that it works
	@$(GO) run ./cmd/distlock bench -short

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Check formatting, go vet, golangci-lint and go.mod
	@files=$$(gofmt -l $$(git ls-files '*.go')); if [[ -n "$$files" ]]; then echo "gofmt would change: $$files"; exit 1; fi
	$(GO) vet ./...
	$(GOLANGCI_LINT) run
	$(GO) mod tidy -diff

.PHONY: vuln
vuln: $(GOVULNCHECK) ## Look for known vulnerabilities (needs the Go vulnerability database)
	$(GOVULNCHECK) ./...

.PHONY: images
images: ## Build the container images where no registry can be reached
	@images/build.sh

.PHONY: fmt
fmt: ## Format the Go files
	gofmt -w $$(git ls-files '*.go')

.PHONY: clean
clean: ## Remove tools, results and caches of this directory
	rm -rf .cache bin bench-results

$(GOLANGCI_LINT):
	$(call install,github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0,$@)

$(GOVULNCHECK):
	$(call install,golang.org/x/vuln/cmd/govulncheck@v1.9.0,$@)

# install builds a command at a version and gives it a name with that version.
define install
@mkdir -p $(BIN)
@echo "building $(notdir $2) (once)"
@GOBIN=$(BIN) $(GO) install $1
@mv $(BIN)/$(firstword $(subst @, ,$(notdir $1))) $2
endef
