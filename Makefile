# Every command sets up what it needs by itself: Python >= 3.11, make and pip's registry are enough.
PYTHON   ?= python3
PIP_ARGS ?=
MINUTES  ?= 10
ARGS     ?=

VENV := .venv
RUN  := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test lint sweep bench docs clean

help: ## list the commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12           the interpreter that a new $(VENV) is made from"
	@echo "  ARGS='--steps 50'           arguments for demo and bench"
	@echo "  PIP_ARGS='--index-url URL'  where pip looks, e.g. for a CPU-only torch"

demo: $(VENV)/.installed-demo ## train a small GPT with eager and with dovetail, side by side; writes a picture and a page
	$(RUN)/dovetail demo $(ARGS)

test: lint ## lint, then every test
	$(RUN)/python -m pytest -n 2 -q

lint: $(VENV)/.installed-dev ## ruff and mypy --strict
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

sweep: $(VENV)/.installed-dev ## search for wrong results: random views, random programs for MINUTES=10, all operators
	$(RUN)/python -m tests.overlap_sweep --pairs 100000
	$(RUN)/python -m tests.sweep --minutes $(MINUTES)
	$(RUN)/python -m tests.inplace_sweep --minutes $(MINUTES)
	$(RUN)/python -m tests.freeze_sweep --minutes $(MINUTES)
	$(RUN)/python -m tests.recompute_sweep --minutes $(MINUTES)
	$(RUN)/python -m tests.step_sweep --minutes $(MINUTES)
	DOVETAIL_EVERY_STEP=1 $(RUN)/python -m pytest -n 2 -q tests/frontends/step
	DOVETAIL_EVERY_DOOR=1 $(RUN)/python -m pytest -n 2 -q tests/semantics/test_loops.py
	$(RUN)/python -m tests.opdb

bench: $(VENV)/.installed-dev ## measure against eager and other compilers
	$(RUN)/python -m benchmarks $(ARGS)

docs: $(VENV)/.installed-dev ## write the generated pages and pictures again
	$(RUN)/python docs/generate_errors.py
	$(RUN)/python docs/generate_pictures.py

clean: ## remove the environment and every cache
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

$(RUN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "dovetail needs Python >= 3.11: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of extras: pip runs again only when what it would install has changed.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(RUN)/python
	$(RUN)/python -m pip install --disable-pip-version-check --quiet $(PIP_ARGS) -c constraints.txt -e '.[$*]'
	@touch $@
