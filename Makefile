# The commands of the project; each is a few lines here or a script in scripts/, which says what it does.

BIN    = $(or $(CARGO_TARGET_DIR),target)/x86_64-unknown-linux-gnu/release
PREFIX = /usr/local

.PHONY: help setup build demo demo-services check lint unit test test-all vm fuzz bench fresh install uninstall deb clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 22

setup: ## install what is missing, from Debian's packages
	@scripts/setup

build: ## build the one static binary
	@scripts/setup build
	cargo build --release
	@echo "The binary: $(BIN)/tollgate"

demo: build ## watch a Redis server through the gate, then three attacks on guarded servers (root)
	@scripts/setup build demo
	@scripts/demo

demo-services: build ## watch two tenants share nginx, Apache, PHP and PostgreSQL, and what each is charged (root)
	@scripts/demo-services

check: lint unit ## before a push: formatting, lints, the tests that need no root

lint:
	@scripts/setup build
	@scripts/lint

unit:
	@scripts/test unit

test: ## the tests of every push; the last line is the sum (root: also the live tests and attacks)
	@scripts/setup build
	@[ "$$(id -u)" != 0 ] || scripts/setup test vm
	@scripts/test

test-all: ## before a release or a change of the kernel side: all but benchmarks, VMs complete
	@scripts/setup build test vm
	@PROPTEST_CASES=500 scripts/test unit live attacks vm-all

vm: ## every test that can run in a VM, inside two stock Debian kernels, in QEMU
	@scripts/setup build vm
	@scripts/vm -a

fuzz: ## let libFuzzer look for two minutes for what breaks the language of plugins (root: in the kernel too)
	@scripts/setup build fuzz
	@scripts/fuzz

bench: build ## measure what the gate costs on this machine, and the lab itself (root)
	@scripts/setup bench
	@scripts/bench

fresh: ## demo and tests in a new Debian 12 without anything of this machine's (root)
	@scripts/setup fresh
	@scripts/fresh

install: ## install below PREFIX, by default /usr/local; DESTDIR is honoured
	@scripts/install "$(DESTDIR)" "$(PREFIX)"

uninstall: ## remove what install put there
	@scripts/install -r "$(DESTDIR)" "$(PREFIX)"

deb: build ## make a Debian package in target/
	@scripts/deb

clean: ## remove what was built and fetched
	cargo clean
	rm -rf vm/cache
