# softdpu: `make` lists the targets. Everything works as root and with sudo, on Debian 12 and newer.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help deps deps-build deps-test deps-vm deps-generate deps-lint generate build package test test-long test-vm fuzz lint format check demo bench clean

# sudo drops the caller's PATH, so Go is looked for where it is usually installed too.
GO_PLACES := /usr/local/go/bin/go $(wildcard /usr/lib/go-1.*/bin/go) $(wildcard /snap/bin/go) \
	$(wildcard $(HOME)/sdk/go*/bin/go) $(if $(SUDO_USER),$(wildcard $(shell getent passwd $(SUDO_USER) | cut -d: -f6)/sdk/go*/bin/go))
GO_MINIMUM := 1.25
ifndef GO
GO := $(shell for go in go $(GO_PLACES); do v=$$($$go env GOVERSION 2>/dev/null | tr -d go) && \
	[ -n "$$v" ] && printf '%s\n%s\n' $(GO_MINIMUM) "$$v" | sort -CV && command -v $$go && break; done)
endif
export PATH := $(if $(GO),$(dir $(GO)):)$(PATH):/usr/local/sbin:/usr/sbin:/sbin

# The version is given to the linker below; Go's own stamp fails where git distrusts the checkout's
# owner, as it does under sudo.
export GOFLAGS := $(GOFLAGS) -buildvcs=false
GIT := git -c safe.directory='*'
VERSION ?= $(shell $(GIT) describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT ?= $(shell $(GIT) rev-parse HEAD 2>/dev/null || echo unknown)

# Packages whose coverage is printed and held to a minimum, in per cent of statements.
COVERED := ./firewall ./dataplane/packet
MIN_COVERAGE := 80

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- What the machine needs: program and its Debian package, program and its package, ... ---------
DEPS := ip iproute2 ping iputils-ping ethtool ethtool curl curl nft nftables git git
# Second opinions of tests: of captures, of their filters.
DEPS_TEST := tcpdump tcpdump tshark tshark
# Other kernels, and the programs that tests run there.
DEPS_VM := qemu-system-x86_64 qemu-system-x86 depmod kmod tcpdump tcpdump unshare util-linux
DEPS_GENERATE := clang-19 clang-19 llvm-strip-19 llvm-19 /usr/include/bpf/bpf_helpers.h libbpf-dev
DEPS_LINT := clang-format-19 clang-format-19 gcc gcc /usr/include/stdlib.h libc6-dev

# install (program package)...: installs the packages of what is missing. Nothing missing costs nothing.
define install
	@set -- $(1); missing=; while (($$#)); do \
		[[ $$1 == /* && -e $$1 ]] || command -v "$$1" >/dev/null || missing+=" $$2"; shift 2; done; \
	[ -z "$$missing" ] && exit 0; \
	if ! command -v apt-get >/dev/null; then echo "please install:$$missing" >&2; exit 1; fi; \
	if ((EUID)); then echo "please run: sudo apt-get install$$missing" >&2; exit 1; fi; \
	echo "installing$$missing"; export DEBIAN_FRONTEND=noninteractive; log=$$(mktemp); \
	get() { apt-get install -qq -y --no-install-recommends $$missing >"$$log" 2>&1; }; \
	get || { apt-get update -qq >/dev/null && get; } || { cat "$$log" >&2; rm "$$log"; exit 1; }; rm "$$log"
endef

deps: deps-build deps-vm ## Install what build and tests need, QEMU too, and look for Go

deps-build:
	@if [ -z "$(GO)" ]; then echo 'softdpu needs Go $(GO_MINIMUM) or newer, and there is none in PATH or /usr/local/go.' >&2; \
		echo "Take it from https://go.dev/dl/ (Debian's own is too old): as root, in an empty folder," >&2; \
		echo "  curl -LO https://go.dev/dl/go1.25.0.linux-$$(dpkg --print-architecture 2>/dev/null || echo amd64).tar.gz" >&2; \
		echo '  rm -rf /usr/local/go && tar -C /usr/local -xzf go1.25.0.linux-*.tar.gz' >&2; exit 1; fi
	$(call install,$(DEPS))

# promtool tests alerts and names of metrics. Only the program is taken out of Debian's package, which
# would start a Prometheus where it is installed. Without it those tests are left out, or fail in CI.
deps-test: deps-build
	$(call install,$(DEPS_TEST))
	@[ -x bin/promtool ] || command -v promtool >/dev/null || { \
		dir=$$(mktemp -d) && cd "$$dir" && { \
			{ apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } >/dev/null 2>&1 && \
			dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xO ./usr/bin/promtool >promtool && chmod 755 promtool && \
			mkdir -p "$(CURDIR)/bin" && mv promtool "$(CURDIR)/bin/promtool" && echo 'fetched bin/promtool' || \
			echo 'promtool, of Prometheus, cannot be fetched: tests that need it are left out' >&2; }; rm -rf "$$dir"; }

deps-vm:
	$(call install,$(DEPS_VM))

deps-generate:
	$(call install,$(DEPS_GENERATE))

deps-lint: deps-generate
	$(call install,$(DEPS_LINT))

# --- Build ----------------------------------------------------------------------------------------
generate: deps-build deps-generate ## Compile bpf/ and write the Go code that is generated from it
	$(GO) generate ./...

build: deps-build ## Build bin/softdpu
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-X main.buildVersion=$(VERSION) -X main.buildCommit=$(COMMIT)' \
		-o bin/softdpu ./cmd/softdpu

# The same commit gives the same package: its times are the commit's.
package: deps-build ## Build the Debian package dist/softdpu_VERSION_ARCH.deb
	@GO=$(GO) VERSION=$(VERSION) COMMIT=$(COMMIT) ARCH=$(ARCH) \
		SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$($(GIT) log -1 --format=%ct)} deploy/debian/build

# --- Test -----------------------------------------------------------------------------------------
# The packages of COVERED run with coverage, the others without: counting slows the packet code down. Go runs
# as many packages at once as there are processors, in this order: the daemon's labs take as long as all
# others together, so they come first. The AF_XDP sockets run once more in their debug build; beside the
# others, since they mostly wait. The summary is told what each run was built with and its status. In CI it runs a few
# tests that failed once more: one that a busy machine broke must not be taken for a broken change.
define run-tests
	covered=$$($(GO) list $(COVERED)) && others=$$($(GO) list ./gateway ./... ./.ci/summary | grep -vxF "$$covered") && \
	beside=$$(mktemp) && trap 'rm -f "$$beside"' EXIT && \
	tests() { printf '{"Action":"tags","Output":"%s"}\n' "$$1"; $(GO) test -json -count=1 $(1) -tags "$$@"; \
	  printf '{"Action":"exit","Output":"%s"}\n' $$?; } && \
	{ { tests xskdebug ./dataplane/xsk; tests '' -cover $$covered; } >"$$beside" & \
	  tests '' $$others; wait $$!; ended=$$?; cat "$$beside"; exit $$ended; } | \
	  $(GO) run ./.ci/summary -min-coverage $(MIN_COVERAGE) $(if $(CI),-again '$(strip $(1))')
endef

# Vetted once, not package by package again. Labs wait more than they compute: more of them at once than processors.
test: deps-build deps-test ## Vet, then run all tests in reduced size (root: the namespace tests too)
	$(GO) vet ./... ./.ci/summary
	@$(call run-tests,-timeout 8m -vet=off -parallel 3)

test-long: deps-build deps-test ## Run all tests in full size (an hour)
	@export SOFTDPU_LONG=1; $(call run-tests,-timeout 90m)

# KERNEL is 6.1 (Debian 12's), newest (of unstable: zero-copy) or all. In all, a newest one that cannot be had is said
# loudly; asked for by name, it is a failure. VMFLAGS as `-accel kvm` or `-job xsk`: go run ./testenv/vm -h.
KERNEL ?= all
test-vm: deps-build deps-vm ## Boot Debian's kernels under QEMU and run tests in them
	@$(GO) run ./testenv/vm -kernel $(KERNEL) $(VMFLAGS) | $(GO) run ./.ci/summary

# FUZZ_BUDGET is in seconds for all targets together; FUZZTIME is for each, as `make fuzz FUZZTIME=10m`.
fuzz: deps-build ## Run every fuzz target for a short time
	@GO=$(GO) FUZZTIME=$(FUZZTIME) FUZZ_BUDGET=$(FUZZ_BUDGET) .ci/fuzz

lint: deps-build deps-lint ## Check style: vet, staticcheck, gofmt, clang-format
	$(GO) vet ./... ./.ci/summary
	$(GO) vet -tags xskdebug ./dataplane/xsk
	$(GO) tool staticcheck ./... ./.ci/summary
	@bad=$$(find . -name '*.go' -not -path './.git/*' | xargs $(dir $(GO))gofmt -l); [ -z "$$bad" ] || { echo "not formatted by gofmt: $$bad" >&2; exit 1; }
	clang-format-19 --dry-run -Werror bpf/*.c bpf/*.h

format: deps-build deps-lint ## Format Go and C
	find . -name '*.go' -not -path './.git/*' | xargs $(dir $(GO))gofmt -w
	clang-format-19 -i bpf/*.c bpf/*.h

check: generate lint deps-test ## Everything before a commit: generated code is current, style, tests with -race
	$(GIT) diff --exit-code -- bpf
	@$(call run-tests,-race -timeout 30m -vet=off)

# --- Use ------------------------------------------------------------------------------------------
demo: build ## Watch real traffic pass, and be refused, and why (root)
	bin/softdpu lab demo

bench: build ## Measure the XDP path, the gateway and its latency (root)
	bin/softdpu bench xdp
	bin/softdpu bench gateway
	bin/softdpu bench latency

clean: ## Remove what was built
	rm -rf bin dist
