# `make plan` and `make test` are all a fresh machine with Python 3.11+ and make needs.
PYTHON ?= python3
VENV ?= .venv
# Processes that run the tests: two more than there are cores, since many tests wait for servers.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 2)')
# The tests start hundreds of processes; without kept bytecode each would compile the library anew.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
SCENARIO ?= core-slo

.PHONY: help plan links test suite test-wheel test-slow test-full mutants test-torch test-vllm lint types docs notebooks library screenshots benchmark-throughput clean

help:
	@echo "make plan        set up, then plan the built-in scenario SCENARIO ($(SCENARIO)) into plan.json and plan.html"
	@echo "make test        set up, then lint, check types and run the tests"
	@echo "make test-slow   the long property tests"
	@echo "make test-full   all tests, ten times as many examples of every property"
	@echo "make test-torch  the reference engine and profiles with torch; TORCH_PYTHON=PATH names an interpreter that has it"
	@echo "make test-vllm   set up vLLM's CPU build, then the runtime with real servers: 20 minutes; VLLM=PATH for a program of yours"
	@echo "make test-wheel  build the wheel, check it, try it away from here under PYTHONS (and EXTRAS): minutes, needs a package index"
	@echo "make mutants     put deliberate errors into PACKAGE, one at a time, and say which the tests do not see"
	@echo "make docs        the documentation site into build/docs; warnings are errors"
	@echo "make links       ask every address that the documents name whether it is there; needs the internet"
	@echo "make notebooks   run the notebooks of the documents and keep what they show"
	@echo "make library     the instances of the solver benchmark as a release file, dist/coralopt-library.tar.gz: a quarter of an hour"
	@echo "make screenshots pictures of the pages for the documents, with the Chromium on the path"
	@echo "make clean       remove the virtual environment and caches"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"coralopt needs Python 3.11 or newer, {sys.executable} is {v.major}.{v.minor}; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.installed

plan: $(VENV)/.installed
	$(BIN)/coralopt plan $(SCENARIO) -o plan.json --pipelines --page plan.html

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# The check of types runs beside the tests: it has one process, and the tests wait for servers now and then.
test: lint
	$(MAKE) --no-print-directory -j2 types suite

suite: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow"

# vLLM's CPU build gets an environment of its own, 3.5 GB; VLLM names the program of another one, see docs/runtime-tests.md.
VLLM_VENV ?= .venv-vllm
VLLM ?=
test-vllm: $(VENV)/.installed-dev
	@test -n "$(VLLM)" || $(BIN)/python tests/vllm/make_environment.py $(VLLM_VENV)
	CORALOPT_VLLM=$(abspath $(or $(VLLM),$(VLLM_VENV)/bin/vllm)) $(BIN)/python -m pytest -q -s tests/vllm

# torch is large: TORCH_PYTHON names an interpreter that has it and transformers.
TORCH_PYTHON ?= $(BIN)/python
test-torch: $(VENV)/.installed-dev
	CORALOPT_TORCH_PYTHON=$(TORCH_PYTHON) $(BIN)/python -m pytest -q tests/reference tests/profiling

# The distributions as users get them: make test-wheel PYTHONS="python3.11 python3.12 python3.13" EXTRAS="scip runtime"
PYTHONS ?= $(PYTHON)
EXTRAS ?=
test-wheel:
	$(PYTHON) tests/try_wheel.py $(PYTHONS) $(if $(EXTRAS),--extras $(EXTRAS))

# Deliberate errors by package, and which of them the tests do not see: make mutants PACKAGE="solving plan" SAMPLE=20
PACKAGE ?= solving
SAMPLE ?= 20
SEED ?= 0
mutants: $(VENV)/.installed-dev
	$(BIN)/python tests/mutants.py $(PACKAGE) --sample $(SAMPLE) --seed $(SEED)

# Ten times as many examples of every property: an hour or two.
test-full: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --hypothesis-profile=full

docs: $(VENV)/.installed-dev
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "open build/docs/index.html"

links: $(VENV)/.installed-dev
	$(BIN)/python -m sphinx -q -b linkcheck docs build/links

notebooks: $(VENV)/.installed-dev
	$(BIN)/python tests/docs/notebooks.py

# 296 models with their best known solutions; benchmarks/results/library.csv has the digests of those that were released.
library: $(VENV)/.installed
	mkdir -p dist
	$(BIN)/coralopt bench library build/library --time-limit 5 --archive dist/coralopt-library.tar.gz

# Pictures of the pages for the documents.
screenshots: $(VENV)/.installed-dev
	$(BIN)/python tests/report/screenshots.py

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -m slow

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
