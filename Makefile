# One door for users and for continuous integration. Everything lands in .venv.
#   make demo    a job on real data, checked        make setup   only the environment
#   make test    every check and every test         make lint    ruff, mypy, imports, spelling
#   make check   lint, unit, architecture tests     make lock    new requirements/*.lock
#   make core    only the compiled core             make docs    the documentation, strictly
#   make bench   beside other brokers (BENCH=...)   make deep    the long searches
#   make coverage  all tests, with branch coverage
#   make compat  the conformance suite, with real Java clients and brokers
#   make flights    a year of flights, by Spark     make ecommerce  a shop that fails
#   make data-sync  PostgreSQL to PostgreSQL and Delta, by Spark
#   make pythons    the client's tests on this machine's other Pythons, and on Debian's 3.14
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
# Remembers that the compiled core was built, or could not be.
CORE := $(VENV)/.core-tried
CORE_SOURCES := scripts/build_core.py $(wildcard $(addprefix src/cometmq/speedups/compiled/,*.pyx *.pxd))

.PHONY: help setup core demo flights ecommerce data-sync test coverage check compat lint docs lock bench wheels sanitize pythons deep clean
.DEFAULT_GOAL := help

help:
	@sed -n '2,11s/^# *//p' Makefile

setup: $(STAMP) core

core: $(STAMP)
	-@$(BIN)/python scripts/build_core.py --fetch
	@touch $(CORE)

$(CORE): $(STAMP) $(CORE_SOURCES)
	-@$(BIN)/python scripts/build_core.py --fetch
	@touch $@

$(STAMP): pyproject.toml requirements/all.lock requirements/bootstrap.lock requirements/build.lock scripts/setup.sh
	@scripts/setup.sh
	@touch $@

demo: $(CORE)
	@$(BIN)/python -m examples.demo $(DEMO)

flights: $(CORE)
	@$(BIN)/python -m examples.flights $(FLIGHTS)

ecommerce: $(CORE)
	@$(BIN)/python -m examples.ecommerce

data-sync: $(CORE)
	@$(BIN)/python -m examples.datasync

test: $(CORE)
	@$(BIN)/python scripts/test_report.py

# The same with branch coverage, which has to reach its limit.
coverage: $(CORE)
	@$(BIN)/python scripts/test_report.py --coverage

check: lint
	@$(BIN)/pytest -n 2 -q -m "not deep and not store and not cluster and not compat and not spark and not operation"

compat: $(CORE)
	@$(BIN)/python scripts/test_report.py --part compat

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell

docs: $(STAMP)
	$(BIN)/zensical build --strict

lock: $(STAMP)
	@scripts/lock.sh

bench: $(CORE)
	@$(BIN)/python -m benchmarks.compare $(BENCH)

# What is published, into dist.
wheels: $(STAMP)
	@$(BIN)/python -m scripts.wheels

# The compiled core's tests, watched by the address and undefined-behaviour sanitizers.
sanitize: $(CORE)
	@$(BIN)/python -m scripts.sanitize

pythons: $(CORE)
	@scripts/pythons.sh

deep: $(CORE)
	HYPOTHESIS_PROFILE=deep $(BIN)/pytest -n auto -m "not compat and not spark and not operation"
	$(BIN)/pytest -m "(compat or spark or operation) and deep"
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m scripts.sanitize
	mkdir -p build
	$(BIN)/python -m tests.operation.kills 500 --state build/kills.txt
	$(BIN)/python -m tests.spark.killing 25 --state build/spark-kills.txt
	$(BIN)/python -m tests.cluster.long_pairs 1000000 --kills 12
	$(BIN)/python -m tests.simulation 0:20000 --state build/sim.txt
	$(BIN)/python -m tests.simulation.store 0:100000 --state build/lives.txt
	$(BIN)/python -m tests.hostile.fuzz core --seconds 200 --corpus build/fuzz-core
	$(BIN)/python -m tests.hostile.fuzz handlers --seconds 300 --corpus build/fuzz-handlers
	$(BIN)/python -m tests.hostile.fuzz queues --seconds 100 --corpus build/fuzz-queues
	$(BIN)/python -m tests.hostile.flood 1000000
	$(BIN)/python -m tests.hostile.guarded 1000000 --state build/guarded.txt

clean:
	rm -f $(CORE) src/cometmq/speedups/compiled/*.so
	rm -rf build site .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage .coverage.*
