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
BENCHMARKS := $(sort $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)))

.PHONY: help install chromium demo test bench lint clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) chromium  ## make .venv with tracekit and all that its tests need, versions as in constraints.txt

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

chromium:
	@if command -v chromium chromium-browser google-chrome >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing chromium by apt for the browser tests"; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } >/dev/null || \
		echo "chromium could not be installed: the browser tests will be skipped, all else works" >&2; \
	else echo "no chromium here: the browser tests will be skipped; install it by your package manager" >&2; fi

demo: $(INSTALLED)  ## record samples/lstm_lm.py, analyze the run, say where it is; about a minute
	$(BIN)/tracekit record --force -o $(DEMO_RUN) -- $(BIN)/python samples/lstm_lm.py
	$(BIN)/tracekit analyze $(DEMO_RUN)
	@test -s $(DEMO_RUN)/findings.json
	@echo "report: $(abspath $(DEMO_RUN))/findings.json"

test: install lint  ## lint, then unit, integration and browser tests
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadscope --no-loadscope-reorder

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
