# The commands of the project. Each is a few lines here, or a script in scripts/ that begins with a
# description.

BIN    = $(or $(CARGO_TARGET_DIR),target)/x86_64-unknown-linux-gnu/release
PREFIX = /usr/local

.PHONY: help setup build demo demo-services demands check lint unit test test-all vm fuzz bench fresh install uninstall deb clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 22

setup: ## install what is missing, from Debian's packages
	@scripts/setup

build: ## build the one static binary, and the library for other programs
	@scripts/setup build
	cargo build --release
	@scripts/library
	@echo "The binary: $(BIN)/tollgate"

demo: build ## a Redis server through the gate, then three attacks on guarded servers (root)
	@scripts/setup build demo
	@scripts/demo

demo-services: build ## two tenants share nginx, Apache, PHP and PostgreSQL; what each is charged (root)
	@scripts/demo-services

check: lint unit ## before a push: formatting, lints and the tests that need no root

lint:
	@scripts/setup build
	@scripts/lint

unit:
	@scripts/test unit

test: ## the tests for every push; the last line is the sum (root: also the live tests and attacks)
	@scripts/setup build
	@[ "$$(id -u)" != 0 ] || scripts/setup test vm
	@scripts/test

test-all: ## before a release or a change of the kernel side: all tests but benchmarks, also in the VMs
	@scripts/setup build test vm
	@PROPTEST_CASES=500 scripts/test unit live seam attacks vm-all

vm: ## every test that can run in a VM, in two stock Debian kernels in QEMU
	@scripts/setup build vm
	@scripts/vm -a

fuzz: ## fuzz the plugin compiler with libFuzzer for two minutes (root: also in the kernel)
	@scripts/setup build fuzz
	@scripts/fuzz

bench: build ## measure the cost of the gate on this machine, and test the lab (root)
	@scripts/setup bench
	@scripts/bench

demands: build ## record the tasks of four real programs, and compare the policies (root)
	@scripts/setup demands
	@scripts/demands target/demands

fresh: ## run demo and tests in a new, minimal Debian 12 (root)
	@scripts/setup fresh
	@scripts/fresh

install: ## install below PREFIX, by default /usr/local; DESTDIR is honoured
	@scripts/install "$(DESTDIR)" "$(PREFIX)"

uninstall: ## remove the installed files
	@scripts/install -r "$(DESTDIR)" "$(PREFIX)"

deb: build ## make a Debian package in target/
	@scripts/deb

clean: ## remove everything that was built or fetched
	cargo clean
	rm -rf vm/cache
