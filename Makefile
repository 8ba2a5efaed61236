# `make` alone lists the targets. Set-up happens by itself, once.

PYTHON ?= python3
VENV ?= .venv
VENV_AIRFLOW ?= .venv-airflow
VENV_AIRFLOW_NEXT ?= .venv-airflow-next
VENV_LANCEDB ?= .venv-lancedb
VENV_NEXT ?= .venv-next
PYTEST_ARGS ?=
# One more than there are processors: tests wait for servers and processes.
TEST_PROCESSES ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 1)))
CHECK_PROCESSES ?= 3

BIN := $(VENV)/bin
READY := $(VENV)/.ready
AIRFLOW_BIN := $(VENV_AIRFLOW)/bin
AIRFLOW_READY := $(VENV_AIRFLOW)/.ready
PYTEST := $(BIN)/pytest
SIMULATION := $(BIN)/python -m tests.simulation
PARALLEL = -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
FAST := -m "not integration and not e2e and not nightly"
# Nobody runs all of the benchmark every day: at least what it calls has to be there.
BENCH_TYPES := --implicit-reexport --follow-imports silent \
	--disable-error-code misc --disable-error-code no-untyped-call
AIRFLOW_CODE := airflow_plugins/memwal_airflow dags scripts/local_airflow scripts/airflow_demo.py

export VENV VENV_AIRFLOW VENV_AIRFLOW_NEXT VENV_LANCEDB VENV_NEXT
# Tests start hundreds of processes, which would compile everything again where this is set.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo airflow test test-airflow test-airflow-next test-next test-ceph test-fast test-changed test-nightly check format proto pin bench bench-quick conformance simulation torture mutation fuzz \
	model chromium spin prometheus azurite lancedb reference docs docs-serve dist clean distclean

help: ## List the targets
	@echo "Usage: make TARGET [PYTHON=python3] [VENV=.venv] [PYTEST_ARGS='-k name']"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' Makefile

setup: ## Make .venv (memwal, Spark, Java) and .venv-airflow; the other targets do what they need
	@$(MAKE) -s --no-print-directory -j2 $(READY) $(AIRFLOW_READY)

reference: $(READY) ## Write what of docs/ is made out of the code: reference, notes, pictures
	@$(BIN)/python scripts/reference.py
	@$(BIN)/python scripts/guarantees.py
	@$(BIN)/python scripts/diagrams.py

docs: $(READY) ## Build the site into site/; a dead link or a page that nothing leads to fails
	@$(BIN)/zensical build --strict

docs-serve: $(READY) ## Show the site on http://127.0.0.1:8000 while its pages change
	@$(BIN)/zensical serve --dev-addr 127.0.0.1:8000

demo: $(READY) ## Make a real table, run every job on it, show before and after
	@$(BIN)/memwal demo

airflow: ## Start an Airflow on this machine, with our DAGs and page and tables under writes
	@$(MAKE) -s --no-print-directory -j2 $(READY) $(AIRFLOW_READY)
	@exec $(AIRFLOW_BIN)/python scripts/airflow_demo.py $(AIRFLOW_ARGS)

# Files stay whole: their tests share servers, and one Airflow's suite is one test of this one.
test: ## Run the tests: unit, integration, a smoke of the whole; ten minutes
	@$(MAKE) -s --no-print-directory -j3 compiled chromium $(AIRFLOW_READY)
	@$(PYTEST) $(PARALLEL) -m "not nightly" $(PYTEST_ARGS)

# In a fresh clone each test process would compile all of it for itself.
.PHONY: compiled
compiled: $(READY)
	@[ -d .pytest_cache ] || { $(PYTEST) --collect-only -q tests/jobs & $(PYTEST) --collect-only -q --ignore tests/jobs; wait; } >/dev/null

test-nightly: $(READY) $(AIRFLOW_READY) chromium spin prometheus azurite lancedb ## All tests, with every seed, race and kill (PART=1/3: a third)
	@MEMWAL_TEST_FULL=1 $(PYTEST) $(PARALLEL) $(if $(PART),--part $(PART)) \
		--record-durations=$(CURDIR)/tests/durations.json $(PYTEST_ARGS)

