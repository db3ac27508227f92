# Everything a person does with this tree. `make help` explains each target; .ci/run calls `make test`.

SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
# Last, so that a newer kubectl of the machine comes first.
export PATH := $(PATH):$(CURDIR)/.tools/bin
# Bytecode is kept, whatever the shell says: without it every process of every platform compiles all it imports,
# and every run of the tests rewrites all of them.
unexport PYTHONDONTWRITEBYTECODE

# `make test WORKERS=4 PLATFORMS=4` on a larger machine. Platforms that mostly wait are more than there are processors.
WORKERS ?= 2
# Of the tests that start no platforms some wait, too.
BUSY ?= $(shell expr $(WORKERS) + 1)
PLATFORMS ?= 3
SEED ?=
SEEDS ?= 20
HOURS ?=
BENCH ?=
STAGE ?=
ARGS ?=

.PHONY: help
help: ## Explain the targets (what a plain `make` does)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: ## Make .venv with the `holdfast` command, from hashed locks; quick the second time
	@scripts/install

.PHONY: install-dev
install-dev: ## The same, with everything tests and checks need
	@scripts/install --dev

.PHONY: tools
tools: ## Fetch the programs tests drive (kubectl, promtool) into .tools/
	@scripts/install-tools

.PHONY: up
up: install ## Start a platform on this machine: make up ARGS="--detach --port-base 9400"
	@$(PY) -m holdfast.cli up $(ARGS)

.PHONY: down
down: install ## Stop it, and everything it runs: make down ARGS="--state DIR"
	@$(PY) -m holdfast.cli down $(ARGS)

# Side by side, as neither rests on the other.
.PHONY: check
check: install-dev ## Format, lint, types, import layers, tidiness and fast tests; under a minute
	@$(MAKE) --no-print-directory --jobs 3 --keep-going fast $(LINT)

# In a tree that is new everything is compiled once before, or each worker would do it.
.PHONY: fast
fast: install-dev ## The tests of `make check`: those that are neither slow nor start platforms
	@test -d tests/__pycache__ || $(PY) -m pytest -q --collect-only >/dev/null
	@$(PY) -m pytest -q -n $(BUSY) --dist worksteal -m "not slow and not e2e" $(ARGS)

.PHONY: lint
lint: install-dev ## The checks that run nothing: ruff, mypy, import layers
	@$(MAKE) --no-print-directory --jobs 2 --keep-going $(LINT)

LINT := types format style layers

.PHONY: types
types: install-dev ## mypy, strict
	@$(PY) -m mypy

.PHONY: format
format: install-dev ## Is everything formatted? (`ruff format .` does it)
	@$(PY) -m ruff format --check .

.PHONY: style
style: install-dev ## ruff
	@$(PY) -m ruff check .

.PHONY: layers
layers: install-dev ## Do imports point down?
	@.venv/bin/lint-imports

# Tests that start platforms and measure time have the machine to themselves; those that mostly wait share it.
.PHONY: test
test: install-dev tools lint ## Everything CI runs
	$(PY) -m pytest -q -n $(BUSY) --dist worksteal -m "not e2e" $(ARGS)
	$(PY) -m pytest -q -n $(PLATFORMS) --dist loadfile -m "e2e and waits" $(ARGS)
	$(PY) -m pytest -q -m "e2e and not waits" $(ARGS)

.PHONY: bench
bench: install-dev ## Measure: all, or one with BENCH=name
	$(PY) -m bench $(BENCH) $(ARGS)

.PHONY: sim
sim: install-dev ## Run simulated worlds: SEED=7 for one and its story, SEEDS=200 for many, HOURS=8 through a night
	$(PY) -m holdfast.sim $(if $(SEED),--seed $(SEED),$(if $(HOURS),--hours $(HOURS),--seeds $(SEEDS))) --workers $(WORKERS) $(ARGS)

.PHONY: prove
prove: install-dev tools ## Every longer demonstration: all, or some with STAGE=drills,kills; STAGE=list names them
	@$(PY) scripts/prove.py $(STAGE) --workers $(WORKERS)

.PHONY: docs
docs: install-dev ## Write the generated pages: reasons, metrics, command line, lifecycle
	$(PY) scripts/generate_docs.py

.PHONY: lock
lock: install-dev ## Write requirements/*.txt anew from pyproject.toml; hashes, no registry named
	@scripts/lock

.PHONY: clean
clean: ## Remove everything that was made here, except a platform's state
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis .import_linter_cache .prove dist build bench/out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
