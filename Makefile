# Everything here works from a fresh checkout with Python 3.11+, g++ and make: the targets create .venv when needed.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin

# PyPI's Linux wheels of torch carry the CUDA libraries. Without an NVIDIA driver take the CPU build, where its index can
# be reached. TORCH_FLAGS= on the command line leaves the choice to pip's own configuration.
CPU_WHEELS := https://download.pytorch.org/whl/cpu
TORCH_FLAGS ?= $(if $(wildcard /dev/nvidiactl),,--extra-index-url $(CPU_WHEELS) --retries 1)

.PHONY: help venv demo test test-all gpu-test gpu-sanitize gpu-bench zoo docs check format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(VENV)/.installed  ## create .venv with torch, weft (editable) and the tools of development

demo: $(VENV)/.installed  ## train a small model with weft, Inductor and eager; writes build/demo.html
	$(BIN)/python -m tools.demo

# the processes share the cores: threads that wait for work leave them to others (8 % less time on two cores)
test test-all check: export OMP_WAIT_POLICY = PASSIVE
# and compile a module of Python once, also where the environment says that it is to be compiled in each
test test-all check: export PYTHONDONTWRITEBYTECODE =

# tests of tools, and of constants that tools have fitted, run where one of the files they are about has changed;
# `make test CHANGED=` runs them all the same, as continuous integration does
CHANGED ?= --where-changed

test: $(VENV)/.installed  ## run the tests but for the slow ones, as many at a time as there are cores
	$(BIN)/python -m pytest -q -n auto --dist worksteal --durations=25 -m "not slow" $(CHANGED)

test-all: $(VENV)/.installed  ## run all tests
	$(BIN)/python -m pytest -q -n auto --dist worksteal --durations=25

# one process: GPUs are shared badly by several, and compiled kernels are kept in the cache of weft's tests
gpu-test: $(VENV)/.installed  ## run the tests that need a CUDA device
	$(BIN)/python -m pytest -q --durations=25 tests/gpu

SANITIZED = $(BIN)/python -m pytest -q -p no:cacheprovider tests/gpu/test_cuda_kernels.py tests/gpu/test_cuda_queue.py

# a kernel runs twice, not twenty times: what is looked for is in every run
gpu-sanitize: export WEFT_TEST_RUNS = 1
gpu-sanitize: $(VENV)/.installed  ## run kernels in CUDA C++ under compute-sanitizer
	compute-sanitizer --tool memcheck --error-exitcode 9 $(SANITIZED)
	WEFT_TEST_EVERY_LANE=1 compute-sanitizer --tool racecheck --error-exitcode 9 $(SANITIZED)
	compute-sanitizer --tool synccheck --error-exitcode 9 $(SANITIZED) -k "not 5003-16 and not 16384-16 and not read[16"

gpu-bench: $(VENV)/.installed  ## time the kernels that are chosen for a CUDA device, against their bars
	$(BIN)/python -m tools.gpu_gates --json gpu_gates.json

zoo: $(VENV)/.installed  ## check models of transformers, timm and diffusers, and time them on a CUDA device
	mkdir -p build
	$(BIN)/python -m tests.zoo --json build/zoo.json

# the picture last: where it is stale it needs a browser
docs: $(VENV)/.installed  ## write anew what the pages show: outputs, tables, diffs and pictures
	$(BIN)/python docs/performance.py
	$(BIN)/python -m pytest -q tests/test_docs.py tests/test_refusals.py tests/test_extending.py --update-golden
	$(BIN)/python docs/pictures.py

check: $(VENV)/.installed  ## formatting, lint, types and tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not slow" $(CHANGED)

format: $(VENV)/.installed  ## format the code and apply the safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove .venv and everything that was generated
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# torch goes in first and by itself, and then keeps its release, so that no other requirement can change which build of
# it is taken: the zoo's libraries want a torchvision, each release of which wants one of torch.
$(VENV)/.torch:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "weft needs Python 3.11 or later; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(TORCH_FLAGS) $(TORCH)
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install -e '.[dev,zoo]' "torch==$$($(BIN)/python -c 'import torch; print(torch.__version__.partition("+")[0])')"
	touch $@