test-airflow: $(AIRFLOW_READY) chromium ## Run all tests of DAGs, provider and page
	@$(AIRFLOW_BIN)/python -m pytest tests/airflow $(PYTEST_ARGS)

# Only the release that is pinned decides: no other target runs this one.
test-airflow-next: $(READY) chromium ## The same on Airflow's newest pre-release, if there is one to be had
	@code=0; PYTHON="$(PYTHON)" bash scripts/setup_airflow_next.sh || code=$$?; case $$code in \
		0) $(VENV_AIRFLOW_NEXT)/bin/pytest tests/airflow $(PYTEST_ARGS) ;; 3) ;; *) exit $$code ;; esac

# No other target runs this one, either: what is not released may change again.
test-next: $(READY) lancedb ## What touches Lance, on the newest pylance, LanceDB and lance-context; shows what is different
	@PYTHON="$(PYTHON)" bash scripts/setup_next.sh
	@$(BIN)/python scripts/test_next.py $(PYTEST_ARGS)

test-ceph: $(READY) ## Run the tests of S3 and of a merge on Ceph's gateway (Debian's packages)
	@bash scripts/ceph.sh
	@MEMWAL_TEST_CEPH=1 $(PYTEST) -q -k s3 tests/store/test_objects.py tests/store/test_clouds.py \
		tests/jobs/merge/test_merge.py $(PYTEST_ARGS)

test-changed: $(READY) $(AIRFLOW_READY) ## Three minutes of what a change can reach: what is not committed, else what main lacks (BASE=, MINUTES=N)
	@VENV_AIRFLOW=$(VENV_AIRFLOW) $(BIN)/python scripts/changed_tests.py \
		$(if $(BASE),--base $(BASE)) --minutes $(or $(MINUTES),3) --processes $(TEST_PROCESSES) $(PYTEST_ARGS)

test-fast: $(READY) ## Run the unit tests
	@$(PYTEST) -q $(FAST) $(PYTEST_ARGS)

CHECKS := check-ruff check-format check-mypy check-mypy-airflow check-mypy-bench check-size check-tests
# The unit tests that are about a second each, and fast to collect. All of them: make test-fast.
QUICK := $(addprefix tests/,architecture cli conformance format monitoring mutation provider release) \
	$(wildcard tests/test_*.py)
.PHONY: $(CHECKS)

check: $(READY) $(AIRFLOW_READY) ## Lint, formatting, types, import contract, sizes, quick unit tests; a minute
	@$(MAKE) -k -s --no-print-directory -j$(CHECK_PROCESSES) --output-sync=target $(CHECKS)

check-ruff:
	$(call step,ruff check,$(BIN)/ruff check .)
check-format:
	$(call step,ruff format,$(BIN)/ruff format --check .)
check-mypy:
	$(call step,mypy,$(BIN)/mypy)
# Airflow's environment lacks what jobs need; their types are checked above.
check-mypy-airflow:
	$(call step,mypy airflow,$(BIN)/mypy --python-executable $(AIRFLOW_BIN)/python \
		--follow-imports silent --cache-dir .mypy_cache/airflow $(AIRFLOW_CODE))
check-mypy-bench:
	$(call step,mypy bench,$(BIN)/mypy --cache-dir .mypy_cache/bench \
		$(BENCH_TYPES) bench)
# No limits, but numbers to look at.
check-size:
	@$(BIN)/python scripts/count_lines.py
check-tests:
	@$(PYTEST) -q $(FAST) $(QUICK) $(PYTEST_ARGS)

format: $(READY) ## Format the code and apply the safe lint fixes
	@$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format -q .

dist: $(READY) ## Build what is released into dist/, twice; try it on the oldest and newest Python and versions
	@$(BIN)/python -m scripts.dist $(DIST_ARGS)

proto: $(READY) ## Regenerate memwal/format/_generated from proto/memwal.proto
	@$(BIN)/python scripts/generate_proto.py

pin: ## Renew constraints.txt, constraints-airflow.txt and constraints-lancedb.txt from what is resolved today
	@PYTHON="$(PYTHON)" bash scripts/pin.sh

bench: $(READY) ## Measure everything side by side (BENCH_ARGS='merge read' for some cases)
	@$(BIN)/python -m bench.run $(BENCH_ARGS)

bench-quick: $(READY) ## The same on smaller tables, in less than five minutes
	@$(BIN)/python -m bench.run --quick $(BENCH_ARGS)

