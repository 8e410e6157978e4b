# Two commands matter: `make demo` shows a 5G network on this machine, `make test` checks everything.

CARGO ?= cargo
DEMO_ARGS ?=

# What continuous integration builds, it builds once: what the compiler keeps for the next change would only fill the disk, and a crate in many pieces,
# of which the next change compiles one, takes longer than one in one piece.
ifdef CI
export CARGO_INCREMENTAL = 0
export CARGO_PROFILE_DEV_CODEGEN_UNITS = 1
endif

.DEFAULT_GOAL := help
.PHONY: help demo test fmt lint tidy unit loom doc fuzz-smoke setup-demo setup-test setup-bench build bench

help:  ## this text
	@echo 'Godwit, a low-latency 5G core'
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22
	@echo
	@echo '  DEMO_ARGS="--ues 500" make demo    options of the demo: target/release/godwit demo --help'

demo: setup-demo build  ## a network on this machine: UEs register, ping and download through the core
	target/release/godwit demo $(DEMO_ARGS)

build:  ## the binary, target/release/godwit
	@test -e target/release/godwit || echo 'build: the first time takes up to 22 minutes of processor time: 11 minutes on two slow cores'
	$(CARGO) build --release --locked --package cli $(if $(XDP),--features cli/clang)

bench: setup-bench build  ## the experiments, target/release/godwit-bench, which `godwit bench` starts; with DPDK and clang where they are installed
	$(CARGO) build --release --locked --package bench $(if $(DPDK),--features bench/dpdk) $(if $(XDP),--features bench/xdp)

test: setup-test fmt lint tidy unit loom doc fuzz-smoke  ## all checks: format, lints, rules, tests, docs, fuzz smoke
	@echo 'test: all passed'

fmt:  ## formatting, checked
	$(CARGO) fmt --all --check

# With DPDK if it is installed (`setup-test` installs it on Debian). Evaluated when a recipe runs, not before. The
# documentation is built without DPDK, so that both variants are compiled.
DPDK = $(shell pkg-config --exists 'libdpdk >= 22.11' 2>/dev/null && echo --features pktio/dpdk,upf/dpdk,bench/dpdk)

# With the XDP programs if there is a clang that compiles for the target bpf, and the kernel's headers (`setup-test` and `setup-bench` install it on Debian).
CLANG ?= clang
XDP = $(shell echo 'int compiles;' | $(CLANG) -target bpf -mcpu=v3 -include linux/bpf.h -idirafter /usr/include/$$(uname -m)-linux-gnu \
	-x c -c -o /dev/null - 2>/dev/null && echo --features xdp/clang)

lint:  ## clippy, warnings are errors
	$(CARGO) clippy --workspace --all-targets --locked $(DPDK) $(XDP) -- -D warnings

tidy:  ## layering, banned calls, lengths, licences
	$(CARGO) xtask tidy

# Also builds target/debug/godwit, which the end-to-end tests run, because the tests of `cli` need it. A separate build
# would compile every dependency twice, with and without the features that only tests need.
unit:  ## unit, conformance and end-to-end tests
	$(CARGO) test --workspace --locked --no-fail-fast $(DPDK) $(XDP)

# A separate target directory, because the flag would make everything else compile again.
loom:  ## the model checker: every interleaving of readers and writers of the classifier and the UPF's tables
	RUSTFLAGS='--cfg loom' $(CARGO) test --package classifier --package rcu --lib --release --locked --target-dir target/loom -- shared loom_tests

doc:  ## reference documentation, warnings are errors
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked --document-private-items

# Runs the program that `unit` has built: `cargo run --package fuzz` would select fewer features of the dependencies and
# compile them again.
fuzz-smoke:  ## every fuzz target for a second, on stable Rust
	$(CARGO) test --quiet --workspace --locked --no-run $(DPDK) $(XDP)
	target/debug/fuzz --seconds 1

setup-demo:
	@scripts/setup.sh demo

setup-test:
	@scripts/setup.sh test

setup-bench:
	@scripts/setup.sh bench
