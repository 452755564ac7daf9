# Two commands set everything up: `make demo` answers a prompt, `make test` runs the quick tests. Both build into .venv of this checkout.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2
PROMPT ?= Why is the sky blue?
FUZZ_MUTANTS ?= 5000
# What a build depends on; Python files are part of the wheel as well.
SOURCES := pyproject.toml CMakeLists.txt $(shell find src -type f \( -name '*.py' -o -name '*.cc' -o -name '*.h' -o -name '*.jinja' -o -name '*.csv' -o -name '*.typed' -o -path '*/page/*' \) | sort)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

.PHONY: help venv build demo test test-long lint oracle sanitize fuzz wheel clean

help:
	@echo "make demo      build, fetch $(MODEL), answer a prompt, print the closing report"
	echo "make test      build, run the quick tests"
	echo "make test-long everything, with real models and long runs"
	echo "make lint      ruff, mypy --strict, clang-format"
	echo "make oracle    tests against torch and transformers (in their own venv)"
	echo "make sanitize  kernels with address and undefined-behaviour sanitizers, and their native tests"
	echo "make fuzz      loaders against $(FUZZ_MUTANTS) broken files"
	echo "make wheel     dist/*.whl"

$(BIN)/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}"'
	$(PYTHON) -m venv $(VENV)

venv: $(BIN)/python

# One stamp per set of extras, so that a plain demo installs no test tools.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

$(VENV)/.built: $(BIN)/python $(SOURCES)
	$(PIP) .
	touch $@

$(VENV)/.built-test: $(BIN)/python $(SOURCES)
	$(PIP) ".[test,client]"
	touch $(VENV)/.built $@

$(VENV)/.built-lint: $(BIN)/python pyproject.toml
	$(PIP) ".[lint,test,client]"
	touch $@

build: $(VENV)/.built

demo: $(VENV)/.built
	$(BIN)/ridgeline pull $(MODEL)
	$(BIN)/ridgeline run $(MODEL) "$(PROMPT)" --max-tokens 128

test: $(VENV)/.built-test
	$(BIN)/python -m pytest -m "not oracle and not long" tests

test-long: $(VENV)/.built-test
	$(BIN)/ridgeline pull smollm2
	$(BIN)/ridgeline pull gemma3-270m
	$(BIN)/python -m pytest -m "not oracle" tests

lint: $(VENV)/.built-lint
	$(BIN)/ruff check src tests
	$(BIN)/mypy
	find src -name '*.cc' -o -name '*.h' | sort | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/python -m pytest tests/contracts

ORACLE := build/oracle-venv
$(ORACLE)/.built: $(SOURCES)
	test -x $(ORACLE)/bin/python || $(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check ".[test,oracle]"
	touch $@

oracle: $(ORACLE)/.built
	$(ORACLE)/bin/python -m pytest -m "oracle and not long" tests

sanitize: $(BIN)/python
	cmake -S . -B build/sanitize -DRIDGELINE_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo -DRIDGELINE_NATIVE_TESTS=ON
	cmake --build build/sanitize --parallel $(CMAKE_BUILD_PARALLEL_LEVEL)
	ctest --test-dir build/sanitize --output-on-failure

fuzz: $(VENV)/.built-test
	$(BIN)/python tests/fuzz/fuzz_loaders.py --mutants $(FUZZ_MUTANTS)

wheel: $(BIN)/python
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	ls -l dist

clean:
	rm -rf build dist
