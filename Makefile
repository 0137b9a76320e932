# Tenure: what to try, build and test. `make help` lists it.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test bench guests languages host lint rust lints nextest deny packages

TARGETS := wasm32-wasip2 wasm32-unknown-unknown
NEXTEST := 0.9.143
DENY := 0.20.2

# Every crate that is a plugin, by its package's name.
GUESTS := $(shell grep -hm1 '^name = ' plugins/*/Cargo.toml examples/*/Cargo.toml tests/guest*/Cargo.toml 2>/dev/null | cut -d'"' -f2)

help: ## This list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

# In the foreground of a terminal, Ctrl-C goes to make too, which then ends with 130 whatever the host says. Job control
# (set -m) gives the host the terminal to itself; setpriv stops it where make is killed.
demo: host ## Build and run examples/quickstart; run it in a second terminal for a stand-by; Ctrl-C stops it
	@cargo build --profile guest --target wasm32-wasip2 -p heartbeat
	@echo 'Ctrl-C stops this host. `make demo` in a second terminal stands by and takes over.'
	@read -r _ _ _ _ group _ _ foreground _ </proc/self/stat
	run=(target/debug/tenure run examples/quickstart/tenure.toml)
	if [ "$$group" = "$$foreground" ]; then set -m; setpriv --pdeathsig TERM "$${run[@]}"; else exec "$${run[@]}"; fi

# The host is built along with its tests.
test: guests languages nextest packages ## Install what is missing, build, and run every test
	cargo nextest run --workspace
	cargo test --workspace --doc

# Takes long the first time: wasmtime is built anew, optimised.
bench: guests packages ## Measure hand-over, take-over, renewals, starts, stops and ticks
	cargo build --release --workspace --bins
	cargo bench --workspace --bench figures

guests: rust ## Build every plugin: target/wasm32-wasip2/guest/NAME.wasm
	cargo build --profile guest --target wasm32-wasip2 $(addprefix -p ,$(GUESTS))
	cargo build --profile guest --target wasm32-unknown-unknown -p heartbeat

# What can't be installed here is said, and its tests are left out; what can be is built by them.
languages: ## Install what the examples in Python, JavaScript, C and Go need
	@for example in python javascript c go-command; do
		$(MAKE) --no-print-directory -C examples/$$example tools ||
			echo "make: the tools of examples/$$example are not there: its tests are skipped" >&2
	done

host: rust ## Build the host: target/debug/tenure
	cargo build --workspace --bins

lint: rust lints deny ## Check formatting, lints, licences, and what must build without an operating system
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy -p tenure-core --target wasm32-unknown-unknown -- -D warnings
	cargo clippy -p tenure-guest --target wasm32-unknown-unknown -- -D warnings
	cargo clippy -p tenure-guest --target wasm32-wasip2 -- -D warnings
	cargo deny check licenses bans sources

# What the targets above need. Each is quick where it is there already, and says what it installs where it is not.

define missing
{ echo "make: $(1)" >&2; exit 1; }
endef

rust:
	@command -v rustup >/dev/null || $(call missing,rustup is missing; install Rust from https://rustup.rs)
	@command -v cc >/dev/null || $(call missing,a C compiler is missing; install one such as the package gcc)
	@rustc --version >/dev/null 2>&1 || { echo 'Installing the toolchain of rust-toolchain.toml'; rustup toolchain install; }
	@for target in $(TARGETS); do rustup target list --installed | grep -qx "$$target" || rustup target add "$$target"; done

lints: rust
	@for component in rustfmt clippy; do
		rustup component list --installed | grep -q "^$$component" || rustup component add "$$component"
	done

nextest: rust
	@cargo nextest --version >/dev/null 2>&1 || { echo 'Installing cargo-nextest'; cargo install --locked cargo-nextest@$(NEXTEST); }

deny: rust
	@cargo deny --version >/dev/null 2>&1 || { echo 'Installing cargo-deny'; cargo install --locked cargo-deny@$(DENY); }

# Redis for the tests and benchmarks, openssl for the certificate of one of them.
packages:
	@wanted=()
	command -v redis-server >/dev/null || wanted+=(redis-server)
	command -v openssl >/dev/null || wanted+=(openssl)
	if [ "$${#wanted[@]}" -gt 0 ]; then
		command -v apt-get >/dev/null || $(call missing,$${wanted[*]} is missing; install Redis 6.2 or later and openssl)
		sudo=
		[ "$$(id -u)" = 0 ] || sudo=$$(command -v sudo) || $(call missing,install as root: apt-get install $${wanted[*]})
		echo "Installing $${wanted[*]} with apt-get"
		$$sudo apt-get update -q
		$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$${wanted[@]}"
	fi

.ONESHELL:
