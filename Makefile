# Two commands do all their own set-up: `make train` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: train test test-gpu test-versions stress fuzz docs lint clean
train: $(VENV)/base.done
	$(BIN)/bighmm train --recipe quickstart

test: $(VENV)/dev.done lint
	$(BIN)/python -m pytest -n auto --dist loadgroup

# What needs a GPU: the kernels as they are, and training with them.
test-gpu: $(VENV)/dev.done
	$(BIN)/python -c "import torch; assert torch.cuda.is_available(), 'there is no GPU'"
	$(BIN)/python -m pytest tests/ops tests/test_gpu.py tests/test_open_families.py tests/distill/test_on_gpu.py tests/test_docs.py::test_extensions_train

# The lowest and the newest versions that pyproject.toml allows, each in an environment of its own;
# `make test-versions ONLY=lowest` (or lowest-teachers, newest) runs one of them.
test-versions:
	$(PYTHON) tests/versions.py $(ONLY)

# Processes that work in the same folders at the same time, also killed; a quarter of an hour.
stress: $(VENV)/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/stress.py

# Damaged files, odd texts and arguments, random models and rules: make fuzz CASES=10000 SEED=2
CASES ?= 2000
SEED ?= 1
fuzz: $(VENV)/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --cases $(CASES) --seed $(SEED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.explore.fuzz --seed $(SEED)

# The documentation as a site; warnings are errors.
docs: $(VENV)/dev.done
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

lint: $(VENV)/dev.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/python.done:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'bighmm needs Python 3.11 or newer; run make PYTHON=/path/to/python')"
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/base.done: pyproject.toml constraints.txt $(VENV)/python.done
	$(PIP) install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/dev.done: pyproject.toml constraints.txt $(VENV)/base.done
	$(PIP) install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .venv-lowest .venv-lowest-teachers .venv-newest site .mypy_cache .ruff_cache .pytest_cache