conformance: $(READY) ## The documents' sentences, the tests that hold them, what pylance 14 does otherwise
	@$(BIN)/python scripts/conformance.py $(CONFORMANCE_ARGS)

simulation: $(READY) ## 10,000 seeds of the day of writers, jobs and readers under faults (SEEDS=N); a report
	@$(SIMULATION).simulate --first $$(date +%y%m%d0000) --seeds $(or $(SEEDS),10000) --report simulation-report.json

torture: $(READY) ## Ten minutes of real writers, jobs, kills, backups, Lance's own commands, and damages (MINUTES=N)
	@$(BIN)/python -m tests.torture --seconds $$(($(or $(MINUTES),10) * 60)) $(TORTURE_ARGS)

mutation: $(READY) ## Switch each safety check off in turn; the tests or the simulation have to notice
	@$(BIN)/python -m tests.mutation --seeds $(or $(SEEDS),1000) --table mutation-results.json

# About thirty parsers, one after the other.
fuzz: $(READY) ## Ten minutes of damaged and forged bytes for every parser (MINUTES=N)
	@MEMWAL_FUZZ_SECONDS=$$(($(or $(MINUTES),10) * 2)) $(PYTEST) -q tests/fuzz $(PYTEST_ARGS)

model: $(READY) ## Check the formal models of fencing, merging and the lease (needs spin and gcc)
	@spin=$$(bash scripts/spin.sh) && SPIN=$$spin $(BIN)/python -m tests.model.check

# The tests that need them say so when one is missing, so its absence stops nothing here.
chromium:
	@bash scripts/chromium.sh >/dev/null || true

spin:
	@bash scripts/spin.sh >/dev/null || true

prometheus: $(READY)
	@bash scripts/prometheus.sh >/dev/null || true

azurite: $(READY)
	@bash scripts/azurite.sh >/dev/null || true

lancedb:
	@[ $(VENV_LANCEDB)/.ready -nt constraints-lancedb.txt ] || \
		PYTHON="$(PYTHON)" bash scripts/setup_lancedb.sh $(if $(filter lancedb,$(MAKECMDGOALS)),,>/dev/null || true)

clean: ## Remove caches and build leftovers; keeps the environments
	@rm -rf build dist site spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache \
		.hypothesis .import_linter_cache tests/airflow/.pytest_cache
	@find . -path ./$(VENV) -prune -o -path ./$(VENV_AIRFLOW) -prune -o \
		-path ./$(VENV_AIRFLOW_NEXT) -prune -o -path ./$(VENV_LANCEDB) -prune -o \
		-path ./$(VENV_NEXT) -prune -o \
		-name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## Remove the environments and what `make airflow` left as well
	@for venv in $(VENV) $(VENV_AIRFLOW) $(VENV_AIRFLOW_NEXT) $(VENV_LANCEDB) $(VENV_NEXT); do [ ! -e $$venv/pyvenv.cfg ] || rm -rf $$venv; done
	@[ ! -e .airflow-demo/.made-by-memwal ] || rm -rf .airflow-demo

SETUP := pyproject.toml scripts/lib.sh scripts/venv.sh

$(READY): $(SETUP) constraints.txt scripts/setup.sh scripts/java.sh
	@PYTHON="$(PYTHON)" bash scripts/setup.sh

$(AIRFLOW_READY): $(SETUP) airflow_plugins/pyproject.toml constraints-airflow.txt \
		scripts/setup_airflow.sh
	@PYTHON="$(PYTHON)" bash scripts/setup_airflow.sh

# A checkout that was moved or copied takes an environment along that still runs the old one.
ifneq ($(shell cat $(READY) 2>/dev/null),$(realpath $(VENV)))
.PHONY: $(READY)
endif
ifneq ($(shell cat $(AIRFLOW_READY) 2>/dev/null),$(realpath $(VENV_AIRFLOW)))
.PHONY: $(AIRFLOW_READY)
endif

# $(call step,NAME,COMMAND): one line when it is well, all of its output when it is not.
define step
@printf '%-14s' '$(1)'; if out=$$($(2) 2>&1); then echo ok; else echo FAILED; printf '%s\n' "$$out"; exit 1; fi
endef
