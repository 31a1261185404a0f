# Everything works on a fresh clone with nothing but Python >= 3.11 and make.
#
#   make demo     a real training step in two fresh processes, cold and warm
#   make test     lint, types and the whole suite
#   make coverage the suite, with the lines and branches that no test runs
#   make soak     the long kill, fault and race runs; `make soak SOAK_TURN=today` those whose day it is, a tenth of them
#   make bench    every benchmark beside its peer
#   make docs     the site, in build/site
#   make lock     pin the dependencies anew for the Python in use

PYTHON ?= python3
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS := $(wildcard constraints/py$(VERSION).txt)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
# One more than the processors of a small machine: many tests wait for another process.
WORKERS ?= 3
# Files in the order of tests/conftest.py: those that take longest begin.
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Which tests: `make test SELECT='not soak and not one_python'` leaves out what does not depend on the version of Python.
SELECT ?= not soak
# In which order: the number of a random one, or none for that of tests/conftest.py.
SHUFFLE ?=
# Which long tests: all, `today`, or a turn from 0 to 9; and after how many seconds none begins any more.
SOAK_TURN ?=
SOAK_SECONDS ?=

.PHONY: demo test lint types pytest coverage soak bench docs lock clean

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml $(CONSTRAINTS)
	$(PIP) -e .
	touch $@

$(VENV)/.test: $(VENV)/.made pyproject.toml $(CONSTRAINTS)
	$(PIP) -e '.[test]'
	touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	rm -rf build/demo
	XDG_CACHE_HOME=$(CURDIR)/build/demo/home $(BIN)/ejcache run --dir build/demo/cache examples/training_step.py
	XDG_CACHE_HOME=$(CURDIR)/build/demo/home $(BIN)/ejcache run --dir build/demo/cache examples/training_step.py

# The types take one processor for ten seconds or more, so the tests begin beside them.
test: lint
	$(MAKE) --no-print-directory -j 2 types pytest

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

pytest: $(VENV)/.test
	$(BIN)/python -m pytest $(SPREAD) $(addprefix --shuffle=,$(SHUFFLE)) -m '$(SELECT)'

coverage: $(VENV)/.test
	$(BIN)/python -m pytest $(SPREAD) -m '$(SELECT)' --cov --cov-report term-missing:skip-covered

soak: $(VENV)/.test
	SOAK_TURN=$(SOAK_TURN) SOAK_SECONDS=$(SOAK_SECONDS) HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -m soak -n 0 --timeout 3600

bench: $(VENV)/.test
	$(BIN)/python -m bench

$(VENV)/.docs: $(VENV)/.made pyproject.toml $(CONSTRAINTS)
	$(PIP) "pip>=25.1"  # knows dependency groups
	$(PIP) -e . --group docs
	touch $@

docs: $(VENV)/.docs
	$(BIN)/python tools/build_site.py build/docs
	$(BIN)/mkdocs build --strict
	$(BIN)/towncrier build --draft --version next

lock: $(VENV)/.made
	tools/lock.sh $(PYTHON)

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache
