# Two commands set everything up on a fresh machine with Python 3.11 or newer: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One release of torch for everyone; any >= 2.11 that is installed in the environment already would do as well.
TORCH := torch==2.13.0

.PHONY: demo test test-deps lint clean

demo: $(VENV)/.installed
	$(BIN)/tokmix demo --out out/demo

test: $(VENV)/.installed
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n auto

# System packages that some tests need: PostgreSQL's server and Chromium.
test-deps:
	sh tests/deps.sh

lint: $(VENV)/.installed
	$(BIN)/ruff check src tests reproduce
	$(BIN)/ruff format --check src tests reproduce
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) out build dist src/*.egg-info
