# Two commands do everything on a fresh machine, each making its own virtual environment: `make run` and `make test`.
# Needs Python 3.11 or later. `make PYTHON=python3.12 test` picks an interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
ifndef NAME
NAME := first-$(shell date +%Y%m%d-%H%M%S)
endif

.DEFAULT_GOAL := help
.PHONY: help run tune test test-all check fit noise accuracy docs docs-serve bench clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/installed  ## plan for this machine, train a small Llama to its target, show how it went and what it learned
	$(BIN)/meshwright train --name $(NAME)
	$(BIN)/meshwright generate runs/$(NAME) --prompt "def "
	$(BIN)/meshwright report runs/$(NAME) --out runs/$(NAME)/report.html >/dev/null
	@echo "the report of this run: runs/$(NAME)/report.html"

tune: $(VENV)/installed  ## tune the model of `make run` on a small instruction set, and show its answers before and after
	$(BIN)/meshwright tune --out runs/tuned-$(NAME)

test: check  ## format, lint, types and tests: what CI runs
	$(BIN)/pytest -n $(WORKERS)

test-all: check  ## the same, with the tests marked `long`
	$(BIN)/pytest -n $(WORKERS) -m ""

check: $(VENV)/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fit: $(VENV)/installed-test  ## fit the constants that data sheets do not give
	$(BIN)/meshwright fit

noise: $(VENV)/installed-test  ## fit the simulator's noise on logged step times, and compare: about five minutes
	$(BIN)/meshwright noise --fit --html docs/simulator/step-times.html

accuracy: $(VENV)/installed-test  ## write docs/accuracy.md from the measured runs
	$(BIN)/meshwright accuracy

docs: $(VENV)/installed-docs  ## build the documentation as a site: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html, or run make docs-serve"

docs-serve: $(VENV)/installed-docs  ## show the documentation at http://127.0.0.1:8000, and again after every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

bench: $(VENV)/installed-test  ## time meshwright itself
	@for script in benchmarks/*.py; do \
		test -e "$$script" || { echo "make bench: no script in benchmarks/ yet"; break; }; \
		echo "$$script"; $(BIN)/python "$$script" || exit 1; \
	done

clean:  ## remove the virtual environment and what tools left behind
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip, not uv: where a machine offers a CPU build of torch, pip's configuration says so.
define install
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable $(1)
	@$(BIN)/python -m compileall -q src/meshwright
	@touch $@
endef

$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(call install,'.[train]')

$(VENV)/installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	$(call install,'.[docs]')

$(VENV)/installed-test: pyproject.toml constraints.txt | $(BIN)/python
	$(call install,'.[test]')

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		found="$$($(PYTHON) --version 2>/dev/null)"; \
		echo "make: meshwright needs Python 3.11 or later, and $(PYTHON) is $${found:-not there}" >&2; \
		echo "  fix:   install one, or name it: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 2; }
