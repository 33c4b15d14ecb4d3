# `make help` lists what can be asked for.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
PIP_ARGS ?=
DEMO_RUN ?= tracekit-runs/demo
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TOOLS := stress-ng fio iperf3
TESTS = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $$(( $$(nproc) < 4 ? $$(nproc) : 4 )) --dist loadscope \
	--no-loadscope-reorder
BENCHMARKS := $(sort $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)))

.PHONY: help install packages demo test test-long compiled bench lint clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) packages  ## make .venv with tracekit and all that its tests need, versions as in constraints.txt

# A Debian without python3-venv makes no environment with a pip of its own; its pip then works on the empty one.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tracekit needs Python 3.11 or newer; choose it: make install PYTHON=/path/to/python3.11" >&2; exit 1; }
	@if [ ! -x $(BIN)/python ]; then \
		$(PYTHON) -c 'import ensurepip' 2>/dev/null && $(PYTHON) -m venv $(VENV) || \
		{ $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }; \
	fi
	@echo "installing tracekit and its dependencies into $(VENV): some minutes the first time"
	@$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $@

# A browser, and the tools that --backend knows: for tests alone.
packages:
	@command -v chromium chromium-browser google-chrome >/dev/null && missing="" || missing=" chromium"; \
	for tool in $(TOOLS); do command -v $$tool >/dev/null || missing+=" $$tool"; done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing$$missing by apt for the tests"; \
		apt-get update -qq || :; \
		for package in $$missing; do \
			DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$package >/dev/null || \
			echo "$$package could not be installed: tests that need it will be skipped, all else works" >&2; \
		done; \
	else echo "not here:$$missing; tests that need them will be skipped; install them by your package manager" >&2; fi

demo: $(INSTALLED)  ## record samples/lstm_lm.py, analyze the run, say where it is; a minute or two
	$(BIN)/tracekit record --force -o $(DEMO_RUN) -- $(BIN)/python samples/lstm_lm.py
	$(BIN)/tracekit analyze $(DEMO_RUN)
	@test -s $(DEMO_RUN)/findings.json
	@echo "report: $(abspath $(DEMO_RUN))/findings.json"

test: compiled  ## lint, then unit, integration and browser tests
	$(TESTS) -m "not long"

test-long: compiled  ## the same, and tests that measure for long
	$(TESTS)

# The processes that tests start are many: each would compile tracekit anew where Python may not keep what it compiles.
compiled: install lint
	@$(BIN)/python -m compileall -q tracekit collectors dashboards samples tests/*.py

bench: $(INSTALLED)  ## every figure that the README claims, measured here; prints JSON
	@for benchmark in $(BENCHMARKS); do echo "== $$benchmark" >&2; $(BIN)/python $$benchmark --json; done

# mypy and import-linter do not follow the import hook of an editable install, so they get the package laid out as a
# wheel would: links to the files, with collectors/ and dashboards/ in their place.
lint: $(INSTALLED)  ## ruff, mypy and the contracts between the packages
	@rm -rf build/lint && mkdir -p build/lint
	@cp -rs "$(CURDIR)/tracekit" build/lint/tracekit && cp -rs "$(CURDIR)/collectors" "$(CURDIR)/dashboards" build/lint/tracekit/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy build/lint/tracekit samples $(wildcard benchmarks) tests
	cd build/lint && ../../$(BIN)/lint-imports --no-cache --no-logo --config ../../pyproject.toml

clean:  ## remove what was built, the environment and the demo's run
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis $(DEMO_RUN)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
