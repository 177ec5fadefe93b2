# Two commands set everything up on a fresh machine with Python 3.11 or newer: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One release of torch for everyone; any >= 2.11 that is installed in the environment already would do as well.
TORCH := torch==2.13.0

PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n auto
# The files whose tests run a Triton kernel; on a machine without a GPU they need Triton's interpreter.
KERNEL_TESTS := $(shell grep -l "tests.kernel_rule" tests/ops/test_*.py tests/reproduce/test_toy_convolve.py)

.PHONY: demo test test-all campaign docs test-deps lint clean

demo: $(VENV)/.installed
	$(BIN)/tokmix demo --out out/demo

test: $(VENV)/.installed
	$(PYTEST) -m "not slow" --durations=10

# What `make test` leaves out: every kernel in the interpreter, kernels compiled for absent GPUs, browser, PostgreSQL, kills, several processes.
test-all: $(VENV)/.installed
	$(BIN)/python -m tests.lock --check
	TRITON_INTERPRET=1 $(PYTEST) -m "not gpu and not slow" $(KERNEL_TESTS) --durations=10
	$(PYTEST) -m slow --durations=10

# Kills, full disks, power cuts, pairs of processes, changed files, hostile folders, odd requests, all at random: below an hour on two cores.
campaign: $(VENV)/.installed
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m tests.campaign --out tests/campaign/last.json

# The documentation site, built offline: out/docs/index.html.
docs: $(VENV)/.installed
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs out/docs
	@echo "open out/docs/index.html"

# System packages that some tests need: PostgreSQL's server and Chromium.
test-deps:
	sh tests/deps.sh

lint: $(VENV)/.installed
	$(BIN)/ruff check src tests reproduce bench docs/*.py
	$(BIN)/ruff format --check src tests reproduce bench docs/*.py
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml requirements/test.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint requirements/test.lock --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) out build dist src/*.egg-info
