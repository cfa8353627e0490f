# Every target does its own set-up; `make demo` and `make test` are all a fresh machine needs.
# PYTHON: a Python 3.11 to 3.13. HORA_SET: cpu or gpu (chosen by the presence of an NVIDIA GPU).
PYTHON ?= python3.11
HORA_SET ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo test test-all test-fast test-slow test-chaos test-gpu soak lint types contracts check docs reference clean

setup: .venv/.ready-$(HORA_SET)

.venv/.ready-$(HORA_SET): requirements/$(HORA_SET).txt requirements/dev.txt pyproject.toml deploy/setup.sh
	PYTHON=$(PYTHON) bash deploy/setup.sh $(HORA_SET)

demo: setup
	$(BIN)/hora run deploy/presets/tiny.yaml --fresh

# Two test files at a time; the tests of one share what they start.
TWO := -n 2 --dist loadfile

# Unit tests and the core of the stack, in ten minutes on two cores.
test: test-fast
	$(BIN)/pytest -m "core and not slow" $(TWO) -q

# Everything but what is slow, kills parts at random, or needs a GPU.
test-all: test
	$(BIN)/pytest -m "system and not core and not slow and not gpu" $(TWO) -q

test-fast: setup
	$(BIN)/pytest -m "not system and not slow and not gpu" -n 2 -q

test-slow: setup
	$(BIN)/pytest -m "slow and not gpu" -q --ignore=tests/system/test_chaos.py

# Two hours of random faults; CHAOS_HOURS and CHAOS_SEED choose others.
test-chaos: setup
	$(BIN)/pytest tests/system/test_chaos.py -q -s

# What needs NVIDIA GPUs: one card's acceptance in ten minutes, then runs over two. Each says why where it is skipped.
test-gpu: setup
	$(BIN)/python -m benchmarks.gpu_acceptance || [ $$? = 2 ]
	$(BIN)/pytest -m gpu -q -rs

# Ten hours' worth of steps without engines: what grows is in a table.
soak: setup
	$(BIN)/python -m benchmarks.soak

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

contracts: setup
	$(BIN)/lint-imports

check: lint types contracts

docs: setup
	$(BIN)/mkdocs build

# The pages that are generated from the code.
reference: setup
	$(BIN)/python -m tools.reference docs/reference

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
