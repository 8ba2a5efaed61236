# `make` alone lists the targets. Set-up happens by itself, once.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=

BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/pytest
FAST := -m "not integration and not spark"

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast check format proto pin bench clean distclean

help: ## List the targets
	@echo "Usage: make TARGET [PYTHON=python3] [VENV=.venv] [PYTEST_ARGS='-k name']"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## Make .venv with everything in it, and Java; the other targets do this by themselves
	@:

demo: $(READY) ## Make a real table, run every job on it, show before and after
	@$(BIN)/memwal demo

test: $(READY) ## Run all tests
	@$(PYTEST) $(PYTEST_ARGS)

test-fast: $(READY) ## Run the tests that need no disk, server or JVM
	@$(PYTEST) -q $(FAST) $(PYTEST_ARGS)

check: $(READY) ## Lint, formatting, types, import contract, fast tests
	$(call step,ruff check,$(BIN)/ruff check .)
	$(call step,ruff format,$(BIN)/ruff format --check .)
	$(call step,mypy,$(BIN)/mypy)
	$(call step,lint-imports,$(BIN)/lint-imports)
	@$(PYTEST) -q $(FAST) $(PYTEST_ARGS)

format: $(READY) ## Format the code and apply the safe lint fixes
	@$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format -q .

proto: $(READY) ## Regenerate memwal/_generated from proto/memwal.proto
	@$(BIN)/python scripts/generate_proto.py

pin: ## Renew constraints.txt from what pyproject.toml resolves to today
	@PYTHON="$(PYTHON)" bash scripts/pin.sh

bench: $(READY) ## Scan join against index join, side by side (fits the merge planner's costs)
	@$(BIN)/python tests/bench/merge_join.py

clean: ## Remove caches and build leftovers; keeps .venv
	@rm -rf build dist spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache \
		.hypothesis .import_linter_cache
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## Remove .venv as well
	@[ ! -e $(VENV)/pyvenv.cfg ] || rm -rf $(VENV)

$(READY): pyproject.toml constraints.txt scripts/lib.sh scripts/setup.sh scripts/java.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash scripts/setup.sh

# A checkout that was moved or copied takes an environment along that still runs the old one.
ifneq ($(shell cat $(READY) 2>/dev/null),$(realpath $(VENV)))
.PHONY: $(READY)
endif

# $(call step,NAME,COMMAND): one line when it is well, all of its output when it is not.
define step
@printf '%-14s' '$(1)'; if out=$$($(2) 2>&1); then echo ok; else echo FAILED; printf '%s\n' "$$out"; exit 1; fi
endef
