# Every command sets up what it needs by itself: Python >= 3.11, make and pip's registry are enough.
PYTHON   ?= python3
PIP_ARGS ?=
MINUTES  ?= 10
SHARD    ?= 0/1
STATES   ?= build/sweep
ARGS     ?=
TORCH    ?=

# Another torch (make check TORCH=2.11) has an environment of its own, and every other constraint.
VENV := .venv$(if $(TORCH),-torch-$(TORCH))
CONSTRAINTS := $(if $(TORCH),$(VENV)/constraints.txt,constraints.txt)
RUN  := $(VENV)/bin
PYTEST := $(RUN)/python -m pytest -n 2

.DEFAULT_GOAL := help
.PHONY: help demo test check lint sweep bench docs clean

help: ## list the commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12           the interpreter that a new $(VENV) is made from"
	@echo "  MINUTES=10 SHARD=0/2        for sweep: time of each search, and the part of the seeds or cases that it takes"
	@echo "  DOVETAIL_TEST_SEED=7        for test: other slices of the long lists of cases"
	@echo "  ARGS='--steps 50'           arguments for demo and bench"
	@echo "  TORCH=2.11                  for check: another torch than the tested one, in .venv-torch-2.11; without lint"
	@echo "  PIP_ARGS='--index-url URL'  where pip looks, e.g. for a CPU-only torch"

demo: $(VENV)/.installed-demo ## train a small GPT with eager and with dovetail, side by side; writes a picture and a page
	$(RUN)/python examples/train_gpt.py $(ARGS)

# The core: tests for each way in, and those whose results depend on the processor's kernels.
CORE := tests/test_bugs.py tests/passes/test_fold_batch_norms.py tests/passes/test_merge_linears.py \
	tests/passes/test_channels_last.py tests/frontends/test_aliasing.py tests/frontends/test_function.py \
	tests/frontends/freezing/test_fast.py tests/partition/test_recompute.py

# Of those, what computes with kernels that differ between processors. It is run once for each smaller instruction set,
# so that what passes here passes on another machine.
KERNELS := $(addprefix tests/passes/test_fold_batch_norms.py::, test_convolutions test_transposed_convolutions \
	test_linear test_extreme_numbers test_a_large_shift_stays_out_of_the_sum test_bfloat16 test_models test_random_models) \
	$(addprefix tests/passes/test_merge_linears.py::, test_three_dimensions test_dtypes) \
	$(addprefix tests/passes/test_channels_last.py::, test_as_exact_and_laid_out_as_eager test_kinds_of_convolutions) \
	tests/frontends/freezing/test_fast.py

CAPABILITIES := "ATEN_CPU_CAPABILITY=default" "ONEDNN_MAX_CPU_ISA=SSE41" "MKL_ENABLE_INSTRUCTIONS=AVX2" \
	"ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2"

test: lint ## lint, every test, and those of kernels for each smaller instruction set; at most 15 minutes on 2 cores
	@$(RUN)/python -m compileall -q src benchmarks  # once, and not in each process that a test starts
	$(PYTEST) --durations=20
	@for capability in $(CAPABILITIES); do \
		echo "kernels with $$capability"; env $$capability $(PYTEST) --no-header $(KERNELS) || exit 1; \
	done

check: $(if $(TORCH),$(VENV)/.installed-test,lint) ## lint, the rules of the architecture and the core of the tests, while you work; at most 3 minutes on 2 cores
	$(PYTEST) $(if $(TORCH),tests/torch_compat,tests/test_architecture.py) $(CORE)

lint: $(VENV)/.installed-dev ## ruff and mypy --strict
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

# Searches go on where they stopped: each keeps a file in $(STATES), which `make clean` removes.
SEARCHES := sweep reads_sweep inplace_sweep freeze_sweep recompute_sweep donation_sweep early_updates_sweep step_sweep file_sweep \
	list_sweep layout_sweep model_sweep limit_sweep small_limit_sweep construct_sweep
SEARCH   := --minutes $(MINUTES) --shard $(SHARD) --state $(STATES)
PART     := $(subst /,-of-,$(SHARD))

sweep: $(VENV)/.installed-dev ## search for wrong results: random programs, whole lists of cases, MINUTES=10 for each
	@mkdir -p $(STATES)
	$(RUN)/python -m pip install --quiet --no-deps $(PIP_ARGS) -c $(CONSTRAINTS) timm  # without torchvision: tests/timm_alone.py
	$(RUN)/python -m tests.overlap_sweep --pairs 100000
	@failed=; for search in $(SEARCHES); do \
		echo "tests.$$search $(SEARCH)/$$search-$(PART).json"; \
		$(RUN)/python -m tests.$$search $(SEARCH)/$$search-$(PART).json || failed="$$failed $$search"; \
	done; \
	$(RUN)/python -m tests.opdb $(SEARCH)/opdb-$(PART).jsonl || failed="$$failed opdb"; \
	test -z "$$failed" || { echo "failures in:$$failed"; exit 1; }

bench: $(VENV)/.installed-dev ## measure against eager and other compilers
	$(RUN)/python -m benchmarks $(ARGS)

docs: $(VENV)/.installed-dev ## write the generated pages and pictures again
	$(RUN)/python docs/generate_errors.py
	$(RUN)/python docs/generate_pictures.py

clean: ## remove the environment and every cache
	rm -rf .venv .venv-torch-* .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

$(RUN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "dovetail needs Python >= 3.11: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of extras: pip runs again only when what it would install has changed.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(RUN)/python
	@echo "Installing into $(VENV): about 300 MB with a CPU build of torch, 3 GB with CUDA. That takes a few minutes."
	@test -z "$(TORCH)" || sed 's/^torch==.*/torch==$(TORCH).*/' constraints.txt > $(CONSTRAINTS)
	$(RUN)/python -m pip install --disable-pip-version-check --no-input --progress-bar on $(PIP_ARGS) -c $(CONSTRAINTS) -e '.[$*]'
	@touch $@

.PHONY: site
site: $(VENV)/.installed-site ## build the documentation as a site: build/site/index.html
	$(RUN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"
