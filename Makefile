# Each target makes .venv where it is missing and installs what it needs, and nothing twice: a stamp
# per extra is renewed only when pyproject.toml or constraints.txt changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Two test processes on two cores: one thread each.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MPLBACKEND ?= Agg

PYTEST_ARGS ?=
BENCH_ARGS ?=

.PHONY: help install demo test check docs bench reproduction clean
.DEFAULT_GOAL := help
.NOTPARALLEL:

help: ## Say what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1	/' | expand -t 18

install: $(VENV)/.stamp-dev ## Make .venv with everything for development

demo: $(VENV)/.stamp ## Train a small network on digits, analyse it, write a report
	$(BIN)/eigenscape demo --no-open

test: $(VENV)/.stamp-dev ## Run the tests on two processes (PYTEST_ARGS="--slow" for all)
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

check: $(VENV)/.stamp-dev ## Format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/.stamp-docs ## Build the documentation into site/; a warning is an error
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.stamp-bench ## Compare with other libraries (BENCH_ARGS="...")
	$(BIN)/python benchmarks/bench.py $(BENCH_ARGS)

reproduction: $(VENV)/.stamp-dev ## Write docs/papers from the records in papers/results
	$(BIN)/eigenscape claims --page docs/papers

clean: ## Remove what the other targets made, but for .venv
	rm -rf site runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "eigenscape needs Python 3.11 or later; try: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e ".[all]"
	@touch $@

$(VENV)/.stamp-%: pyproject.toml papers/pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e ".[all,$*]" -e papers
	@touch $@
