# FedLens. `make` lists the targets; each makes .venv by itself where it needs it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
# CPU-only machines save a large download:  make run TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# One thread a process: the figures do not depend on the load, and two test processes share two cores in peace.
# Byte code is kept, whatever the shell says: the tests start some hundred processes.
TESTING := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
TEST_PROCESSES ?= 2
# Files go out in the order of their names: browsers and clusters, which take longest, come before the many short ones.
PYTEST := $(TESTING) $(PY) -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

FAULTS ?=
SLOW ?=

.PHONY: help run docs test tests lint layers types format unit browser slow faults release chromium embedded bench screenshots clean

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(PY):
	@for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	  if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "making $(VENV) with $$p"; \
	    "$$p" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; exit 0; fi; done; \
	echo "FedLens needs Python 3.11 or newer; none was found as python3" >&2; exit 1

# The stamps hold what was installed, so that a changed requirements file is installed again.
$(VENV)/.installed: requirements.txt pyproject.toml | $(PY)
	@if [ -n "$(TORCH_INDEX)" ]; then $(PIP) install torch torchvision --index-url $(TORCH_INDEX); fi
	$(PIP) install -e .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt requirements-tune.txt fedlens-ray/pyproject.toml $(VENV)/.installed
	$(PIP) install -r requirements-dev.txt -r requirements-tune.txt -e ./fedlens-ray
	@touch $@

run: $(VENV)/.installed ## the dashboard (makes .venv and installs at the first time)
	$(VENV)/bin/fedlens app

# Unit and browser tests in one go: while a browser test waits for the app, the other process works.
test: $(VENV)/.installed-dev chromium ## what must pass: lint, unit tests, browser tests
	@$(MAKE) --no-print-directory --jobs=2 lint tests
	@echo "lint is clean; $$(tail -n 1 $(VENV)/.tests | tr -d =)"

tests: $(VENV)/.installed-dev
	@set -o pipefail; $(PYTEST) -m "not slow" | tee $(VENV)/.tests

lint: $(VENV)/.installed-dev ## ruff (rules and format), imports between rooms, types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/mypy

layers: $(VENV)/.installed-dev ## which room may import which (pyproject.toml, tool.importlinter)
	$(VENV)/bin/lint-imports

types: $(VENV)/.installed-dev ## mypy
	$(VENV)/bin/mypy

format: $(VENV)/.installed-dev ## let ruff repair what it can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

unit: $(VENV)/.installed-dev ## unit tests, two processes
	$(PYTEST) -m "not browser and not slow"

browser: $(VENV)/.installed-dev chromium ## the real app in Chromium, two processes
	$(PYTEST) -m "browser and not slow"

slow: $(VENV)/.installed-dev chromium ## the tests that take long; SLOW=tests/jobs says which
	$(TESTING) $(PY) -m pytest -m slow $(SLOW)

faults: $(VENV)/.installed-dev ## break what FedLens stands on (docs/reliability.md); FAULTS="kill --hours 2" says more
	$(PY) -m tools.faults $(FAULTS)

release: $(VENV)/.installed-dev ## build wheel and sdist in dist/, check them, say what is left to a person
	rm -rf build dist *.egg-info
	$(PIP) install --quiet 'build>=1.2,<2' 'twine>=6.1,<7'
	$(PY) -m build
	$(PY) -m twine check --strict dist/*
	$(PY) -m pytest -q -m slow tests/cli/test_installed.py
	@ls -l dist
	@echo "Left to you: make test and make slow; the pictures (make screenshots); version and date in"
	@echo "fedcore/__init__.py, CITATION.cff and CHANGELOG.md; then a tag v<version>, which publishes dist/."

# Installs a Chromium only where that is one clean command (Debian, root); else takes what is there, and the browser
# tests say what is missing.
chromium:
	@for b in chromium chromium-browser google-chrome; do \
	  if command -v $$b >/dev/null 2>&1; then exit 0; fi; done; \
	if ls "$$HOME"/.cache/ms-playwright/chromium* >/dev/null 2>&1; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && [ -f /etc/debian_version ] && ! grep -qi '^ID=ubuntu' /etc/os-release; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; \
	else echo "no Chromium found: install one, or run $(VENV)/bin/playwright install chromium" >&2; fi

$(VENV)/.installed-docs: requirements-docs.txt $(VENV)/.installed
	$(PIP) install -r requirements-docs.txt
	@touch $@

docs: $(VENV)/.installed-docs ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

embedded: $(VENV)/.installed ## draw, pretrain and store the miniature CLIP (well under two hours on two cores)
	$(PY) -m tools.pretraining.train

bench: $(VENV)/.installed-dev chromium ## how long the demo, the data layer, encoding and the pages take here
	$(PY) -m tools.benchmarks.start
	$(PY) -m tools.benchmarks.encode
	$(PY) -m tools.benchmarks.rounds
	$(PY) -m tools.benchmarks.live
	$(PY) -m tools.benchmarks.pages

screenshots: $(VENV)/.installed-dev chromium ## the pictures of the README, from the running app
	$(PY) -m tools.screenshots

clean: ## caches; .venv, runs.db and artifacts/ stay
	rm -rf .pytest_cache .ruff_cache .mypy_cache .import_linter_cache build dist site *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
