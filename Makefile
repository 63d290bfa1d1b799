# Every target makes its own .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint bench noise wheel-check clean

# One stamp per set of extras, so that `make demo` does not install the test tools.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable ".[cpu,train,export]"
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) --editable ".[cpu,train,export,dev]"
	touch $@

demo: $(VENV)/.demo
	$(BIN)/uce-edge demo --out demo

test: $(VENV)/.dev
	UCE_EDGE_KEEP=build/ci $(BIN)/python -m pytest --durations=10

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python -m pytest benchmarks --benchmark-columns=min,median,rounds --benchmark-sort=name
	$(BIN)/python benchmarks/report.py

# Measures the noise table and writes docs/noise.md.
noise: $(VENV)/.dev
	$(BIN)/python benchmarks/noise_quality.py

# The wheel as a user gets it: an empty environment without torch predicts with a model exported here.
wheel-check: $(VENV)/.dev
	PYTHON=$(BIN)/python UCE_EDGE_KEEP=build/ci bash .ci/wheel-check

clean:
	rm -rf $(VENV) dist build demo .pytest_cache .mypy_cache .ruff_cache
